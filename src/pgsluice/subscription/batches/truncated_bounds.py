"""The driver's part of batches in which single partitions were truncated under their own names.

A task that needs the bounds of truncated partitions reports the partitions
(:mod:`pgsluice.subscription.batches.tasks.truncated_leaves`). Here the driver asks the source for
the bounds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from pgsluice.catalog.server import LIMITS
from pgsluice.errors import Failure, PgsluiceError, Remedy
from pgsluice.published.partition_rows import evaluators_of
from pgsluice.replication import connect_sql
from pgsluice.row_filter import FilterEvaluator
from pgsluice.schema_rules.known import SourceFingerprint
from pgsluice.spool import TableRecord
from pgsluice.subscription.base.work import Outcome, TableWork


def lacks_bounds(outcome: Outcome) -> bool:
    """Whether a task failed because it needs bounds of truncated partitions."""
    _, result = outcome
    return isinstance(result, Failure) and bool(result.leaves)


def find_bounds(
    dsn: str, tables: Mapping[int, TableRecord], lacking: Sequence[Outcome]
) -> tuple[list[TableWork], list[Outcome]]:
    """Read the bounds that this work lacks from the source.

    Returns:
        the work with its bounds, and the failures of tables whose bounds cannot be read.
    """
    ready: list[TableWork] = []
    refused: list[Outcome] = []
    wanted: list[tuple[TableWork, Collection[int]]] = []
    texts: dict[tuple[int, int], tuple[int, Sequence[str]]] = {}
    for work, result in lacking:
        assert isinstance(result, Failure)
        oid = work.relation_oid
        bounds = _bounds_of(work, tables[oid].source.fingerprint, result.leaves)
        if isinstance(bounds, Failure):
            refused.append((work, bounds))
        else:
            wanted.append((work, bounds))
            texts |= {(oid, leaf): (oid, (text,)) for leaf, text in bounds.items()}
    try:
        evaluators = _evaluators(dsn, texts) if texts else {}
    except PgsluiceError as error:
        failure = Failure.of(error)
        return [], [*refused, *((work, failure) for work, _ in wanted)]
    for work, leaves in wanted:
        oid = work.relation_oid
        found = {leaf: evaluators[oid, leaf] for leaf in leaves if (oid, leaf) in evaluators}
        if len(found) < len(leaves):
            refused.append((work, _not_exact(work, leaves)))
        else:
            ready.append(replace(work, leaf_bounds={**work.leaf_bounds, **found}))
    return ready, refused


def _bounds_of(
    work: TableWork, fingerprint: str, leaves: Collection[int]
) -> dict[int, str] | Failure:
    """The bounds of leaf partitions, from the table's last catalog refresh.

    They are valid for all TRUNCATEs: a partition gets other bounds only by DETACH and ATTACH, which
    a catalog refresh finds.
    """
    known = SourceFingerprint.parse(fingerprint)
    if known is None or known.fixed is None or not known.filenodes.keys() >= {*leaves}:
        message = (
            f"{work.title}: a partition was truncated, and a catalog refresh has to find its bound"
        )
        return Failure(Remedy.LOOK, message)
    if not known.fixed >= {*leaves}:
        return _not_exact(work, leaves)
    return {leaf: known.bounds[leaf] for leaf in leaves}


def _not_exact(work: TableWork, leaves: Collection[int]) -> Failure:
    message = (
        f"{work.title}: a partition was truncated: the stream does not carry the rows that it had"
    )
    return Failure(Remedy.COPY, message, partitions=frozenset(leaves))


def _evaluators(
    dsn: str, texts: Mapping[tuple[int, int], tuple[int, Sequence[str]]]
) -> dict[tuple[int, int], FilterEvaluator]:
    """Functions that find the rows of leaf partitions, by table and partition."""
    with connect_sql(
        dsn, "asking for the bounds of partitions", application="bounds of partitions"
    ) as connection:
        connection.execute(LIMITS)
        return evaluators_of(connection, texts)
