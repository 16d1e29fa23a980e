"""Which segments retention deletes, and which holds it drops at the size limit."""

from __future__ import annotations

import math
import shutil
import subprocess

import pytest
from tests.support.transactions import insert, new_spool, raw, transaction

from pgsluice.lsn import Lsn
from pgsluice.spool import (
    Owner,
    RecordStore,
    SpoolWriter,
    SubscriptionRecord,
    TableRecord,
    TableState,
)
from pgsluice.spool.layout import record_path
from pgsluice.spool.segments.retention import Retention, used_share

NO_LIMIT = 2**60


@pytest.fixture
def writer(tmp_path):
    """A spool of ten segments, (1000, 2000] to (10000, 11000]."""
    with SpoolWriter(new_spool(tmp_path / "spool")) as writer:
        for end in range(2000, 12000, 1000):
            writer.append(raw(transaction(end, [insert(5)])))
        yield writer


def record(name, position, owner=Owner.CONFIG, **tables):
    states = {
        "ready": TableState.READY,
        "parked": TableState.PARKED,
        "new": TableState.INITIALISE,
        "copied": TableState.DATA_COPY,
    }
    return SubscriptionRecord(
        name, owner, "current", "delta", Lsn(1000), Lsn(position),
        tables={
            10 + index: TableRecord("s", state, states[state], applied_through=Lsn(lsn))
            for index, (state, lsn) in enumerate(tables.items())
        },
    )  # fmt: skip


def step(writer, *, configured=None, max_bytes=NO_LIMIT, retention_s=0.0):
    warnings = []
    retention = Retention(writer, warnings.append, configured or {}, retention_s, max_bytes)
    state = retention.step()
    return state, warnings


def start(writer):
    return writer.reader.start()


def test_segments_that_every_table_has_applied_are_deleted(writer):
    RecordStore.create(writer.spool.path, record("a", 6500, ready=5500, new=0))
    step(writer, configured={"a": True})
    assert start(writer) == 5000


def test_one_retention_follows_what_changes_between_its_steps(writer):
    store = RecordStore.create(writer.spool.path, record("a", 3500, ready=3500))
    configured = {"a": True, "b": False}
    retention = Retention(writer, pytest.fail, configured, max_bytes=NO_LIMIT)

    def lowest():
        state = retention.step()
        return state.lowest.subscription, int(state.lowest.lsn)

    assert lowest() == ("b", 0), "it has not registered yet"
    other = RecordStore.create(writer.spool.path, record("b", 6500))
    assert lowest() == lowest() == ("a", 3500)
    store.save(record("a", 6500, ready=5500))
    assert lowest() == ("a", 5500)
    store.save(record("a", 9500, ready=9500))
    assert lowest() == ("b", 6500)
    assert start(writer) == 6000
    path = record_path(writer.spool.path, "b")
    content = path.read_bytes()
    path.write_bytes(b"damaged")
    assert lowest() == ("b", 0), "a record that cannot be read holds everything"
    path.write_bytes(content)
    other.save(record("b", 8500))
    assert lowest() == ("b", 8500)


def test_a_parked_table_has_a_hold(writer):
    RecordStore.create(writer.spool.path, record("a", 6500, ready=6500, parked=3000))
    state, _ = step(writer, configured={"a": True})
    assert start(writer) == 3000
    assert "parked" in str(state.lowest)


def test_segments_younger_than_retention_s_stay(writer):
    RecordStore.create(writer.spool.path, record("a", 6500))
    step(writer, configured={"a": True}, retention_s=3600)
    assert start(writer) == 1000


def test_only_configured_subscriptions_and_sources_have_holds(writer):
    RecordStore.create(writer.spool.path, record("gone", 2000))
    RecordStore.create(writer.spool.path, record("query", 5000, owner=Owner.SOURCE))
    RecordStore.create(writer.spool.path, record("a", 7000))
    step(writer, configured={"a": True})
    assert start(writer) == 5000
    step(writer, configured={"a": True, "never_started": True})
    assert start(writer) == 5000


def test_without_subscriptions_only_the_size_limit_deletes(writer):
    step(writer)
    assert start(writer) == 1000
    limit = writer.size_bytes() // 2
    state, _ = step(writer, max_bytes=limit)
    assert not state.is_full
    assert writer.size_bytes() < limit
    assert writer.reader.position() == 11000


def test_the_size_limit_drops_holds_of_parked_tables_first(writer):
    path = writer.spool.path
    RecordStore.create(path, record("a", 11000, ready=11000, parked=2000))
    RecordStore.create(path, record("off", 9000))
    limit = writer.size_bytes() // 2
    state, warnings = step(writer, configured={"a": True, "off": False}, max_bytes=limit)
    assert (start(writer), state.is_full) == (9000, False)
    assert list(writer.spool.released()) == ["a"]
    assert len(warnings) == 1
    assert "parked" in warnings[0]
    # The driver turns the dropped hold into a copy.
    RecordStore.create(path, record("a", 11000, ready=11000, new=0))
    step(writer, configured={"a": True, "off": False})
    assert writer.spool.released() == {}


def test_at_the_size_limit_a_copy_is_given_up_and_never_the_stream(writer):
    path = writer.spool.path
    RecordStore.create(path, record("a", 9000, copied=2000))
    limit = writer.size_bytes() // 2
    state, warnings = step(writer, configured={"a": True}, max_bytes=limit)
    assert (start(writer), state.is_full) == (9000, False)
    assert writer.spool.released() == {"a": {"10": "0/7D0"}}
    assert "the copied table 10 of subscription a" in warnings[0]
    # The copy ended just then, in a snapshot whose changes are gone: it is still to be repeated.
    RecordStore.create(path, record("a", 9000, ready=3000))
    step(writer, configured={"a": True})
    assert writer.spool.released() == {"a": {"10": "0/7D0"}}
    # Copied again, from the subscription's position: its hold counts as any other.
    RecordStore.create(path, record("a", 11000, copied=9000))
    step(writer, configured={"a": True})
    assert (start(writer), writer.spool.released()) == (9000, {})


def test_a_record_that_cannot_be_read_holds_everything(writer):
    """One damaged file must not stop capture."""
    path = writer.spool.path
    RecordStore.create(path, record("a", 6500))
    RecordStore.create(path, record("b", 9000, parked=4000))
    writer.spool.write_released({"b": {"10": "0/FA0"}})
    file = record_path(path, "b")
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"position", b"positiom"))
    for max_bytes in (NO_LIMIT, 1):
        state, warnings = step(writer, configured={"a": True, "b": False}, max_bytes=max_bytes)
        assert (start(writer), state.is_full, warnings) == (1000, max_bytes == 1, [])
        assert str(file) in str(state.problem)
    file.write_bytes(whole)
    state, _ = step(writer, configured={"a": True, "b": True})
    assert (start(writer), state.problem) == (6000, None)
    assert writer.spool.released() == {"b": {"10": "0/FA0"}}


@pytest.mark.parametrize(
    ("held_by", "disabled", "dropped"), [(5200, 5100, ["off"]), (5000, 9000, [])]
)
def test_no_hold_is_dropped_that_frees_nothing(writer, held_by, disabled, dropped):
    """It would count as settled, return, and be dropped again with the next step."""
    path = writer.spool.path
    RecordStore.create(path, record("a", held_by))
    RecordStore.create(path, record("off", disabled))
    RecordStore.create(path, record("b", 9000, parked=6000))
    configured = {"a": True, "off": False, "b": True}
    for _ in range(2):
        state, warnings = step(writer, configured=configured, max_bytes=1)
        assert (start(writer), state.is_full, warnings) == (5000, True, [])
    # Once a segment can be deleted, the lowest is dropped, and no more than needed.
    RecordStore.create(path, record("a", 11000))
    limit = writer.size_bytes() - 1
    for _ in range(2):
        state, _ = step(writer, configured=configured, max_bytes=limit)
        assert (start(writer), state.is_full) == (6000, False)
        assert list(writer.spool.released()) == dropped


def test_the_size_limit_drops_disabled_subscriptions_next_and_then_the_spool_is_full(writer):
    path = writer.spool.path
    RecordStore.create(path, record("a", 4000))
    RecordStore.create(path, record("off", 2000))
    limit = writer.size_bytes() // 2
    configured = {"a": True, "off": False}
    state, warnings = step(writer, configured=configured, max_bytes=limit)
    assert (start(writer), state.is_full) == (4000, True)
    assert "disabled" in warnings[0]
    assert writer.spool.released() == {"off": {"*": "0/7D0"}}
    RecordStore.create(path, record("a", 10000))
    state, _ = step(writer, configured=configured, max_bytes=limit)
    assert (start(writer), state.is_full) == (10000, False)
    # The subscription is enabled again, and its driver starts from the spool's beginning.
    RecordStore.create(path, record("off", 10000))
    step(writer, configured={"a": True, "off": True})
    assert writer.spool.released() == {}


def test_parts_of_unfinished_transactions_count_and_stay(writer):
    """The parts of open and prepared transactions can be deleted only after their end."""
    before = writer.size_bytes()
    writer.parts.append("open", raw([(10500, insert(5))]), xid=7)
    writer.parts.append("kept", raw([(10500, insert(5))]), xid=7)
    writer.parts.prepare("kept", gid="g", xid=7, prepare_lsn=Lsn(10500))
    RecordStore.create(writer.spool.path, record("a", 11000))
    state, _ = step(writer, configured={"a": True}, max_bytes=before // 10)
    assert (start(writer), state.is_full) == (11000, True)
    assert state.waiting_bytes == state.size_bytes > 0
    writer.parts.abandon("open")
    writer.parts.commit_prepared("g", 7, position=Lsn(12000), commit_timestamp=0, facts={})
    assert step(writer, configured={"a": True})[0].waiting_bytes == 0
    RecordStore.create(writer.spool.path, record("a", 12000))
    assert step(writer, configured={"a": True})[0].size_bytes == 0


def test_a_full_spool_stays_full_until_it_is_clearly_below_the_limit(writer):
    RecordStore.create(writer.spool.path, record("a", 1000))
    limit = writer.size_bytes() - 1
    retention = Retention(writer, pytest.fail, {"a": True}, max_bytes=limit)
    assert retention.step().is_full
    RecordStore.create(writer.spool.path, record("a", 11000))
    assert not retention.step().is_full


def test_the_disk_is_as_full_as_df_says(tmp_path):
    """df leaves out the blocks that are reserved for root, and rounds up to a percent."""
    printed = subprocess.check_output(["df", "-P", tmp_path], text=True)
    percent = int(printed.splitlines()[1].split()[4].rstrip("%"))
    usage = shutil.disk_usage(tmp_path)
    assert abs(math.ceil(100 * used_share(usage.used, usage.free)) - percent) <= 1


def test_blocks_reserved_for_root_do_not_make_a_disk_look_full():
    """A disk of 250 GB with 60 used and 150 reserved has 40 free: it is 60 % full, not 84 %."""
    assert used_share(60, 40) == 0.6
