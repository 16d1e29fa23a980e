"""The file of a subscription's record: what a save writes, what readers see, and crashes."""

from __future__ import annotations

import signal
import zlib
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.children import CHILDREN
from tests.support.transactions import new_spool

from pgsluice.errors import ForeignSpool, SpoolError
from pgsluice.failpoints import arm
from pgsluice.lsn import Lsn
from pgsluice.spool import (
    AddedColumns,
    Claim,
    Copied,
    Cut,
    FormerTarget,
    OldTarget,
    Owner,
    Partitions,
    Pending,
    RecordStore,
    SourceView,
    Spool,
    SubscriptionRecord,
    TableRecord,
    TableState,
    UnseenLeaf,
    find_record,
)
from pgsluice.spool.formats import decode_json, encode_json
from pgsluice.spool.layout import forget_subscription
from pgsluice.spool.records.codec import RecordBuilder, encode_change
from pgsluice.stores.spool_place import SpoolPlace

LSNS = st.integers(0, 2**63 - 1).map(Lsn)
FEW_LSNS = st.integers(0, 3).map(Lsn)  # few, so that many are equal
OID_LISTS = st.lists(st.integers(1, 9), max_size=2).map(tuple)
TABLES = st.builds(
    TableRecord, namespace=st.text(), name=st.text(), state=st.sampled_from(TableState),
    applied_through=FEW_LSNS, committed=LSNS, copy_number=st.integers(0, 9),
    rows=st.integers(0, 2**62), error=st.none() | st.text(), merge_s=st.floats(0, 1e6),
    version=st.integers(-1, 2**40), incomplete=st.lists(st.text(), max_size=2).map(tuple),
    claim=st.builds(Claim, OID_LISTS, st.booleans()),
    source=st.builds(SourceView, st.text(), OID_LISTS, LSNS), copied=st.builds(Copied, LSNS),
    copying=st.none() | st.builds(OldTarget, st.text(), st.text(), st.just(3), st.just(4))
    | st.builds(Partitions, OID_LISTS, OID_LISTS, st.lists(st.text(), max_size=2).map(tuple)),
    pending=st.builds(
        Pending, st.none() | st.floats(0, 1e12),
        st.none() | st.builds(AddedColumns, LSNS, st.text()), st.text(),
        st.lists(st.builds(UnseenLeaf, st.integers(1, 9)), max_size=1).map(tuple),
    ),
)  # fmt: skip
OIDS = st.integers(1, 5) | st.integers(1, 2**32 - 1)
CUTS = st.builds(
    Cut, lsn=LSNS, made_at=st.floats(0, 1e12),
    versions=st.dictionaries(OIDS, st.integers(0, 9), max_size=3),
)  # fmt: skip
RECORDS = st.builds(
    SubscriptionRecord, name=st.just("lake"), owner=st.sampled_from(Owner), mode=st.just("current"),
    sink=st.text(), registered=LSNS, position=FEW_LSNS,
    tables=st.dictionaries(OIDS, TABLES, max_size=3), cut=st.none() | CUTS,
    cuts=st.lists(CUTS, max_size=3).map(tuple),
    unpublished=st.dictionaries(OIDS, TABLES, max_size=2),
    former=st.dictionaries(
        st.tuples(st.text(), st.text()),
        st.builds(FormerTarget, st.lists(OIDS).map(tuple), st.text(), st.text()), max_size=2,
    ),
)  # fmt: skip


def a_record(name: str = "lake", **more) -> SubscriptionRecord:
    return SubscriptionRecord(name, Owner.CONFIG, "current", "delta", Lsn(1), Lsn(2), **more)


def written(path: Path, name: str = "lake") -> Path:
    return path / "subscriptions" / name / "record.json"


# Lines


@given(st.lists(RECORDS, min_size=1, max_size=4))
def test_the_lines_give_the_last_record(records):
    builder, before = RecordBuilder(), None
    for record in records:
        line = encode_json({"key": 0, **encode_change(before, record)})
        change = decode_json(line)
        assert change is not None
        del change["key"]
        builder.apply(change)
        before = record
        assert builder.build() == record


@given(RECORDS)
def test_an_equal_record_changes_nothing(record):
    same = replace(record, tables={oid: replace(table) for oid, table in record.tables.items()})
    assert encode_change(record, same) == {}


@given(RECORDS, FEW_LSNS)
def test_tables_at_the_position_move_with_it_without_an_entry(record, position):
    tables = {
        oid: replace(table, applied_through=position)
        if table.applied_through == record.position
        else table
        for oid, table in record.tables.items()
        if table.applied_through in (record.position, Lsn(9))
    }
    before = replace(record, tables={oid: record.tables[oid] for oid in tables})
    change = encode_change(before, replace(before, tables=tables, position=position))
    assert set(change) <= {"position"}


def test_a_table_at_another_position_is_the_same_otherwise():
    table = TableRecord(*fields(TableRecord))  # each field has a value of its own
    assert table.at(Lsn(7)) == replace(table, applied_through=Lsn(7))


def test_a_cut_lists_only_the_versions_that_differ():
    old, cut = Cut(Lsn(1), 1.0, {5: 1, 6: 1, 7: 1}), Cut(Lsn(2), 2.0, {5: 1, 6: 2})
    before = a_record(cut=old, cuts=(old,))
    change = encode_change(before, replace(before, cut=cut, cuts=(old, cut)))
    assert change["cut"]["versions"] == {"6": 2, "7": None}
    assert [cut["versions"] for cut in change["cuts"]["added"]] == [{}]


# The file


def test_a_record_is_found_in_its_spool(tmp_path):
    spool = new_spool(tmp_path / "spool")
    assert spool.subscription("lake") is None
    assert find_record(spool.path, "lake") is None
    with pytest.raises(SpoolError, match="has no subscription lake yet"):
        RecordStore.open(spool.path, "lake")
    store = RecordStore.create(spool.path, a_record("lake"))
    RecordStore.create(spool.path, a_record("other"))
    assert spool.subscription("lake") == a_record("lake")
    leaves = UnseenLeaf(7), UnseenLeaf(8, 5, "id > 9", ("id",))
    changed = a_record(
        tables={5: TableRecord("public", "t", rows=7, pending=Pending(unseen_leaves=leaves))}
    )
    store.save(changed)
    assert find_record(spool.path, "lake") == spool.subscription("lake") == changed
    assert [record.name for record in Spool.open(spool.path).subscriptions()] == ["lake", "other"]
    with pytest.raises(SpoolError, match="cannot name"):
        RecordStore.create(spool.path, a_record("../evil"))


@given(st.lists(RECORDS, min_size=1, max_size=6), st.data())
def test_a_saved_record_is_read_again(tmp_path_factory, records, data):
    path = tmp_path_factory.mktemp("spool")
    store = RecordStore.create(path, records[0])
    reader = new_spool(path)
    for record in records:
        if data.draw(st.booleans()):
            store = RecordStore.open(path, "lake")
        store.save(record)
        if data.draw(st.booleans()):
            assert reader.subscription("lake") == record
    assert find_record(path, "lake") == RecordStore.open(path, "lake").record == records[-1]


def test_keys_of_a_newer_version_are_kept(tmp_path):
    RecordStore.create(tmp_path, a_record(extra={"verify_at": "0/5"}))
    store = RecordStore.open(tmp_path, "lake")
    store.save(replace(store.record, position=Lsn(9)))
    assert find_record(tmp_path, "lake").extra == {"verify_at": "0/5"}


@pytest.mark.parametrize("content", [b"", b"{}", b"{}\n", b"{\n}", b"[]\n", b'{"format": 3}\n'])
def test_a_file_that_is_no_record_is_refused(tmp_path, content):
    RecordStore.create(tmp_path, a_record())
    written(tmp_path).write_bytes(content)
    with pytest.raises(SpoolError, match="not a subscription's record"):
        find_record(tmp_path, "lake")


@pytest.mark.parametrize("written_format", [3, 6])
def test_a_format_that_is_not_known_is_refused(tmp_path, written_format):
    RecordStore.create(tmp_path, a_record())
    line = encode_json({"format": written_format, "file": "0" * 16}) + b"\n"
    written(tmp_path).write_bytes(line)
    with pytest.raises(ForeignSpool, match=f"format {written_format}"):
        find_record(tmp_path, "lake")


def test_a_record_of_format_4_is_read_and_replaced_by_the_next_save(tmp_path):
    """Its tables have no parts, and keep what only other states use."""
    RecordStore.create(tmp_path, a_record())
    flat = {
        "name": "t", "namespace": "s", "state": "r", "fingerprint": "f", "relations": [7],
        "looked_at": "0/8", "looked_on": 2, "copied_at": "0/7", "copied_on": 1, "copied_for": "c",
        "copy_reason": "why", "to_verify": "doubt", "verification_number": 3, "deferred": True,
        "next_due": 5.5, "alter_after": "0/9", "alter_facts": "{}", "predecessor_oids": [3],
        "may_replace_foreign_target": True, "parked_for": "key", "load_leaves": [8],
    }  # fmt: skip
    flat_d = {**flat, "state": "d", "gone_leaves": [9], "gone_bounds": ["id > 9"]}
    renamed = {**flat, "state": "d", "old_target": ["s", "old", 1, 4]}
    del renamed["load_leaves"]
    tables = {
        "1": flat, "2": flat_d, "3": renamed, "4": {**flat, "state": "p"},
        "5": {"namespace": "s", "name": "u", "next_due": 5.5, "old_target": ["s", "old", 1, 4]},
    }  # fmt: skip
    first = {"format": 4, "file": "0" * 16, "spool_id": None}
    lines = [
        {**first, **encode_change(None, a_record()), "position": "0/2"},
        {"tables": tables, "position": "0/3"},
    ]
    written(tmp_path).write_bytes(b"".join(encode_json(line) + b"\n" for line in lines))
    same = {
        "namespace": "s", "name": "t", "applied_through": Lsn(3), "verification_number": 3,
        "source": SourceView("f", (7,), Lsn(8), 2), "copied": Copied(Lsn(7), 1, "c", "why"),
    }  # fmt: skip
    waiting = Pending(None, AddedColumns(Lsn(9), "{}"), "doubt")
    d, claim = TableState.DATA_COPY, Claim((3,), any_source=True)
    parts = Partitions((8,), (9,), ("id > 9",))
    store = RecordStore.open(tmp_path, "lake")
    assert store.record.tables == {
        1: TableRecord(**same, state=TableState.READY, pending=replace(waiting, due=5.5)),
        2: TableRecord(**same, state=d, claim=claim, copying=parts, pending=waiting),
        3: TableRecord(
            **same, state=d, claim=claim, copying=OldTarget("s", "old", 1, 4), pending=waiting
        ),
        4: TableRecord(**same, state=TableState.PARKED, claim=claim, parked_for="key"),
        5: TableRecord("s", "u", applied_through=Lsn(3)),
    }
    store.save(after := replace(store.record, position=Lsn(4)))
    assert len(_lines(tmp_path)) == 1, "a file has lines of one format"
    assert find_record(tmp_path, "lake") == after


# How much is written


def many_tables(count: int) -> SubscriptionRecord:
    tables = {
        oid: TableRecord(
            "public", f"table_{oid}", TableState.READY, Lsn(2), Lsn(2), 1, SourceView("0" * 64),
            version=1, target=f"/lake/public/table_{oid}",
        )
        for oid in range(16384, 16384 + count)
    }  # fmt: skip
    return a_record(tables=tables)


def after_batch(record: SubscriptionRecord, batch: int) -> SubscriptionRecord:
    """The record after a batch that changed one table: all tables are applied through its end."""
    oid, position = 16384 + batch % len(record.tables), Lsn(record.position + 100)
    tables = {
        other: replace(table, applied_through=position) for other, table in record.tables.items()
    }
    changed = tables[oid]
    tables[oid] = replace(
        changed, rows=changed.rows + 1, committed=position, version=changed.version + 1
    )
    versions = {other: table.version for other, table in tables.items()}
    cut = Cut(position, float(batch), versions)
    cuts = (*record.cuts, cut)[-5:] if batch % 10 == 0 else record.cuts
    return replace(record, position=position, tables=tables, cut=cut, cuts=cuts)


def test_a_batch_that_changes_one_of_5000_tables_writes_one(tmp_path):
    store = RecordStore.create(tmp_path, record := many_tables(5000))
    store.save(record := after_batch(record, 1))
    path = written(tmp_path)
    for batch in range(2, 30):
        before = path.stat()
        store.save(record := after_batch(record, batch))
        assert path.stat().st_ino == before.st_ino, "appended"
        assert path.stat().st_size - before.st_size < 1024
    assert find_record(tmp_path, "lake") == record


def test_the_file_is_replaced_when_the_later_lines_outgrow_the_first(tmp_path):
    store = RecordStore.create(tmp_path, record := many_tables(20))
    path = written(tmp_path)
    first, replaced, appended = path.stat().st_size, 0, 0
    for batch in range(1, 1000):
        before = path.stat()
        store.save(record := after_batch(record, batch))
        after = path.stat()
        if after.st_ino == before.st_ino:
            appended += 1
        else:
            replaced, first = replaced + 1, after.st_size
        assert after.st_size <= first + max(first, 64 * 1024)
    assert replaced >= 2
    assert appended > 100 * replaced, "replacing is rare"
    assert find_record(tmp_path, "lake") == record


def test_an_unchanged_record_is_not_written_and_not_read_again(tmp_path):
    spool = new_spool(tmp_path)
    store = RecordStore.create(tmp_path, a_record())
    known, before = spool.subscription("lake"), written(tmp_path).read_bytes()
    store.save(replace(a_record()))
    assert spool.subscription("lake") is known
    assert written(tmp_path).read_bytes() == before


def test_a_reader_beside_the_owner_sees_only_saved_records(tmp_path):
    """The owner appends to the file and replaces it; the reader sees saved records, in order."""
    record = many_tables(3)
    states = {record.position: record}
    for batch in range(400):
        record = after_batch(record, batch)
        states[record.position] = record
    RecordStore.create(tmp_path, next(iter(states.values())))
    child = CHILDREN.Process(target=save_all, args=(tmp_path, list(states.values())))
    child.start()
    spool, seen = new_spool(tmp_path), Lsn(0)
    while seen < record.position:
        read = spool.subscription("lake")
        assert read is not None
        assert read == states[read.position]
        assert read.position >= seen
        seen = read.position
        assert child.exitcode in (None, 0)
    child.join()


def test_a_reader_beside_what_registers_and_drops_finds_the_record_or_none(tmp_path):
    child = CHILDREN.Process(target=register_and_drop, args=(tmp_path,))
    child.start()
    while child.exitcode is None:
        assert find_record(tmp_path, "lake") in (None, a_record())
    assert child.exitcode == 0


def register_and_drop(path: Path) -> None:
    """Runs in the child process."""
    for _ in range(2000):
        RecordStore.create(path, a_record())
        forget_subscription(SpoolPlace.of(path), "lake")


def test_a_reader_beside_the_first_capture_finds_a_start_or_none(tmp_path):
    spools = [new_spool(tmp_path / f"{number}", None) for number in range(500)]
    child = CHILDREN.Process(target=start_all, args=(tmp_path,))
    child.start()
    for spool in spools:
        while spool.chain_start() is None:
            assert child.exitcode in (None, 0)
    child.join()


def start_all(path: Path) -> None:
    """Runs in the child process."""
    for number in range(500):
        spool = Spool.open(path / f"{number}")
        spool.register_start(Lsn(1))
        spool.write_frontier(Lsn(2))


# Crashes

PLACES = [
    "record.write@1", "record.write@3", "record.before_fsync@1", "record.before_newline@2",
    "record.after_newline@1", "spool.write@1", "spool.before_fsync@1", "spool.before_rename@1",
    "spool.after_rename@1",
]  # fmt: skip


def save_all(path: Path, records: list[SubscriptionRecord], failpoints: str = "") -> None:
    """Runs in the child process; touches a file after each save that returned."""
    arm(failpoints)
    store = RecordStore.open(path, "lake")
    for number, record in enumerate(records):
        store.save(record)
        (path / f"saved {number}").touch()


@pytest.mark.parametrize("place", PLACES)
def test_after_a_kill_a_save_is_whole_or_absent(tmp_path, place):
    record = many_tables(3)
    RecordStore.create(tmp_path, record)
    records = [record]
    # The fourth save is too large to be appended.
    for batch, sink in enumerate(("s", "s", "s", "s" * 100_000, "s", "s")):
        records.append(replace(after_batch(records[-1], batch), sink=sink))
    name, _, times = place.partition("@")
    child = CHILDREN.Process(target=save_all, args=(tmp_path, records[1:], f"{name}=kill@{times}"))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    saved = len(list(tmp_path.glob("saved *")))
    seen = find_record(tmp_path, "lake")
    store = RecordStore.open(tmp_path, "lake")
    assert seen in (records[saved], records[saved + 1])
    assert store.record in (records[saved], records[saved + 1])
    assert store.record.position >= seen.position
    for record in records[saved + 1 :]:
        store.save(record)
        assert find_record(tmp_path, "lake") == RecordStore.open(tmp_path, "lake").record == record
    assert not [line for line in _lines(tmp_path) if decode_json(line) is None]


def _lines(path: Path) -> list[bytes]:
    content = written(path).read_bytes()
    assert content.endswith(b"\n")
    return content[:-1].split(b"\n")


def test_a_line_truncated_at_any_byte_leaves_the_saves_before_it(tmp_path):
    """After a crash of the machine, an append may leave any beginning of its line, or zeros."""
    store = RecordStore.create(tmp_path, first := many_tables(2))
    begin = written(tmp_path).stat().st_size
    store.save(second := after_batch(first, 1))
    whole = written(tmp_path).read_bytes()
    for end in range(begin, len(whole)):
        for tail in (b"", bytes(7)):
            written(tmp_path).write_bytes(whole[:end] + tail)
            assert find_record(tmp_path, "lake") == first
            store = RecordStore.open(tmp_path, "lake")
            is_whole = end == len(whole) - 1 and not tail
            assert store.record == (second if is_whole else first)
            assert find_record(tmp_path, "lake") == store.record
            store.save(third := after_batch(second, 2))
            assert find_record(tmp_path, "lake") == third


def test_a_damaged_line_raises_an_error(tmp_path):
    store = RecordStore.create(tmp_path, record := many_tables(2))
    begin = written(tmp_path).stat().st_size
    for batch in (1, 2):
        store.save(record := after_batch(record, batch))
    content = bytearray(written(tmp_path).read_bytes())
    content[begin + 20] ^= 1
    written(tmp_path).write_bytes(content)
    with pytest.raises(SpoolError, match="damaged"):
        find_record(tmp_path, "lake")


@pytest.mark.parametrize("place", ["record.write", "record.before_fsync", "record.before_newline"])
def test_a_full_disk_leaves_the_record_as_it_was(tmp_path, place):
    store = RecordStore.create(tmp_path, first := many_tables(2))
    arm(f"{place}=enospc")
    try:
        with pytest.raises(SpoolError, match="no room"):
            store.save(second := after_batch(first, 1))
    finally:
        arm("")
    assert find_record(tmp_path, "lake") == store.record == first
    store.save(second)
    assert find_record(tmp_path, "lake") == second


def test_a_line_ends_with_the_checksum_of_its_content(tmp_path):
    assert encode_json({"a": 1}) == b'{"a":1,"crc32":%d}' % zlib.crc32(b'{"a":1')
