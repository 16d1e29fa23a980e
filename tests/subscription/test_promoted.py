"""What a promotion means for a subscription: copies past it are made again, positions hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.subscription.running.test_driver import config_of, driver_of
from tests.support.spools import SpoolMaker, orders, stream

from pgsluice.copy.job import CopyResult
from pgsluice.errors import SpoolError
from pgsluice.facts import RelationFacts
from pgsluice.lsn import Lsn
from pgsluice.published.discovery import ReplicatedTable
from pgsluice.schema_rules.known import ColumnState, SourceFingerprint
from pgsluice.sinks.target import TableOptions
from pgsluice.snapshots.snapshot import Snapshot
from pgsluice.spool import (
    AddedColumns,
    Owner,
    Pending,
    RecordStore,
    SourceView,
    SpoolIdentity,
    SubscriptionRecord,
    TableRecord,
    TableState,
    find_record,
)
from pgsluice.subscription.copies.results import copy_event
from pgsluice.subscription.lifecycle.table_events import CopyNeeded
from pgsluice.subscription.lifecycle.tables import SubscriptionTables
from pgsluice.subscription.lifecycle.transitions import Attempts, next_state
from pgsluice.subscription.refresh.catalog_look import CatalogLook, SourceState
from pgsluice.subscription.running.run import open_record

FIRST = SpoolIdentity(system_identifier="1", timeline=1, database="d", slot="s")
SECOND = replace(FIRST, timeline=2, history=((1, Lsn(500)),))
TABLE = TableRecord("public", "t", TableState.DATA_COPY)


def copied(position: int, timeline: int) -> TableRecord:
    snapshot = Snapshot("00000003-1", Lsn(position), timeline)
    event = copy_event(CopyResult(1, 0), 0, snapshot)
    return next_state(TABLE.state, TABLE, Attempts(), event).table


def after_a_look(table: TableRecord, identity: SpoolIdentity) -> TableRecord:
    if identity.has(table.copied.timeline, table.copied.position):
        return table
    return next_state(table.state, table, Attempts(), CopyNeeded("why")).table


@pytest.mark.parametrize(
    ("what", "table", "identity", "state"),
    [
        ("no promotion", copied(600, 1), FIRST, TableState.COPIED),
        ("before the switch point", copied(500, 1), SECOND, TableState.COPIED),
        ("after it, of the old primary", copied(501, 1), SECOND, TableState.INITIALISE),
        ("after it, of the new primary", copied(501, 2), SECOND, TableState.COPIED),
        ("of one that capture has not followed yet", copied(501, 2), FIRST, TableState.COPIED),
        ("not known of which", copied(501, 0), SECOND, TableState.COPIED),
    ],
)
def test_a_copy_of_what_is_no_more_is_made_again(what, table, identity, state) -> None:
    assert after_a_look(table, identity).state is state, what


def test_what_was_applied_since_does_not_hide_it() -> None:
    table = replace(copied(501, 1), applied_through=Lsn(900), state=TableState.READY)
    assert after_a_look(table, SECOND).state is TableState.INITIALISE
    parked = replace(table, state=TableState.PARKED)
    assert after_a_look(parked, SECOND) == parked


def test_the_record_keeps_where_a_copy_was_taken(tmp_path: Path) -> None:
    record = SubscriptionRecord(
        "lake", Owner.CONFIG, "current", "delta", Lsn(1), Lsn(1), {7: copied(501, 3)}
    )
    RecordStore.create(tmp_path, record)
    table = find_record(tmp_path, "lake").tables[7]
    assert (table.copied.position, table.copied.timeline) == (Lsn(501), 3)


def test_the_identity_keeps_the_history() -> None:
    assert SpoolIdentity.from_json(SECOND.to_json(), "identity.json") == SECOND


@pytest.mark.parametrize(
    ("looked_at", "looked_on", "is_void"),
    [(500, 1, False), (501, 1, True), (501, 2, False), (501, 0, False)],
)
def test_a_look_past_a_promotion_is_void(looked_at: int, looked_on: int, *, is_void: bool) -> None:
    table = looked(Lsn(looked_at), looked_on)
    seen = after_another_look(table, {1: ID})
    assert bool(seen.pending.verification) is is_void
    assert (seen.source.lsn, seen.source.timeline) == (
        (Lsn(700), 2) if is_void else (Lsn(looked_at), looked_on)
    ), "an equal fingerprint is as old as it was"


@pytest.mark.parametrize(("looked_at", "state"), [(500, "r"), (501, "i")])
def test_columns_found_past_a_promotion_are_not_added(looked_at: int, state: str) -> None:
    due = replace(
        looked(Lsn(looked_at), 1), pending=Pending(columns=AddedColumns(Lsn(looked_at), "{}"))
    )
    assert after_another_look(due, {1: ID}).state == state
    # The target may have a column of a look that does not count: the new one has another value.
    found = after_another_look(looked(Lsn(looked_at), 1), {1: ID, 2: ColumnState("c", 1)})
    due_after = None if found.pending.columns is None else found.pending.columns.after
    assert (found.state, due_after) == (state, Lsn(700) if state == "r" else None)


ID = ColumnState("id", 1)


def looked(at: Lsn, timeline: int) -> TableRecord:
    text = fingerprint({1: ID}).to_text()
    return TableRecord("s", "t", TableState.READY, source=SourceView(text, (), at, timeline))


def fingerprint(columns: dict[int, ColumnState]) -> SourceFingerprint:
    return SourceFingerprint({7: 1}, columns, frozenset({"insert"}))


def after_another_look(table: TableRecord, columns: dict[int, ColumnState]) -> TableRecord:
    """The table after a look of the new primary, at 700."""
    record = SubscriptionRecord(
        "lake", Owner.CONFIG, "current", "delta", Lsn(1), Lsn(1), {7: table}
    )
    store = SimpleNamespace(record=record, save=lambda _: None)
    tables = SubscriptionTables(cast(Any, store), lambda _: None)
    answers = SimpleNamespace(fetchall=list)
    connection = SimpleNamespace(
        info=SimpleNamespace(server_version=180000), execute=lambda *_: answers
    )
    facts = RelationFacts(7, "s", "t", "r", 7, "s", "t", ("id",), ("id",), "d", 1, ())
    look = CatalogLook(
        cast(Any, connection),
        SECOND,
        SourceState([ReplicatedTable(facts, None, None, fingerprint(columns))], Lsn(700), 2),
        record.tables,
        TableOptions(),
    )
    look.record(tables, lambda _: table, copy_data=True)
    return tables.record.tables[7]


# Positions


def test_who_registers_late_misses_nothing_of_a_new_primary(maker: SpoolMaker) -> None:
    """The frontier was past the switch point then: a position there would hide commits."""
    last = maker.segment(orders(1))
    maker.writer.advance_frontier(Lsn(last + 0x5000))
    configured = driver_of(maker)  # the spool's first; the next ones start at its end
    late = configured.subscription.model_copy(update={"name": "late"})
    record = open_record(config_of(maker), late).record
    query = stream(maker, subscription="a_query")
    begin = query.initialOffset()
    # Promoted right at the last commit; the new primary commits where the frontier was.
    maker.writer.lower_frontier(last)
    end = maker.segment(orders(2))
    assert record.position < end < last + 0x5000
    assert query.latestOffset(begin, ReadAllAvailable())["lsn"] == str(end)
    assert len(query.partitions(begin, {"lsn": str(end)})) == 1


def test_the_frontier_goes_down_durably_and_never_below_a_commit(maker: SpoolMaker) -> None:
    last = maker.segment(orders(1))
    maker.writer.advance_frontier(Lsn(last + 0x5000))
    maker.writer.lower_frontier(Lsn(last + 0x6000))
    assert maker.writer.frontier == last + 0x5000
    maker.writer.lower_frontier(Lsn(last + 0x10))
    assert maker.writer.frontier == maker.spool.frontier_file() == last + 0x10
    with pytest.raises(SpoolError, match="the spool has later commits"):
        maker.writer.lower_frontier(Lsn(last - 1))
    assert maker.writer.frontier == last + 0x10
