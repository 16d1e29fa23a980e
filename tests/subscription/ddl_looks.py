"""The table of DDL without a stream: what looks at the catalog make of each row's statements.

A table whose rows the stream explains is left alone by a look; one whose rows it does not
explain has to be asked for again, or silence follows. No Spark, no capture, no target: all rows
take seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import psycopg
from tests.support.databases import Database
from tests.support.ddl.execute import execute
from tests.support.ddl.row import Outcome, Publisher, Row

from pgsluice.catalog.publications.managed import ensure_publications
from pgsluice.catalog.server import insert_lsn, wal_timeline
from pgsluice.config.model import PublicationsConfig, SubscriptionConfig
from pgsluice.events import MetricsEvent
from pgsluice.lsn import Lsn
from pgsluice.published.discovery import ReplicatedTable, source_tables
from pgsluice.published.publication_rules import PublicationRules
from pgsluice.replication import connect_sql
from pgsluice.sinks.target import TableOptions
from pgsluice.spool import (
    Owner,
    SourceView,
    SpoolIdentity,
    SubscriptionRecord,
    TableRecord,
    TableState,
)
from pgsluice.subscription.lifecycle.tables import SubscriptionTables
from pgsluice.subscription.refresh.catalog_look import CatalogLook, SourceState

_NAME = "pgsluice"
_IDENTITY = SpoolIdentity(system_identifier="1", timeline=1, database="d", slot="s")
_RECORD = SubscriptionRecord("lake", Owner.CONFIG, "current", "delta", Lsn(1), Lsn(1))


@dataclass
class _Store:
    """The record's file, in memory."""

    record: SubscriptionRecord = _RECORD

    def save(self, record: SubscriptionRecord) -> None:
        self.record = record


@dataclass
class Looks:
    """Rows of one publisher in an empty database, and what looks say of their tables.

    Attributes:
        copied, replaced, marked: titles of tables that a look, after the first one, asked to copy,
            asked to replace partitions of, or marked to be verified.
    """

    database: Database
    rows: Sequence[Row]
    store: _Store = field(default_factory=_Store)
    copied: set[str] = field(default_factory=set)
    replaced: set[str] = field(default_factory=set)
    marked: set[str] = field(default_factory=set)

    def run(self, *, looks_between: bool) -> dict[str, Outcome]:
        """Execute everything; look at the end, or after each statement.

        Returns:
            row -> ``COPIED`` if a look asked to copy a table of the row, else ``REPLACED`` if one
            asked for partitions of it, else ``VERIFIED`` if one marked it to be verified, else
            ``NOTHING``.
        """
        self._execute(lambda row: (row.setup,))
        self._look()
        self.copied.clear()
        self._execute(lambda row: (row.before,))
        for number in range(max(len(row.ddl) for row in self.rows)):
            self._execute(lambda row, at=number: row.ddl[at : at + 1])
            if looks_between:
                self._look()
        self._execute(lambda row: (row.after,))
        self._look()
        return {row.name: self._outcome(self._titles(row)) for row in self.rows}

    def _outcome(self, titles: set[str]) -> Outcome:
        if self.copied & titles:
            return Outcome.COPIED
        if self.replaced & titles:
            return Outcome.REPLACED
        return Outcome.VERIFIED if self.marked & titles else Outcome.NOTHING

    def _titles(self, row: Row) -> set[str]:
        tables = [row.sql(table) for table in (*row.tables, *(row.first or ()))]
        return {table if "." in table else f"public.{table}" for table in tables}

    def _execute(self, texts: Callable[[Row], Sequence[str]]) -> None:
        """Texts of every row."""
        with self.database.connect() as connection:
            for row in self.rows:
                execute(connection, row, *texts(row))

    def _look(self) -> None:
        """One look, and the copies that it asks for."""
        with connect_sql(self.database.dsn) as connection:
            publications = self._publications(connection)
            source = source_tables(connection, publications, self._rules)
            tables = SubscriptionTables(self.store, _ignore)
            known = self.store.record.tables
            timeline = wal_timeline(connection)
            state = SourceState(source, insert_lsn(connection), timeline, self._rules is not None)
            look = CatalogLook(connection, _IDENTITY, state, known, TableOptions())
            look.record(tables, _new_record, copy_data=True)
        fingerprints = {table.facts.oid: table.fingerprint.to_text() for table in source}
        record = self.store.record
        waiting = {oid: table for oid, table in record.tables.items() if table.is_to_copy}
        for table in waiting.values():
            (self.replaced if table.replaces_partitions else self.copied).add(table.title)
        self.marked |= {t.title for t in record.tables.values() if t.pending.verification}
        copied = {
            oid: replace(
                table.in_state(TableState.READY),
                copy_number=table.copy_number + 1,
                source=replace(table.source, fingerprint=fingerprints[oid]),
            )
            for oid, table in waiting.items()
        }
        self.store.record = replace(record, tables={**record.tables, **copied})

    @cached_property
    def _rules(self) -> PublicationRules | None:
        if self.rows[0].publisher is not Publisher.OURS:
            return None
        subscription = SubscriptionConfig(
            name="lake",
            sink={"type": "delta", "path": "lake/{table}"},
            publications=tuple(row.slug for row in self.rows),
        )
        statements = ";".join(row.sql(row.statement) for row in self.rows)
        return PublicationRules(PublicationsConfig(sql=statements), subscription)

    def _publications(self, connection: psycopg.Connection[tuple[object, ...]]) -> list[str]:
        if self.rows[0].publisher is Publisher.SERVER:
            return [row.sql(name) for row in self.rows for name in row.publications]
        return list(ensure_publications(connection, [_NAME]).names)


def _new_record(table: ReplicatedTable) -> TableRecord:
    return TableRecord(
        table.facts.namespace, table.facts.name, source=SourceView(relations=table.relations)
    )


def _ignore(_: MetricsEvent) -> None:
    return
