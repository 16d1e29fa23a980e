"""One table's share of a batch, and the result of its task: the data between driver and tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pgsluice.errors import Failure
from pgsluice.lsn import Lsn
from pgsluice.row_filter import FilterEvaluator
from pgsluice.schema_rules.known import KnownColumns

if TYPE_CHECKING:
    from pgsluice.sinks.contract import Applied

_NOWHERE = Lsn(0)


@dataclass(frozen=True, slots=True)
class TableWork:
    """One table's share of a batch: its changes in (after, through].

    Attributes:
        relation_oid: the table, or the partition root.
        namespace, name: the target's schema and name: those of the source's table at the last
            catalog refresh.
        committed: the position of pgsluice's newest commit at the target, as recorded.
        copy_number: the copy number that the target has to have.
        oids: the relations with changes: the table, or leaf partitions of it.
        is_complete: the publications send inserts, updates, deletes and truncates of the table.
        is_partitioned: rows may be gone without a change: DROP and DETACH of a partition send none.
        is_key_proved: see :func:`pgsluice.schema_rules.known.is_key_proved`.
        leaves: the leaf partitions that the server sent at the last catalog refresh; empty:
            unknown.
        known: the table's columns as the last catalog refresh found them; None: not refreshed yet.
        looked_through: see :class:`pgsluice.spool.SubscriptionRecord`.
        looked_at: see :class:`pgsluice.spool.TableRecord`.
        alter_facts: JSON of the relation metadata whose columns the target has to get; empty: none.
        size_bytes: an upper limit of the changes' size; segments may have changes that are already
            applied.
        merge_s: the duration of the table's last merge; 0: none yet.
        leaf_bounds: the conditions that select the rows of single partitions; of truncated
            partitions, as far as known.
        since: when the oldest of the changes was committed, in seconds since 1970, as
            :attr:`pgsluice.spool.SegmentInfo.committed_from` knows it; 0: unknown.
        rejects: how many open rejects the table had when the batch was planned.
    """

    relation_oid: int
    namespace: str
    name: str
    after: Lsn
    through: Lsn
    committed: Lsn
    copy_number: int
    oids: tuple[int, ...]
    is_complete: bool = False
    is_partitioned: bool = False
    is_key_proved: bool = True
    known: KnownColumns | None = None
    alter_facts: str = ""
    looked_through: Lsn = _NOWHERE
    looked_at: Lsn = _NOWHERE
    leaves: frozenset[int] = frozenset()
    size_bytes: int = 0
    merge_s: float = 0.0
    since: float = 0.0
    rejects: int = 0
    leaf_bounds: Mapping[int, FilterEvaluator] = field(
        default_factory=dict, compare=False, repr=False
    )

    @property
    def title(self) -> str:
        """The table's name for messages."""
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a task: the table is applied through the end of its work.

    Attributes:
        committed: position of pgsluice's newest commit at the target; 0: there is none.
        version: the target's version; -1: it does not exist.
        changes: how many changes were decoded.
        rows_skipped: rows that changes updated or deleted, and that the target lacks.
        rows_inserted, rows_updated, rows_deleted: at the target.
        has_rejects: its files of rejects are to be folded.
        rejects: how many rejects are open afterwards; None: as many as before.
        skipped: the target had it all before.
        decode_s, merge_s: how long it took to make the net changes, and to write them, without the
            upkeep, which is rare: a table's next merge waits for a multiple of this time.
        is_altered: the target has the columns that were due.
        doubt: why it is not proven which columns the changes have, so that the table has to be
            compared with the source; empty: it is.
        has_key: the table's rows have a key; otherwise all of their values identify them.
    """

    committed: Lsn
    version: int = -1
    changes: int = 0
    rows_skipped: int = 0
    skipped: bool = False
    decode_s: float = 0.0
    merge_s: float = 0.0
    is_altered: bool = False
    doubt: str = ""
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    bytes_written: int = 0
    has_rejects: bool = False
    rejects: int | None = None
    has_key: bool = True

    @classmethod
    def of(
        cls,
        applied: Applied,
        last: Lsn,
        changes: int,
        decode_s: float = 0.0,
        *,
        has_rejects: bool = False,
    ) -> TaskResult:
        """The result of a task after its commit.

        Args:
            last: the position of the last change.
        """
        return cls(
            committed=last,
            version=applied.version,
            changes=changes,
            rows_skipped=applied.rows_skipped,
            skipped=applied.skipped,
            decode_s=decode_s,
            rows_inserted=applied.rows_inserted,
            rows_updated=applied.rows_updated,
            rows_deleted=applied.rows_deleted,
            bytes_written=applied.bytes_written,
            has_rejects=has_rejects,
        )

    def after(self, before: TaskResult) -> TaskResult:
        """Combine the results of two pieces of one table's work."""
        return replace(
            self,
            changes=before.changes + self.changes,
            rows_skipped=before.rows_skipped + self.rows_skipped,
            skipped=before.skipped and self.skipped,
            decode_s=before.decode_s + self.decode_s,
            merge_s=before.merge_s + self.merge_s,
            doubt=before.doubt or self.doubt,
            rows_inserted=before.rows_inserted + self.rows_inserted,
            rows_updated=before.rows_updated + self.rows_updated,
            rows_deleted=before.rows_deleted + self.rows_deleted,
            bytes_written=before.bytes_written + self.bytes_written,
            has_rejects=before.has_rejects or self.has_rejects,
        )


Outcome = tuple[TableWork, TaskResult | Failure]
"""A table's work, and the result of its task."""
