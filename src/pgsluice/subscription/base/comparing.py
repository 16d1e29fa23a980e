"""Compares one table in a snapshot of the source with the rows of its target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from pgsluice.catalog.tables.locks import lock_for_reading
from pgsluice.catalog.tables.tables import has_name, leaf_filenodes
from pgsluice.config import SubscriptionConfig
from pgsluice.errors import Failure, PgsluiceError, SourceRefused
from pgsluice.published.discovery import ReplicatedTable
from pgsluice.rejects.fold import Reject
from pgsluice.rejects.keys import key_values
from pgsluice.replication import server_message
from pgsluice.sinks.identity import CURRENT
from pgsluice.sinks.renamed import rows_at_source
from pgsluice.sinks.target import TableOptions, target_table
from pgsluice.spool import TableRecord
from pgsluice.subscription.base.barrier import StandingTable
from pgsluice.verification import (
    EVERYTHING,
    ComparedTable,
    Comparison,
    DeltaRows,
    Extent,
    LogRows,
    TargetRows,
    UndeletedRows,
    compare,
)
from pgsluice.verification.digest import Key
from pgsluice.verification.masked_text import SourceMask
from pgsluice.verification.target import Rejected

LOCK_TIMEOUT_S = 30

Session = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class InterruptibleRows:
    """The rows of a target; reading them ends with an error soon after ``is_stopping`` is true."""

    schema: pa.Schema
    read: Callable[[Sequence[str]], Iterable[pa.RecordBatch]]
    is_stopping: Callable[[], bool]

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows' values in these columns."""
        for batch in self.read(columns):
            if self.is_stopping():
                raise PgsluiceError("asked to stop")
            yield batch


def standing_rows(
    table: StandingTable, source: ReplicatedTable, options: TableOptions, reading: Mapping[str, str]
) -> TargetRows:
    """The rows of a Delta table at a position, with the source's names of columns.

    Args:
        reading: deltalake's options for reading it.

    Raises:
        PgsluiceError: there is no such table.
    """
    facts = source.facts
    rows = DeltaRows(table.target, table.version, reading)
    return rows_at_source(rows, options.names, f"{facts.root_namespace}.{facts.root_name}")


def compare_standing(
    session: Session,
    source: ReplicatedTable,
    rows: TargetRows,
    options: TableOptions,
    *,
    max_keys: int,
    most_in_ranges: float = 0.0,
    has_small_ranges: bool = False,
    helpers: Sequence[Session] = (),
    rejects: Iterable[Reject] = (),
    extent: Extent = EVERYTHING,
) -> Comparison:
    """Compare a table with its target, which is at the snapshot's position.

    Args:
        session: a session that uses the snapshot of the source.
        source: the table, as the snapshot sees it.
        rows: the rows of the target, with the source's names; of a change log, all of them.
        max_keys, most_in_ranges, has_small_ranges: see :func:`pgsluice.verification.compare`.
        helpers: further sessions with the same snapshot, which share the reading.
        rejects: those of the table that are open at the position.
        extent: how much is compared, and how fast.

    Raises:
        SourceRefused: the table was renamed, or rewritten after the snapshot, so that the snapshot
            does not see its rows.
        PgsluiceError: a column cannot be compared.
        psycopg.Error: the source failed.
    """
    facts = source.facts
    target = target_table(facts, replace(options, mode=CURRENT), source.columns)
    if options.mode.log is not None:
        rows = LogRows(rows, target.key, options.mode.log.prefix)
    elif options.mode.history is not None:
        rows = UndeletedRows(rows, options.mode.history.valid_to)
    elif options.mode.deleted_column is not None:
        rows = UndeletedRows(rows, options.mode.deleted_column)
    # Rolled back, which gives the table's lock back.
    with session.transaction(force_rollback=True):
        _lock(session, source)
        table = ComparedTable.named(session, facts.namespace, facts.name, with_generated=True)
        return compare(
            session,
            replace(
                table,
                row_filter=source.row_filter,
                unlisted=source.unlisted,
                masks={
                    name: SourceMask(mask.kind.value, mask.key)
                    for name, mask in options.masks(facts.root_namespace, facts.root_name).items()
                },
            ),
            rows,
            key=target.key,
            columns=target.schema.names,
            max_keys=max_keys,
            most_in_ranges=most_in_ranges,
            has_small_ranges=has_small_ranges,
            helpers=helpers,
            rejected=_rejected(rejects, target.key),
            extent=extent,
        )


def can_replace_rows(
    subscription: SubscriptionConfig, table: TableRecord, comparison: Comparison
) -> bool:
    """Whether a repair can replace single rows of a target that differs; else it copies the table.

    Rows are found by their key, and a range of keys has to have the source's rows and no others.
    """
    is_plain = subscription.mode == "current" and subscription.deleted_column is None
    return is_plain and comparison.has_key and not table.rejects


def _rejected(rejects: Iterable[Reject], key: Sequence[str]) -> Rejected:
    by_column: dict[str, dict[Key, str]] = {}
    for each in rejects:
        values = key_values(each.key)
        if values.keys() == {*key}:
            of_column = by_column.setdefault(each.column, {})
            of_column[tuple(values[name] for name in key)] = each.text
    return by_column


def failure_reason(error: Exception) -> str:
    """Why a table could not be compared, as text for the user."""
    if isinstance(error, psycopg.Error):
        return f"the source cannot be read: {server_message(error)}"
    return Failure.of(error).message


def _lock(session: Session, source: ReplicatedTable) -> None:
    """Lock the table against rewrites, and check that the snapshot still sees its rows."""
    facts = source.facts
    session.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s'")
    name = sql.Identifier(facts.namespace, facts.name)
    lock_for_reading(session, name, with_partitions=facts.kind == "p")
    if not has_name(session, facts.oid, facts.namespace, facts.name):
        raise SourceRefused("renamed at the source after the snapshot: verify it again")
    leaves = leaf_filenodes(session, [facts.oid])[facts.oid]
    if any(leaf.now != leaf.in_snapshot for leaf in leaves.values()):
        raise SourceRefused(
            "rewritten at the source after the snapshot (TRUNCATE, ALTER TABLE, CLUSTER …): "
            "verify it again"
        )
