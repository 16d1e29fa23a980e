"""Works that need the bounds of truncated leaves: who gets them, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.support.databases import MakeDatabase

from pgsluice.errors import Failure, Remedy
from pgsluice.lsn import Lsn
from pgsluice.schema_rules import SourceFingerprint
from pgsluice.spool import TableRecord
from pgsluice.subscription.planning import Outcome, TableWork, TaskResult
from pgsluice.subscription.truncated_leaves import apply_truncated

NOWHERE = "host=127.0.0.1 port=1 connect_timeout=2"


def record(bounds: dict[int, str], fixed: frozenset[int] | None = frozenset({7, 8})) -> TableRecord:
    """A table with the leaves 7 and 8."""
    fingerprint = SourceFingerprint(
        filenodes={7: 100, 8: 100}, columns={}, actions=frozenset(), bounds=bounds, fixed=fixed
    )
    return TableRecord("public", "t", fingerprint=fingerprint.to_text())


def lacking(oid: int, *leaves: int) -> Outcome:
    work = TableWork(oid, "public", "t", Lsn(1), Lsn(2), Lsn(1), 1, (7, 8))
    return work, Failure(Remedy.LOOK, "bounds are needed", leaves=frozenset(leaves))


@pytest.mark.parametrize(
    ("table", "leaf", "remedy"),
    [
        (record({7: "id < 9"}), 9, Remedy.LOOK),  # it came after the last look
        (record({7: "id < 9"}, fixed=None), 7, Remedy.LOOK),  # an earlier version has looked
        (record({7: "id < 9"}, fixed=frozenset()), 7, Remedy.COPY),  # a default partition
        (record({}, fixed=frozenset()), 8, Remedy.COPY),  # a hash partition
        (record({7: "id < 9"}), 7, Remedy.WAIT),  # the server is away
    ],
)
def test_a_leaf_whose_bound_cannot_be_had(table: TableRecord, leaf: int, remedy: Remedy) -> None:
    [(_, result)] = apply_truncated(NOWHERE, {1: table}, [lacking(1, leaf)], _never)
    assert isinstance(result, Failure)
    assert (result.remedy, result.leaves) == (remedy, frozenset())
    assert result.partitions == ({leaf} if remedy is Remedy.COPY else set())


def test_works_are_tried_again_with_the_bounds_of_the_source(database: MakeDatabase) -> None:
    """Another piece of the same work may find another leaf. Other works are left alone."""
    shop = database()
    shop.execute("CREATE TABLE t (id int PRIMARY KEY)")
    [(oid,)] = shop.execute("SELECT 't'::regclass::oid::int")
    done = (lacking(5)[0], TaskResult(Lsn(2)))
    tried: list[frozenset[int]] = []

    def apply(works: Sequence[TableWork]) -> list[Outcome]:
        [work] = works
        tried.append(frozenset(work.leaf_bounds))
        result = TaskResult(Lsn(2)) if len(tried) == 2 else lacking(oid, 8)[1]
        return [(work, result)]

    table = record({7: "id < 9", 8: "id >= 9"})
    outcomes = apply_truncated(shop.dsn, {oid: table}, [done, lacking(oid, 7)], apply)
    assert tried == [{7}, {7, 8}]
    assert [type(result) for _, result in outcomes] == [TaskResult, TaskResult]
    unknown = record({7: "id < 9", 8: "nothing >= 9"})
    [(_, result)] = apply_truncated(shop.dsn, {oid: unknown}, [lacking(oid, 7, 8)], _never)
    assert isinstance(result, Failure)
    assert result.remedy is Remedy.COPY


def _never(works: Sequence[TableWork]) -> list[Outcome]:
    raise AssertionError(f"{len(works)} works were tried again")
