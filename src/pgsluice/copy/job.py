"""Copies as Spark tasks: one task for each table, and all read under the same snapshot."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from pgsluice.copy.reader import TableQuery, read_table
from pgsluice.copy.snapshot import Snapshot
from pgsluice.errors import Failure, ParkReason, Remedy, TableError
from pgsluice.facts import RelationFacts
from pgsluice.sinks import make_sink
from pgsluice.sinks.contract import TargetIdentity
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.target import TableOptions, column_type, target_table


@dataclass(frozen=True, slots=True)
class CopyWork:
    """One table to copy.

    Attributes:
        facts: the table, or a partitioned table's root.
        namespace: the target's schema name.
        name: the target's table name.
        columns: the columns that the server's publications send; None: all that are not
            generated.
        row_filter: the server's row filters, ORed; None: all rows.
        unlisted: column -> leaves in whose rows it is NULL, since their column lists leave it out.
        key_problem: why no key of the source holds for all leaves, and what to do.
        copy_number: the number that the target gets; higher than any before.
        predecessor_oids, may_replace_foreign_target: see
            :class:`pgsluice.sinks.contract.TargetTable`.
    """

    facts: RelationFacts
    namespace: str
    name: str
    columns: tuple[str, ...] | None
    row_filter: str | None
    copy_number: int
    predecessor_oids: tuple[int, ...] = ()
    may_replace_foreign_target: bool = False
    unlisted: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    key_problem: tuple[str, str] | None = None

    def to_bytes(self) -> bytes:
        """As it travels to a task."""
        return json.dumps(
            {
                "facts": self.facts.to_json(),
                "namespace": self.namespace,
                "name": self.name,
                "columns": self.columns,
                "row_filter": self.row_filter,
                "unlisted": dict(self.unlisted),
                "key_problem": self.key_problem,
                "copy_number": self.copy_number,
                "predecessor_oids": self.predecessor_oids,
                "may_replace_foreign_target": self.may_replace_foreign_target,
            }
        ).encode()

    @classmethod
    def from_bytes(cls, payload: bytes) -> CopyWork:
        """Read what :meth:`to_bytes` wrote."""
        raw = json.loads(payload)
        raw["facts"] = RelationFacts.from_json(raw["facts"])
        raw["predecessor_oids"] = tuple(raw["predecessor_oids"])
        raw["columns"] = tuple(raw["columns"]) if raw["columns"] is not None else None
        raw["unlisted"] = {name: tuple(leaves) for name, leaves in raw["unlisted"].items()}
        raw["key_problem"] = None if raw["key_problem"] is None else tuple(raw["key_problem"])
        return cls(**raw)


@dataclass(frozen=True, slots=True)
class CopyResult:
    """What one copy did.

    Attributes:
        copy_number: of the target's copy, where it is not of this one.
        remedy: what to do about ``error``; None when the copy is done.
        error: the message.
        details, reason: see :class:`pgsluice.errors.Failure`.
    """

    relation_oid: int
    rows: int = 0
    version: int = -1
    copy_number: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    remedy: Remedy | None = None
    error: str | None = None
    details: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class CopyTables:
    """The function that runs in the tasks; it pickles.

    Attributes:
        dsn: the source, as the executors reach it.
        snapshot: the snapshot that all tables are read under, and its position.
        spool_id: the spool whose stream the copies are joined to.
        sink: the sink's configuration.
        options: how tables travel.
    """

    dsn: str
    snapshot: Snapshot
    spool_id: str
    sink: dict[str, Any]
    options: TableOptions

    def run(self, payload: bytes) -> CopyResult:
        """Copy one table."""
        work = CopyWork.from_bytes(payload)
        oid = work.facts.oid
        started = time.monotonic()
        try:
            return self._copy(work, started)
        except Exception as error:
            failure = Failure.of(error)
        return CopyResult(
            oid,
            seconds=time.monotonic() - started,
            remedy=failure.remedy,
            error=failure.message,
            details=failure.details,
            reason=failure.reason,
        )

    def _copy(self, work: CopyWork, started: float) -> CopyResult:
        table = target_table(work.facts, self.options, work.columns)
        table = replace(
            table,
            namespace=work.namespace,
            name=work.name,
            predecessor_oids=work.predecessor_oids,
            may_replace_foreign_target=work.may_replace_foreign_target,
        )
        if work.key_problem is not None and not table.key:
            what, hint = work.key_problem
            raise TableError(
                what, hint=hint, table=f"{work.namespace}.{work.name}", reason=ParkReason.KEY
            )
        if not table.schema.names:
            title = f"{work.namespace}.{work.name}"
            raise TableError(
                f"{title} has no columns that are published",
                hint="add a column, or leave the table out of the publication",
                table=title,
                reason=ParkReason.COLUMNS,
            )
        by_name = {column.name: column for column in work.facts.columns}
        query = TableQuery(
            facts=work.facts,
            columns=tuple(table.schema.names),
            types=tuple(
                column_type(by_name[name], work.facts, self.options) for name in table.schema.names
            ),
            row_filter=work.row_filter,
            unlisted=work.unlisted,
        )
        identity = TargetIdentity(self.spool_id, work.facts.oid, work.copy_number)
        counted = _Counter(read_table(self.dsn, self.snapshot.name, query, table.schema))
        writer = TableWriter(make_sink(self.sink), table, identity)
        applied = writer.load(counted, self.snapshot.position)
        return CopyResult(
            relation_oid=work.facts.oid,
            rows=counted.rows,
            version=applied.version,
            bytes_written=applied.bytes_written,
            copy_number=applied.copy_number,
            seconds=time.monotonic() - started,
        )


class _Counter:
    """Counts the rows that pass."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.rows = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += len(batch)
            yield batch
