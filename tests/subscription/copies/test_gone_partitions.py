"""A copy of partitions whose changes cannot be applied: a refresh, or a copy of the whole table."""

from __future__ import annotations

from pgsluice.errors import Failure, Remedy
from pgsluice.subscription.copies.partitions import copied_if_gone

HERE, GONE = 7, 8


def test_no_refresh_finds_a_partition_that_is_gone() -> None:
    """Otherwise pgsluice would retry the copy without end, as the soak of partitions showed."""
    failure = Failure(Remedy.LOOK, "its definition is unknown", partitions=frozenset({GONE}))
    assert copied_if_gone(failure, {HERE}) == Failure(Remedy.COPY, "its definition is unknown")
    for other in (
        Failure(Remedy.LOOK, "its definition is unknown", partitions=frozenset({HERE})),
        Failure(Remedy.LOOK, "the table has another name"),
        Failure(Remedy.PARK, "a value does not fit", partitions=frozenset({GONE})),
    ):
        assert copied_if_gone(other, {HERE}) == other
