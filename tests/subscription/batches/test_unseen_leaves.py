"""Partitions that are known from changes only: what batches find of them is put together."""

from __future__ import annotations

from pgsluice.spool import UnseenLeaf
from pgsluice.subscription.batches.unseen_leaves import with_unseen

JANUARY = UnseenLeaf(1, 10, "id < 100", ("id",))
FEBRUARY = UnseenLeaf(2, 10, "id >= 100", ("id",))


def test_what_is_known_stays_and_what_is_new_is_added() -> None:
    assert with_unseen([JANUARY], [FEBRUARY]) == (JANUARY, FEBRUARY)
    assert with_unseen([JANUARY, FEBRUARY], [JANUARY]) == (JANUARY, FEBRUARY)


def test_a_partition_that_had_two_bounds_has_none() -> None:
    """Its rows may be anywhere in the table."""
    moved = JANUARY._replace(condition="id < 200")
    assert with_unseen([JANUARY], [moved]) == (UnseenLeaf(1),)
    assert with_unseen([UnseenLeaf(1)], [JANUARY]) == (UnseenLeaf(1),)
    assert with_unseen([], [JANUARY, moved, JANUARY]) == (UnseenLeaf(1),)
