"""From where capture goes on when the server is on another timeline: the decision itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.capture.source.timeline import History, Received, check_slot_is_there, start_on
from pgsluice.catalog.server import ServerInfo, SlotInfo
from pgsluice.errors import ForeignSource, SlotLost, SourceRefused, SourceUnreachable
from pgsluice.lsn import Lsn
from pgsluice.replication import TimelineSwitch, takes_failover


def history(timeline: int, *ends: tuple[int, int]) -> History:
    return History(timeline, tuple((one, Lsn(lsn)) for one, lsn in ends))


def received(known: History, last: int, frontier: int) -> Received:
    return Received(known, Lsn(last), Lsn(frontier))


FIRST, SECOND = history(1), history(2, (1, 500))
THIRD = history(3, (1, 500), (2, 800))


def test_a_server_s_history_is_what_its_commands_say() -> None:
    switches = (TimelineSwitch(1, Lsn(500)), TimelineSwitch(2, Lsn(800)))
    assert History(3, switches) == THIRD
    assert [THIRD.end_of(timeline) for timeline in (1, 2, 4)] == [500, 800, None]


@pytest.mark.parametrize(
    ("what", "spool", "server", "start"),
    [
        ("no promotion", received(FIRST, 400, 450), FIRST, 450),
        ("no promotion, on a later timeline", received(THIRD, 900, 950), THIRD, 950),
        ("the spool is behind", received(FIRST, 400, 450), SECOND, 450),
        ("the spool is exactly there", received(FIRST, 500, 500), SECOND, 500),
        ("only the frontier is past it", received(FIRST, 400, 600), SECOND, 500),
        ("two promotions in a row", received(FIRST, 400, 450), THIRD, 450),
        ("two promotions, frontier past both", received(FIRST, 400, 900), THIRD, 500),
        ("the second promotion", received(SECOND, 700, 850), THIRD, 800),
        ("apart, with nothing past the fork", received(SECOND, 300, 700),
         history(2, (1, 400)), 400),
        ("a spool that began on 2", received(history(2), 700, 750), SECOND, 750),
        ("and follows to 3", received(history(2), 700, 850), THIRD, 800),
    ],
)  # fmt: skip
def test_it_goes_on_where_both_have_the_same(what, spool, server, start) -> None:
    assert start_on(spool, server) == start, what


@pytest.mark.parametrize(
    ("what", "spool", "server", "switch_point"),
    [
        ("the spool is ahead", received(FIRST, 501, 600), SECOND, 500),
        ("ahead of the first of two", received(FIRST, 600, 600), THIRD, 500),
        ("ahead of the second", received(SECOND, 801, 900), THIRD, 800),
        ("another standby was promoted, earlier", received(SECOND, 450, 450),
         history(2, (1, 400)), 400),
        ("another standby was promoted, later", received(SECOND, 600, 600),
         history(2, (1, 550)), 500),
        ("not by way of our timeline", received(SECOND, 600, 600), history(3, (1, 550)), 500),
        ("nothing is known of what came before", received(history(2), 10, 10),
         history(3, (1, 550)), 0),
    ],
)  # fmt: skip
def test_what_the_server_lacks_is_refused(what, spool, server, switch_point) -> None:
    with pytest.raises(ForeignSource, match="the server lacks changes that pgsluice") as caught:
        start_on(spool, server)
    assert caught.value.exit_code == 3, what
    assert caught.value.facts == {
        "timeline": server.timeline, "switch_point": switch_point, "position": spool.last,
    }  # fmt: skip


def test_the_old_primary_is_not_gone_back_to() -> None:
    """Also where it would do no harm: it is about to be no source any more."""
    with pytest.raises(SourceRefused, match="old primary") as caught:
        start_on(received(SECOND, 400, 400), FIRST)
    # Not an error that ends a capture which runs: the new primary may come back.
    assert type(caught.value) is SourceRefused


@st.composite
def branches(draw: st.DrawFn) -> tuple[History, History, Lsn]:
    """Two histories that are the same up to an LSN, and that LSN."""
    ends = sorted(draw(st.lists(st.integers(1, 10**6), max_size=4)))
    shared = tuple((number, Lsn(lsn)) for number, lsn in enumerate(ends, start=1))
    timeline = len(shared) + 1
    base = ends[-1] if ends else 0
    first, second = draw(st.integers(base, 2 * 10**6)), draw(st.integers(base, 2 * 10**6))
    gap = draw(st.integers(0, 3))
    one = History(timeline + 1, (*shared, (timeline, Lsn(first))))
    other = History(timeline + 1 + gap, (*shared, (timeline, Lsn(second))))
    if gap == 0 and first == second:
        return one, other, Lsn(2**63 - 1)
    return one, other, Lsn(min(first, second))


@given(branches(), st.integers(0, 3 * 10**6), st.integers(0, 10**6))
def test_it_never_starts_past_what_both_have_nor_drops_what_is_there(pair, last, more) -> None:
    one, other, fork_lsn = pair
    assert one.fork_point(other) == other.fork_point(one) == fork_lsn
    spool = received(one, last, last + more)
    if last > fork_lsn:
        with pytest.raises(ForeignSource):
            start_on(spool, other)
    else:
        start = start_on(spool, other)
        assert last <= start <= min(fork_lsn, spool.frontier)


# The slot

SLOT = SlotInfo(
    name="s", plugin="pgoutput", database="d", is_temporary=False, is_active=False,
    active_pid=None, confirmed_flush_lsn=Lsn(2), retained_bytes=0,
    wal_status="reserved", invalidation_reason=None, two_phase=False, failover=True,
    is_synced=False,
)  # fmt: skip
PRIMARY = ServerInfo(
    version_num=180004, version="18.4", database="d", user="u",
    wal_level="logical", max_replication_slots=10, used_replication_slots=1, max_wal_senders=10,
    used_wal_senders=1, max_slot_wal_keep_bytes=None, idle_slot_timeout_s=None,
    is_standby=False, has_replication=True, may_create=True, is_read_only=False,
)  # fmt: skip
STANDBY = replace(PRIMARY, is_standby=True)
SYNCED = replace(SLOT, is_synced=True)


@pytest.mark.parametrize(
    ("slot", "server"),
    [(SLOT, PRIMARY), (SLOT, STANDBY), (SYNCED, PRIMARY)],
    ids=["a primary's", "a standby's own", "a promoted standby's"],
)
def test_a_slot_that_can_be_read(slot, server) -> None:
    assert check_slot_is_there(slot, "s", server) is slot


@pytest.mark.parametrize(
    ("slot", "server", "error"),
    [
        (None, PRIMARY, SlotLost),
        (None, replace(STANDBY, version_num=160014), SlotLost),
        (None, STANDBY, SourceRefused),
        (SYNCED, STANDBY, SourceUnreachable),
        (replace(SYNCED, is_temporary=True), PRIMARY, SourceUnreachable),
    ],
    ids=["promoted without it", "no such thing in 16", "may still come", "kept in step",
         "promoted this moment"],
)  # fmt: skip
def test_a_slot_that_cannot(slot, server, error) -> None:
    with pytest.raises(SourceRefused if error is not SourceUnreachable else error) as caught:
        check_slot_is_there(slot, "s", server)
    assert type(caught.value) is error
    assert caught.value.slot == "s"


@pytest.mark.parametrize(
    ("version", "is_standby", "two_phase", "expected"),
    [
        (160014, False, False, False),
        (170005, False, False, True),
        (170005, False, True, False),
        (180004, False, True, True),
        (180004, True, False, False),
    ],
)
def test_slots_are_made_for_failover_where_the_server_can(
    version, is_standby, two_phase, expected
) -> None:
    assert takes_failover(version, is_standby=is_standby, two_phase=two_phase) is expected
