"""TRUNCATEs of a partitioned table's leaves, which the server sends under the leaves' own names.

A TRUNCATE of all leaves empties the target. One of a single leaf removes the rows of that leaf:
what its changes have left before the TRUNCATE, and what the target had of it before these changes.
The stream does not name the latter; the leaf's bound tells which rows they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pgsluice.columnar.changes import TRUNCATE, RelationChanges

Place = tuple[int, int]
"""A change's position and ordinal."""


@dataclass(frozen=True, slots=True)
class Truncates:
    """The TRUNCATEs among the changes of one partitioned table.

    Attributes:
        whole: where all leaves were truncated that may have rows at the target.
        of_leaves: leaf -> its last TRUNCATE that left rows of other leaves.
    """

    whole: frozenset[Place] = frozenset()
    of_leaves: Mapping[int, Place] = field(default_factory=dict)

    @classmethod
    def of(cls, truncated: Mapping[Place, Collection[int]], whole: Iterable[Place]) -> Truncates:
        """Those of some changes.

        Args:
            truncated: where leaves were truncated -> which.
            whole: where these were all leaves.
        """
        places = frozenset(whole)
        of_leaves: dict[int, Place] = {}
        for place in sorted(truncated.keys() - places):
            of_leaves.update(dict.fromkeys(truncated[place], place))
        return cls(places, of_leaves)

    @classmethod
    def joined(cls, each: Iterable[Truncates]) -> Truncates:
        """Those of several parts of the changes."""
        parts = list(each)
        of_leaves: dict[int, Place] = {}
        for part in parts:
            for leaf, place in part.of_leaves.items():
                of_leaves[leaf] = max(place, of_leaves.get(leaf, place))
        return cls(frozenset[Place]().union(*(part.whole for part in parts)), of_leaves)

    @property
    def leaves(self) -> frozenset[int]:
        """The leaves of which the target may have rows from before the changes that are gone."""
        return frozenset() if self.whole else frozenset(self.of_leaves)

    def remaining(self, runs: Sequence[RelationChanges]) -> list[RelationChanges]:
        """The changes, without those that were undone when their leaf alone was truncated."""
        return [
            kept for run in runs if len(kept := _after(run, self.of_leaves.get(run.relation.oid)))
        ]


def truncated_leaves(runs: Iterable[RelationChanges]) -> dict[Place, set[int]]:
    """Where leaves of a partitioned table were truncated -> which: all of one statement."""
    truncated: dict[Place, set[int]] = {}
    for run in runs:
        if run.facts is None or run.facts.root_oid == run.relation.oid:
            continue
        for index in np.flatnonzero(run.actions == TRUNCATE).tolist():
            place = int(run.positions[index]), int(run.ordinals[index])
            truncated.setdefault(place, set()).add(run.relation.oid)
    return truncated


def _after(run: RelationChanges, place: Place | None) -> RelationChanges:
    """The changes of a run that come after a place; None: all of them."""
    if place is None:
        return run
    position, ordinal = place
    is_later = (run.positions > position) | ((run.positions == position) & (run.ordinals > ordinal))
    return run.take(np.flatnonzero(is_later))
