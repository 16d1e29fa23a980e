"""Looks and copies beside each other: a table is compared with what its copy's snapshot had."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import psycopg
import pytest
from tests.support.databases import MakeDatabase
from tests.support.spools import START, SpoolMaker

from pgsluice.errors import Failure, Remedy
from pgsluice.lsn import Lsn
from pgsluice.published.discovery import source_tables
from pgsluice.replication import connect_sql
from pgsluice.sinks.target import TableOptions
from pgsluice.spool import (
    Owner,
    Partitions,
    RecordStore,
    SourceView,
    SpoolIdentity,
    SubscriptionRecord,
    TableRecord,
    TableState,
)
from pgsluice.subscription.lifecycle.table_events import (
    LOOKS,
    BatchFailed,
    CopyBegun,
    CopyFinished,
    CopyPlanned,
)
from pgsluice.subscription.lifecycle.tables import SubscriptionTables
from pgsluice.subscription.refresh.catalog_look import CatalogLook, SourceState

Connection = psycopg.Connection[Any]
IDENTITY = SpoolIdentity(system_identifier="1", timeline=1, database="d", slot="s")
SNAPSHOT = Lsn(START + 100)


def subscription(maker: SpoolMaker, known: dict[int, TableRecord]) -> SubscriptionTables:
    record = SubscriptionRecord(
        "lake", Owner.CONFIG, "current", "delta", Lsn(START), Lsn(START), known
    )
    return SubscriptionTables(RecordStore.create(maker.path, record), lambda _: None)


def look_at(connection: Connection, tables: SubscriptionTables) -> None:
    """A look at the tables of the publication ``p``."""
    look = CatalogLook(
        connection,
        IDENTITY,
        SourceState(source_tables(connection, ["p"]), SNAPSHOT, 1),
        tables.record.tables,
        TableOptions(),
    )
    look.record(tables, lambda table: TableRecord("public", table.facts.name), copy_data=True)


def finished(position: Lsn) -> CopyFinished:
    return CopyFinished(position, timeline=1, version=0, rows=1)


@pytest.mark.parametrize("is_copied_meanwhile", [True, False])
def test_a_look_does_not_compare_a_table_with_a_copy_that_is_newer(
    is_copied_meanwhile: bool, maker: SpoolMaker, database: MakeDatabase
) -> None:
    shop = database()
    shop.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    with connect_sql(shop.dsn) as connection:
        (older,) = source_tables(connection, ["p"])
        shop.execute("ALTER TABLE t ADD n int DEFAULT 7")
        (newer,) = source_tables(connection, ["p"])
        oid = older.facts.oid
        known = TableRecord(
            "public", "t", TableState.READY, source=SourceView(older.fingerprint.to_text())
        )
        tables = subscription(maker, {oid: known})
        look = CatalogLook(
            connection,
            IDENTITY,
            SourceState([older], Lsn(START), 1),
            tables.durable.tables,
            TableOptions(),
        )
        if is_copied_meanwhile:
            tables.request_copy(oid)
            tables.apply(oid, CopyBegun(Lsn(START)))
            tables.apply(oid, CopyPlanned(newer.fingerprint.to_text()))
            tables.apply(oid, finished(SNAPSHOT))
        before = tables.record.tables[oid]
        look.record(tables, lambda _: known, copy_data=True)
        assert tables.record.tables[oid] == before
        assert look.is_whole is not is_copied_meanwhile


def test_when_a_copy_ends_the_last_look_counts_only_up_to_its_snapshot(maker: SpoolMaker) -> None:
    """It was done during the copy, and has not compared the table."""
    copied = TableRecord("public", "t", TableState.DATA_COPY, copy_number=1)
    for looked_through, counts in ((SNAPSHOT + 50, SNAPSHOT), (SNAPSHOT - 50, SNAPSHOT - 50)):
        tables = subscription(maker, {1: replace(copied, applied_through=Lsn(START))})
        tables.keep_look(Lsn(looked_through))
        assert tables.apply(1, finished(SNAPSHOT)).table.state is TableState.COPIED
        assert tables.durable.looked_through == counts


def test_looks_that_do_not_count_any_more_lead_to_no_copy(maker: SpoolMaker) -> None:
    """Copies that end beside a table whose changes wait for a look take the looks back."""
    copied = TableRecord("public", "t", TableState.DATA_COPY, applied_through=Lsn(START))
    waiting = TableRecord("public", "waiting", TableState.READY)
    known = {1: waiting, **{oid: replace(copied, name=f"t{oid}") for oid in range(2, 5)}}
    tables = subscription(maker, known)
    wants_look = BatchFailed(Failure(Remedy.LOOK, "a look has to find it"), now=0)
    for oid in range(2, 5):
        tables.apply(1, wants_look)
        tables.keep_look(SNAPSHOT + 50)
        tables.apply(oid, finished(SNAPSHOT))
    assert tables.apply(1, wants_look).table.state is TableState.READY
    for _ in range(LOOKS):
        tables.keep_look(SNAPSHOT + 50)
        state = tables.apply(1, wants_look).table.state
    assert state is TableState.INITIALISE


def test_a_table_that_is_renamed_while_its_partitions_are_replaced_is_copied(
    maker: SpoolMaker, database: MakeDatabase
) -> None:
    """Nothing is at the target of the new name that rows of partitions could come to."""
    shop = database()
    shop.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    with connect_sql(shop.dsn) as connection:
        (seen,) = source_tables(connection, ["p"])
        known = TableRecord(
            "public",
            "t",
            TableState.DATA_COPY,
            source=SourceView(seen.fingerprint.to_text()),
            version=3,
            committed=SNAPSHOT,
            copying=Partitions((7,)),
        )
        tables = subscription(maker, {seen.facts.oid: known})
        shop.execute("ALTER TABLE t RENAME TO u")
        look_at(connection, tables)
    renamed = tables.record.tables[seen.facts.oid]
    assert (renamed.name, renamed.state, renamed.copying) == ("u", TableState.INITIALISE, None)


@pytest.mark.pg(">= 13")
def test_partitions_that_come_while_others_are_replaced_are_replaced_next(
    maker: SpoolMaker, database: MakeDatabase
) -> None:
    """They may go again, or be changed while they are detached: the target may have their rows."""
    shop = database()
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (1) TO (2)",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    with connect_sql(shop.dsn) as connection:
        (seen,) = source_tables(connection, ["p"])
        oid = seen.facts.oid
        known = TableRecord(
            "public",
            "t",
            TableState.DATA_COPY,
            source=SourceView(seen.fingerprint.to_text()),
            copying=Partitions(gone_bounds=("id > 9",)),
        )
        tables = subscription(maker, {oid: known})
        shop.execute(
            *(f"CREATE TABLE t_{n} PARTITION OF t FOR VALUES FROM ({n}) TO ({n + 1})"
              for n in (2, 3))
        )  # fmt: skip
        ((kept, gone),) = shop.execute("SELECT 't_2'::regclass::oid, 't_3'::regclass::oid")
        look_at(connection, tables)
        waiting = tables.record.tables[oid]
        assert replace(waiting, source=SourceView()) == replace(known, source=SourceView())
        shop.execute("DROP TABLE t_3")
        look_at(connection, tables)
        tables.apply(oid, CopyFinished(SNAPSHOT, timeline=1, version=0, rows=1))
        look_at(connection, tables)
        replaced = tables.record.tables[oid]
    assert (replaced.state, replaced.partitions.load) == (TableState.DATA_COPY, ())
    assert replaced.partitions.gone == (kept, gone)
