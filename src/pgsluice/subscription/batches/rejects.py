"""Folds the rejects of a batch into the rejects table, before the batch is recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pgsluice.errors import Failure, PgsluiceError
from pgsluice.rejects.folding import CommittedTable, Folding
from pgsluice.rejects.table import RejectsPlace
from pgsluice.spool import TableRecord
from pgsluice.subscription.base.work import Outcome, TableWork, TaskResult


class BatchRejects:
    """Knows which tables may have files of rejects, so that a batch without them lists none."""

    def __init__(self) -> None:
        self._with_files: frozenset[int] | None = None
        """Tables with files of earlier batches; None: unknown, as after a kill."""

    def folded(
        self,
        place: RejectsPlace,
        tables: Mapping[int, TableRecord],
        outcomes: Sequence[Outcome],
    ) -> Sequence[Outcome]:
        """The outcomes with the numbers of open rejects.

        If the rejects table cannot be written, the outcomes of tables with rejects are failures:
        their next attempt finds the changes applied, and folds the same files.

        Args:
            tables: the record's.
        """
        done = {
            work.relation_oid: (work, result)
            for work, result in outcomes
            if isinstance(result, TaskResult) and work.relation_oid in tables
        }
        failed = frozenset(
            work.relation_oid for work, result in outcomes if isinstance(result, Failure)
        )
        with_files = self._with_files
        wanted = {
            oid: _committed(*each)
            for oid, each in done.items()
            if with_files is None or oid in with_files or _may_have(*each)
        }
        if not wanted:
            if with_files is not None:
                self._with_files = with_files | failed
            return outcomes
        folding = Folding(place)
        try:
            open_counts = folding.fold(wanted)
        except PgsluiceError as error:
            self._with_files = None
            failure = Failure.of(error)
            return [
                (work, failure if work.relation_oid in folding.begun else result)
                for work, result in outcomes
            ]
        self._with_files = (folding.left | failed) - wanted.keys()
        return [
            (work, replace(result, rejects=open_counts[work.relation_oid]))
            if isinstance(result, TaskResult) and work.relation_oid in open_counts
            else (work, result)
            for work, result in outcomes
        ]


def _may_have(work: TableWork, result: TaskResult) -> bool:
    """Whether there may be files of the table, or an earlier attempt has folded them."""
    return result.has_rejects or _was_ahead(work, result)


def _was_ahead(work: TableWork, result: TaskResult) -> bool:
    """Whether the target was past the record: a run was killed in between."""
    return result.skipped and result.committed > work.committed


def _committed(work: TableWork, result: TaskResult) -> CommittedTable:
    return CommittedTable(
        work.namespace,
        work.name,
        work.copy_number,
        result.committed,
        is_counted=_was_ahead(work, result),
    )
