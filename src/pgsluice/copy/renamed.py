"""Copies of renamed tables, from the target under the old name to that of the new one.

The source is not read: the old target has every row, up to a position that its version names.
It is read at that version, so two tables may swap their targets, in any order and again after
a crash.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from pgsluice.errors import Failure, Remedy
from pgsluice.failpoints import failpoint
from pgsluice.lsn import Lsn
from pgsluice.sinks import make_sink
from pgsluice.sinks.contract import TargetIdentity, TargetTable
from pgsluice.sinks.fence import TableWriter, read_content
from pgsluice.spool import OldTarget


@dataclass(frozen=True, slots=True)
class RenamedWork:
    """One renamed table.

    Attributes:
        relation_oid: the table, or a partitioned table's root.
        namespace, name: the new name.
        copy_number: the number that the new target gets; higher than any before.
        old_target: where the rows are.
        position: up to which the old target is applied.
        predecessor_oids, may_replace_foreign_target: see
            :class:`pgsluice.sinks.contract.TargetTable`.
    """

    relation_oid: int
    namespace: str
    name: str
    copy_number: int
    old_target: OldTarget
    position: Lsn
    predecessor_oids: tuple[int, ...] = ()
    may_replace_foreign_target: bool = False

    def to_bytes(self) -> bytes:
        """As it travels to a task."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, payload: bytes) -> RenamedWork:
        """Read what :meth:`to_bytes` wrote."""
        raw = json.loads(payload)
        raw["old_target"] = OldTarget(*raw["old_target"])
        raw["position"] = Lsn(raw["position"])
        raw["predecessor_oids"] = tuple(raw["predecessor_oids"])
        return cls(**raw)


@dataclass(frozen=True, slots=True)
class RenamedResult:
    """What one copy did.

    Attributes:
        version: the new target's; -1: the old target cannot give the rows.
        remedy: what to do about ``error``; None without one.
        error: the message.
        details: see :class:`pgsluice.errors.Failure`.
    """

    relation_oid: int
    version: int = -1
    remedy: Remedy | None = None
    error: str | None = None
    details: str | None = None


@dataclass(frozen=True, slots=True)
class CopyRenamed:
    """The function that runs in the tasks; it pickles.

    Attributes:
        spool_id: the spool that the targets belong to.
        sink: the sink's configuration.
    """

    spool_id: str
    sink: dict[str, Any]

    def run(self, payload: bytes) -> RenamedResult:
        """Copy one table."""
        work = RenamedWork.from_bytes(payload)
        try:
            return RenamedResult(work.relation_oid, self._copy(work))
        except Exception as error:
            failure = Failure.of(error)
        return RenamedResult(
            work.relation_oid,
            remedy=failure.remedy,
            error=failure.message,
            details=failure.details,
        )

    def _copy(self, work: RenamedWork) -> int:
        old, sink = work.old_target, make_sink(self.sink)
        old_table = TargetTable(old.namespace, old.name, pa.schema([]), ())
        had = TargetIdentity(self.spool_id, work.relation_oid, old.copy_number)
        content = read_content(sink, old_table, had, old.version, work.position)
        if content is None:
            return -1
        table = TargetTable(
            work.namespace,
            work.name,
            content.schema,
            (),
            work.predecessor_oids,
            work.may_replace_foreign_target,
        )
        identity = TargetIdentity(self.spool_id, work.relation_oid, work.copy_number)
        # In two halves: deltalake must not be asked for rows from inside of its own writing.
        writer = TableWriter(sink, table, identity)
        staged = writer.stage_load(content.rows, work.position)
        applied = writer.commit_load([staged], work.position)
        failpoint("copy.renamed")
        return applied.version if applied.copy_number in (0, work.copy_number) else -1
