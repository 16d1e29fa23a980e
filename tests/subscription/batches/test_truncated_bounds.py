"""Works that need the bounds of truncated partitions: which get them, and why others fail."""

from __future__ import annotations

import pytest
from tests.support.databases import MakeDatabase

from pgsluice.errors import Failure, Remedy
from pgsluice.lsn import Lsn
from pgsluice.schema_rules.known import SourceFingerprint
from pgsluice.spool import SourceView, TableRecord
from pgsluice.subscription.base.work import Outcome, TableWork, TaskResult
from pgsluice.subscription.batches.truncated_bounds import find_bounds, lacks_bounds

NOWHERE = "host=127.0.0.1 port=1 connect_timeout=2"


def record(bounds: dict[int, str], fixed: frozenset[int] | None = frozenset({7, 8})) -> TableRecord:
    """A table with the leaves 7 and 8."""
    fingerprint = SourceFingerprint(
        filenodes={7: 100, 8: 100}, columns={}, actions=frozenset(), bounds=bounds, fixed=fixed
    )
    return TableRecord("public", "t", source=SourceView(fingerprint.to_text()))


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
    works, [(_, result)] = find_bounds(NOWHERE, {1: table}, [lacking(1, leaf)])
    assert works == []
    assert isinstance(result, Failure)
    assert (result.remedy, result.leaves) == (remedy, frozenset())
    assert result.partitions == ({leaf} if remedy is Remedy.COPY else set())


def test_works_get_the_bounds_that_the_source_explains(database: MakeDatabase) -> None:
    """Another attempt at the same work may name another partition."""
    shop = database()
    shop.execute("CREATE TABLE t (id int PRIMARY KEY)")
    [(oid,)] = shop.execute("SELECT 't'::regclass::oid::int")
    tables = {oid: record({7: "id < 9", 8: "id >= 9"})}
    [first], refused = find_bounds(shop.dsn, tables, [lacking(oid, 7)])
    assert (first.leaf_bounds.keys(), refused) == ({7}, [])
    again = (first, lacking(oid, 8)[1])
    assert lacks_bounds(again)
    [second], refused = find_bounds(shop.dsn, tables, [again])
    assert (second.leaf_bounds.keys(), refused) == ({7, 8}, [])
    assert not lacks_bounds((second, TaskResult(Lsn(2))))
    unknown = record({7: "id < 9", 8: "nothing >= 9"})
    works, [(_, result)] = find_bounds(shop.dsn, {oid: unknown}, [lacking(oid, 7, 8)])
    assert works == []
    assert isinstance(result, Failure)
    assert result.remedy is Remedy.COPY
