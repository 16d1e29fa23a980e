"""A parked table is taken up by itself when the reason has ended that no catalog row shows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import psycopg
from tests.support.databases import MakeDatabase

from pgsluice.errors import ParkReason
from pgsluice.lsn import Lsn
from pgsluice.published.discovery import ReplicatedTable, source_tables
from pgsluice.replication import connect_sql
from pgsluice.schema_rules.known import cause_of_copy
from pgsluice.sinks.target import TableOptions
from pgsluice.spool import Copied, Owner, SpoolIdentity, SubscriptionRecord, TableRecord, TableState
from pgsluice.subscription.lifecycle.tables import SubscriptionTables
from pgsluice.subscription.refresh.catalog_look import CatalogLook, SourceState
from pgsluice.subscription.refresh.looks import files_of_rewritten

IDENTITY = SpoolIdentity(system_identifier="1", timeline=1, database="d", slot="s")
PARKED = TableRecord(
    "public", "t", TableState.PARKED, parked_for=ParkReason.REWRITTEN, error="rewritten"
)


def after_a_look(
    connection: psycopg.Connection[Any],
    table: ReplicatedTable,
    parked: TableRecord,
    settled: Collection[int] = (),
) -> TableState:
    """The state of a parked table, which was copied for the same reason before."""
    cause = cause_of_copy(parked.parked_for, table.fingerprint.to_text())
    known = {table.facts.oid: replace(parked, copied=Copied(cause=cause))}
    record = SubscriptionRecord("lake", Owner.CONFIG, "current", "delta", Lsn(1), Lsn(1), known)
    store = SimpleNamespace(record=record, save=lambda _: None)
    tables = SubscriptionTables(cast(Any, store), lambda _: None)
    state = SourceState([table], Lsn(9), 1)
    look = CatalogLook(connection, IDENTITY, state, known, TableOptions(), settled)
    look.record(tables, lambda _: parked, copy_data=True)
    return tables.record.tables[table.facts.oid].state


def test_a_table_that_was_rewritten_during_its_copies_is_copied_when_it_is_not_any_more(
    database: MakeDatabase,
) -> None:
    shop = database()
    shop.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    before: Mapping[int, Mapping[int, int]] = {}
    states = []
    with connect_sql(shop.dsn) as connection:
        for statement in ("TRUNCATE t", "VACUUM FULL t", "ANALYZE t"):
            shop.execute(statement)
            (table,) = source_tables(connection, ["p"])
            known = {table.facts.oid: PARKED}
            now = files_of_rewritten([table], known)
            settled = [oid for oid in now if now[oid] == before.get(oid)]
            before = now
            states.append(after_a_look(connection, table, PARKED, settled=settled))
    assert states == [TableState.PARKED, TableState.PARKED, TableState.INITIALISE]
