"""Copies of a subscription's tables: which are due, and their way through the states.

``i`` (to be copied) becomes ``d`` durably before the snapshot is taken: from then on the spool
keeps what comes after the snapshot, and a copy that a crash cut off is seen and made again,
under a higher copy number. ``d`` becomes ``f`` when the target's commit stands. From there the
table's own position does the rest.

A snapshot may have to wait for open transactions at the source. The other tables go on
meanwhile; they wait while rows are copied.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg

from pgsluice.catalog import leaf_filenodes
from pgsluice.config import Config
from pgsluice.copy import (
    CopyResult,
    CopyTables,
    CopyWork,
    Snapshot,
    import_snapshot,
    temporary_snapshot,
)
from pgsluice.errors import PgsluiceError, Remedy, SinkError, SourceUnreachable
from pgsluice.events import CopyProgress
from pgsluice.events import TableState as StateChanged
from pgsluice.lsn import Lsn
from pgsluice.replication import connect_sql, source_errors
from pgsluice.spark.tasks import run_tasks
from pgsluice.spool import Spool, TableRecord, TableState
from pgsluice.subscription.discovery import SourceTable, source_tables
from pgsluice.subscription.driver import SubscriptionDriver
from pgsluice.subscription.known_tables import add, compared, followed, remove

ATTEMPTS = 5
"""How often a copy is tried under a new snapshot before its table is parked."""
SNAPSHOT_TIMEOUT_S = 300.0
_PROGRESS_S = 0.5

# Only the server knows how far a COPY is (14+); the reader's application_name says which.
_PROGRESS = """
SELECT a.application_name, p.tuples_processed
FROM pg_catalog.pg_stat_progress_copy p JOIN pg_catalog.pg_stat_activity a USING (pid)
WHERE a.application_name LIKE 'pgsluice copy %'
"""


class TableCopies:
    """Finds tables that have to be copied, and copies them.

    Args:
        driver: the subscription; its lock is held while rows are copied.
        config: the whole configuration.
    """

    def __init__(self, driver: SubscriptionDriver, config: Config) -> None:
        self._driver = driver
        self._config = config

    def discover(self) -> None:
        """Compare what the publications send with the record: new tables are taken into it,
        and those whose rows changed without the stream telling are marked."""
        with (
            connect_sql(self._config.source.dsn) as connection,
            source_errors("looking for tables"),
        ):
            identity = Spool.open(self._config.spool.path).identity
            tables = source_tables(connection, self._publications(), self._driver.own)
            with self._driver.lock:
                record = self._driver.record
                known, left = dict(record.tables), dict(record.unpublished)
                live = {table.facts.oid for table in tables}
                for table in tables:
                    oid = table.facts.oid
                    if oid not in known:
                        add(table, self._new(table, record.position), known, left, live)
                    else:
                        known[oid] = compared(connection, known[oid], table)
                    known[oid] = followed(known[oid], identity)
                    if known[oid].is_active and table.rules is not None:
                        self._driver.rules[oid] = table.rules
                remove(known, left, known.keys() - live, has_own=self._driver.own is not None)
                self._driver.needs_look = False
                if (known, left) != (record.tables, record.unpublished):
                    self._driver.record = replace(record, tables=known, unpublished=left)
                    self._driver.save()

    def _publications(self) -> tuple[str, ...]:
        # Those that the stream is asked for now: ours may have a second one, and a new one
        # joins only when the spool has passed its creation.
        return Spool.open(self._config.spool.path).identity.publications

    def _new(self, table: SourceTable, position: Lsn) -> TableRecord:
        namespace, name = table.facts.namespace, table.facts.name
        copy_data = self._driver.subscription.copy_data
        return TableRecord(
            namespace=namespace,
            name=name,
            state=TableState.INITIALISE if copy_data else TableState.READY,
            applied_through=position,
            target=self._driver.location(namespace, name),
            relations=table.relations,
        )

    def request(self, oid: int) -> None:
        """Mark one table to be copied again, if the subscription still has it."""
        with self._driver.lock:
            if oid in self._driver.record.tables:
                self._driver.record = self._driver.record.to_copy(
                    oid, may_replace_foreign_target=True
                )
                self._driver.save()

    def pending(self) -> list[int]:
        """The tables that wait for a copy."""
        return [oid for oid, table in self._driver.record.tables.items() if table.is_to_copy]

    def run(self, first: Snapshot | None = None, stop: threading.Event | None = None) -> None:
        """Copy all tables that wait.

        Args:
            first: the new slot's own snapshot, for the first copies of all.
            stop: give up between attempts when it is set.

        Raises:
            SinkError: the target as a whole cannot be used.
            SourceRefused: no snapshot can be had.
            SourceUnreachable: no connection.
        """
        for attempt in range(1, ATTEMPTS + 1):
            if not self.pending() or (stop is not None and stop.is_set()):
                return
            self._begin()
            with (
                self._snapshot(first if attempt == 1 else None, stop) as snapshot,
                self._driver.lock,
            ):
                self._copy(snapshot, is_last=attempt == ATTEMPTS)

    def _begin(self) -> None:
        """Have the spool keep what follows the snapshot that is to come."""
        driver = self._driver
        with driver.lock:
            for oid in self.pending():
                driver.record = driver.record.with_table(
                    oid, state=TableState.DATA_COPY, applied_through=driver.record.position
                )
            driver.save()

    @contextmanager
    def _snapshot(self, first: Snapshot | None, stop: threading.Event | None) -> Iterator[Snapshot]:
        if first is not None:
            yield first
            return
        is_stopping = stop.is_set if stop is not None else bool
        with temporary_snapshot(
            self._config.source.dsn, SNAPSHOT_TIMEOUT_S, is_stopping
        ) as snapshot:
            yield snapshot

    def _copy(self, snapshot: Snapshot, *, is_last: bool) -> None:
        driver = self._driver
        with (
            connect_sql(self._config.source.dsn) as connection,
            source_errors("looking at the tables to copy"),
        ):
            found = source_tables(connection, self._publications(), driver.own)
            tables = {table.facts.oid: table for table in found}
            leaves = _leaves_in(snapshot, connection, tables)
        works = []
        records = dict(driver.record.tables)
        for oid, record in driver.record.tables.items():
            if record.state is not TableState.DATA_COPY:
                continue
            table = tables.get(oid)
            if table is None:
                records[oid] = replace(
                    record,
                    state=TableState.PARKED,
                    error="the server's publications do not send this table any more",
                )
                continue
            number = record.copy_number + 1
            fingerprint = replace(table.fingerprint, filenodes=leaves[oid])
            records[oid] = replace(
                record,
                copy_number=number,
                fingerprint=fingerprint.to_text(),
                relations=table.relations,
                error=None,
            )
            if table.rules is not None:
                driver.rules[oid] = table.rules
            works.append(
                CopyWork(
                    facts=table.facts,
                    namespace=record.namespace,
                    name=record.name,
                    columns=table.columns,
                    row_filter=table.row_filter,
                    copy_number=number,
                    replaces=record.predecessor_oids,
                    adopts=record.may_replace_foreign_target,
                )
            )
        driver.record = replace(driver.record, tables=records)
        driver.save()
        task = CopyTables(
            self._config.source.dsn, snapshot, driver.spool_id, driver.sink, driver.options
        )
        with self._progress(works):
            results = run_tasks(
                driver.spark,
                task.run,
                [work.to_bytes() for work in works],
                CopyResult,
                most_tasks=driver.subscription.copy_workers,
            )
        self._take(results, snapshot, is_last=is_last)

    def _take(self, results: Sequence[CopyResult], snapshot: Snapshot, *, is_last: bool) -> None:
        driver = self._driver
        records = dict(driver.record.tables)
        failure: PgsluiceError | None = None
        for result in results:
            table = _after(records[result.relation_oid], result, snapshot, is_last=is_last)
            records[result.relation_oid] = table
            if result.remedy is Remedy.STOP:
                failure = SinkError(result.error or "the target cannot be used")
            elif result.remedy is Remedy.WAIT and is_last:
                failure = SourceUnreachable(result.error or "the source went away")
            driver.report(
                StateChanged(
                    driver.subscription.name,
                    table.namespace,
                    table.name,
                    str(table.state),
                    table.error,
                )
            )
            if table.state is TableState.COPIED:
                driver.report(
                    CopyProgress(
                        driver.subscription.name,
                        table.namespace,
                        table.name,
                        result.rows,
                        result.rows,
                        is_done=True,
                    )
                )
        driver.record = replace(driver.record, tables=records)
        driver.save()
        if failure is not None:
            raise failure

    @contextmanager
    def _progress(self, works: Sequence[CopyWork]) -> Iterator[None]:
        """Report how far the copies are while the block runs; losing it loses nothing."""
        done = threading.Event()
        thread = threading.Thread(
            target=self._watch, args=(works, done), name="pgsluice-copy-progress", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _watch(self, works: Sequence[CopyWork], done: threading.Event) -> None:
        by_name = {f"pgsluice copy {w.facts.namespace}.{w.facts.name}"[:63]: w for w in works}
        try:
            with connect_sql(self._config.source.dsn) as connection:
                if connection.info.server_version < 140000:
                    return
                while not done.wait(_PROGRESS_S):
                    for name, rows in connection.execute(_PROGRESS).fetchall():
                        work = by_name.get(str(name))
                        if work is not None:
                            self._driver.report(
                                CopyProgress(
                                    self._driver.subscription.name,
                                    work.namespace,
                                    work.name,
                                    int(str(rows)),
                                )
                            )
        except Exception:
            # The picture is a convenience: whatever ails it is no reason to stop a copy.
            return


def _after(
    table: TableRecord, result: CopyResult, snapshot: Snapshot, *, is_last: bool
) -> TableRecord:
    """A table's record after its copy was tried."""
    if result.copy_number > table.copy_number:
        # The target is of a record that is lost; the next try begins past its copies.
        return replace(table, copy_number=result.copy_number)
    if result.remedy is None:
        return replace(
            table,
            state=TableState.COPIED,
            applied_through=snapshot.position,
            committed=snapshot.position,
            copied_at=snapshot.position,
            copied_on=snapshot.timeline,
            version=result.version,
            rows=result.rows,
            error=None,
            deferred=False,
            may_replace_foreign_target=False,
            predecessor_oids=(),
        )
    may_pass = result.remedy in (Remedy.STOP, Remedy.WAIT) or not is_last
    if result.remedy is Remedy.PARK or not may_pass:
        return replace(table, state=TableState.PARKED, error=result.error)
    return replace(table, error=result.error)


def _leaves_in(
    snapshot: Snapshot, connection: psycopg.Connection[Any], tables: Collection[int]
) -> dict[int, dict[int, int]]:
    """The tables' leaves and their files as the snapshot sees them. A partition that is
    attached later may have rows that are neither in the snapshot nor in the stream."""
    import_snapshot(connection, snapshot.name)
    return {
        oid: {leaf: file.in_snapshot for leaf, file in files.items()}
        for oid, files in leaf_filenodes(connection, tables).items()
    }
