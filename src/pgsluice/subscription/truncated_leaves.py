"""Batches in which single leaves of a partitioned table were truncated under their own names.

The leaf's bound tells which rows of the target a TRUNCATE removes. Bounds are SQL, and only the
source's catalog says what their types and collations mean. Few batches need them. So a task that
finds such a TRUNCATE names the leaves, and is run again with their bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from pgsluice.changes.net import NetChanges
from pgsluice.changes.truncates import Truncates
from pgsluice.copy import deletes_of_rows
from pgsluice.errors import Failure, PgsluiceError, Remedy, TableError
from pgsluice.replication import connect_sql, source_errors
from pgsluice.row_filter import FilterEvaluator
from pgsluice.schema_rules import SourceFingerprint
from pgsluice.sinks.contract import TargetTable
from pgsluice.sinks.fence import TableWriter
from pgsluice.spool import TableRecord
from pgsluice.subscription.leaf_plan import evaluators_of
from pgsluice.subscription.looks import LOOK_LIMITS
from pgsluice.subscription.planning import Outcome, TableWork, TaskResult


def deletes_of_truncated(
    work: TableWork, truncates: Truncates, writer: TableWriter, table: TargetTable
) -> Iterator[NetChanges] | None:
    """What deletes the rows that the target has of truncated leaves, before other changes.

    Args:
        truncates: among the changes of one commit.
        writer: of the target; it has to stage what is given back.
        table: the target.

    Returns:
        None: nothing has to be deleted.

    Raises:
        TableError: bounds of leaves are needed; or the table has to be copied.
    """
    leaves = truncates.leaves
    if not leaves or writer.schema() is None:
        return None
    if lacking := leaves - work.leaf_bounds.keys():
        raise TableError(
            f"{work.title}: partitions were truncated, and their bounds are needed",
            table=work.title,
            remedy=Remedy.LOOK,
            leaves=frozenset(lacking),
        )
    if not table.key or not writer.can_stage_changes():
        raise TableError(
            f"{work.title}: partitions were truncated, and the target cannot take that alone",
            table=work.title,
            remedy=Remedy.COPY,
        )
    return deletes_of_rows(writer, table, [work.leaf_bounds[leaf] for leaf in sorted(leaves)])


def apply_truncated(
    dsn: str,
    tables: Mapping[int, TableRecord],
    outcomes: Sequence[Outcome],
    apply: Callable[[Sequence[TableWork]], Sequence[Outcome]],
) -> list[Outcome]:
    """Have works tried again that need bounds of leaves.

    Args:
        dsn: the source.
        tables: the works' tables.
        outcomes: what became of all works.
        apply: tries works again.

    Returns:
        what became of all works in the end.
    """
    outcomes = list(outcomes)
    while lacking := [(work, failure) for work, failure in outcomes if _lacks_bounds(failure)]:
        # Each attempt knows bounds that none before it has known.
        ready, refused = _with_bounds(dsn, tables, lacking)
        done = [(work, result) for work, result in outcomes if not _lacks_bounds(result)]
        outcomes = [*done, *refused, *(apply(ready) if ready else ())]
    return outcomes


def _lacks_bounds(result: TaskResult | Failure) -> bool:
    return isinstance(result, Failure) and bool(result.leaves)


def _with_bounds(
    dsn: str, tables: Mapping[int, TableRecord], lacking: Sequence[Outcome]
) -> tuple[list[TableWork], list[Outcome]]:
    """The works with the bounds that they lack, and the failures of those that cannot have them."""
    ready: list[TableWork] = []
    refused: list[Outcome] = []
    wanted = []
    for work, result in lacking:
        assert isinstance(result, Failure)
        bounds = _bounds_of(work, tables[work.relation_oid].fingerprint, result.leaves)
        if isinstance(bounds, Failure):
            refused.append((work, bounds))
        else:
            wanted.append((work, bounds))
    try:
        evaluators = _evaluators(dsn, wanted)
    except PgsluiceError as error:
        failure = Failure.of(error)
        return [], [*refused, *((work, failure) for work, _ in wanted)]
    for work, bounds in wanted:
        oid = work.relation_oid
        found = {leaf: evaluators[oid, leaf] for leaf in bounds if (oid, leaf) in evaluators}
        if len(found) < len(bounds):
            refused.append((work, _not_exact(work, bounds)))
        else:
            ready.append(replace(work, leaf_bounds={**work.leaf_bounds, **found}))
    return ready, refused


def _bounds_of(
    work: TableWork, fingerprint: str, leaves: Collection[int]
) -> dict[int, str] | Failure:
    """The bounds of leaves, as the table's last look has found them.

    They hold for all TRUNCATEs: a partition can have other bounds only after it was detached, which
    a look finds.
    """
    known = SourceFingerprint.parse(fingerprint)
    if known is None or known.fixed is None or not known.filenodes.keys() >= {*leaves}:
        message = f"{work.title}: a partition was truncated, and a look has to find its bound"
        return Failure(Remedy.LOOK, message)
    if not known.fixed >= {*leaves}:
        return _not_exact(work, leaves)
    return {leaf: known.bounds[leaf] for leaf in leaves}


def _not_exact(work: TableWork, leaves: Collection[int]) -> Failure:
    message = f"{work.title}: a partition was truncated: the stream does not say which rows it had"
    return Failure(Remedy.COPY, message, partitions=frozenset(leaves))


def _evaluators(
    dsn: str, wanted: Sequence[tuple[TableWork, Mapping[int, str]]]
) -> dict[tuple[int, int], FilterEvaluator]:
    """What finds the rows of leaves, by table and leaf.

    Raises:
        SourceUnreachable, SourceRefused: the server cannot be asked.
    """
    texts = {
        (work.relation_oid, leaf): (work.relation_oid, (text,))
        for work, bounds in wanted
        for leaf, text in bounds.items()
    }
    if not texts:
        return {}
    with (
        connect_sql(dsn, application="bounds of partitions") as connection,
        source_errors("asking for the bounds of partitions"),
    ):
        connection.execute(LOOK_LIMITS)
        return evaluators_of(connection, texts)
