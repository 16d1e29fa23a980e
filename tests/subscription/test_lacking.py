"""What each target lacks, from the record and the spool's files alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import NativeFile
from tests.support.spools import INT4, START, SpoolMaker, relation

from pgsluice.lsn import Lsn
from pgsluice.spool import Owner, SpoolReader, SubscriptionRecord, TableRecord, TableState
from pgsluice.spool.segments.header import Header
from pgsluice.spool.segments.segment import read_header
from pgsluice.subscription.batches.lacking import Lacking, LackingChanges
from pgsluice.wire import Insert, Message, TupleData

A, B, C = 16401, 16402, 16403
PAST_EPOCH_S = 946_684_800
"""A transaction of :class:`SpoolMaker` commits so many seconds after 2000 as its xid says."""


def change(oid: int) -> list[Message]:
    return [relation(oid, f"t{oid}", [("id", INT4)]), Insert(oid, TupleData.of("1"))]


@pytest.fixture
def maker(tmp_path: Path) -> Iterator[SpoolMaker]:
    maker = SpoolMaker(tmp_path / "spool")
    yield maker
    maker.close()


def record_of(position: int, **at: TableRecord) -> SubscriptionRecord:
    tables = {{"a": A, "b": B, "c": C}[name]: table for name, table in at.items()}
    lsn = Lsn(position)
    return SubscriptionRecord("lake", Owner.CONFIG, "current", "x", lsn, lsn, tables)


def table(at: int, state: TableState = TableState.READY, **more: object) -> TableRecord:
    return replace(TableRecord("public", "t", state, Lsn(at)), **more)


@pytest.mark.parametrize("state", set(TableState) - {TableState.UNPUBLISHED})
def test_a_target_lacks_the_oldest_change_past_its_own_position(
    maker: SpoolMaker, state: TableState
) -> None:
    """Whatever the state, and also where the subscription's position is past it."""
    maker.segment(change(B))
    maker.segment(change(A))
    end = maker.segment(change(A), change(B))
    record = record_of(end, a=table(START, state), b=table(START + 0x100), c=table(START))
    assert LackingChanges(SpoolReader(maker.path)).of(record) == {
        A: Lacking(Lsn(START + 0x100), PAST_EPOCH_S + 702),
        B: Lacking(Lsn(START + 0x200), PAST_EPOCH_S + 703),
    }


def test_a_table_that_gets_no_changes_any_more_lacks_none(maker: SpoolMaker) -> None:
    maker.segment(change(A))
    record = record_of(START, a=table(START, TableState.UNPUBLISHED))
    assert LackingChanges(SpoolReader(maker.path)).of(record) == {}


def test_changes_before_a_position_inside_of_a_segment_do_not_count(maker: SpoolMaker) -> None:
    """As of a copy, whose snapshot is between two transactions."""
    maker.segment(change(A), change(B), change(A), change(B))
    record = record_of(START, a=table(START + 0x300), b=table(START + 0x300))
    lacking = LackingChanges(SpoolReader(maker.path)).of(record)
    assert {oid: each.after for oid, each in lacking.items()} == {B: START + 0x300}


def test_a_search_goes_on_where_the_last_one_ended(maker: SpoolMaker) -> None:
    reader = SpoolReader(maker.path)
    lacking = LackingChanges(reader)
    maker.segment(change(A))
    parked = table(START, TableState.PARKED)
    behind = record_of(START, a=table(START), b=parked)
    first = lacking.of(behind)
    assert first.keys() == {A}
    assert lacking.of(behind) == first
    end = maker.segment(change(C))
    caught_up = record_of(end, a=table(end), b=parked)
    assert lacking.of(caught_up) == {}
    maker.segment(change(B))
    maker.segment(change(A))
    after = lacking.of(caught_up)
    assert {oid: each.after for oid, each in after.items()} == {B: end, A: end + 0x100}
    # A copy that begins anew, at an earlier position than before.
    copied = record_of(end, a=table(START, TableState.DATA_COPY), b=parked)
    assert lacking.of(copied)[A].after == START


def test_only_headers_that_somebody_asks_for_are_read(
    maker: SpoolMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the status of a thousand tables costs the headers past the first that waits."""
    for _ in range(5):
        maker.segment(change(A))
    end = maker.segment(change(B))
    reader, read = SpoolReader(maker.path), list[str]()

    def noting(file: NativeFile, name: str) -> Header:
        read.append(name)
        return read_header(file, name)

    monkeypatch.setattr("pgsluice.spool.segments.segment.read_header", noting)
    LackingChanges(reader).of(record_of(end, a=table(START + 0x100), b=table(end)))
    assert read == [info.name for info in reader.all_segments() if info.start == START + 0x100]


def test_after_so_many_segments_it_is_not_known_what_a_target_lacks(maker: SpoolMaker) -> None:
    for _ in range(3):
        maker.segment(change(A))
    end = maker.segment(change(B))
    record = record_of(START, a=table(START), b=table(START), c=table(end))
    some = LackingChanges(SpoolReader(maker.path), most_segments=2)
    assert some.of(record).keys() == {A}
    assert some.unknown == {B}
    enough = LackingChanges(SpoolReader(maker.path), most_segments=4)
    assert enough.of(record).keys() == {A, B}
    assert not enough.unknown
