"""What is read of a table of which only some partitions are replaced."""

from __future__ import annotations

import pytest

from pgsluice.copy.job import CopyWork
from pgsluice.definitions.source_tables import LeafSize
from pgsluice.facts import RelationFacts
from pgsluice.schema_rules.known import ColumnState, SourceFingerprint
from pgsluice.snapshots.ranges import WHOLE, Portion, Read
from pgsluice.subscription.copies.partitions import portions_of_partitions

FACTS = RelationFacts(1, "public", "t", "p", 1, "public", "t", ("id",), ("id",), "d", 1, ())
KNOWN = SourceFingerprint({7: 7, 8: 8}, {1: ColumnState("id", 1)}, frozenset({"insert"}))
LEAVES = [Read(LeafSize(oid, "public", f"t_{oid}", 8192, 1), "", 8192) for oid in (7, 8)]
BY_LEAF: tuple[Portion, ...] = (tuple(LEAVES),)


@pytest.mark.parametrize(
    ("came", "portions", "expected"),
    [
        pytest.param((7,), BY_LEAF, ((LEAVES[0],),), id="one of them"),
        pytest.param((7, 9), BY_LEAF, ((LEAVES[0],),), id="one that is gone by now"),
        pytest.param((9,), BY_LEAF, ((Read(None, "false"),),), id="only one that is gone by now"),
        pytest.param((7,), WHOLE, None, id="a table that cannot be divided"),
    ],
)
def test_partitions_that_came(
    came: tuple[int, ...], portions: tuple[Portion, ...], expected: tuple[Portion, ...] | None
) -> None:
    """Those that are gone by the snapshot are found by the next look."""
    work = CopyWork(FACTS, "public", "t", None, None, 1, leaves=came)
    assert portions_of_partitions(work, portions, KNOWN.to_text(), KNOWN) == expected
