"""TRUNCATEs of leaf partitions, which the server sends under the leaves' own names.

A TRUNCATE of all leaf partitions empties the target. A TRUNCATE of a single leaf removes its rows:
those that its changes in the batch left, and those that the target had of it before the batch. The
stream does not contain the latter; the leaf's partition bound identifies them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pgsluice.columnar.changes import TRUNCATE, Mask, RelationChanges

Place = tuple[int, int]
"""The position and ordinal of a change."""


@dataclass(frozen=True, slots=True)
class Truncates:
    """The TRUNCATEs among the changes of one partitioned table.

    Attributes:
        whole: where all leaf partitions that may have rows at the target were truncated.
        of_leaves: leaf -> its last TRUNCATE that did not truncate all other leaves.
    """

    whole: frozenset[Place] = frozenset()
    of_leaves: Mapping[int, Place] = field(default_factory=dict)

    @classmethod
    def of(cls, truncated: Mapping[Place, Collection[int]], whole: Iterable[Place]) -> Truncates:
        """The TRUNCATEs among some changes: which leaf partitions were truncated at each place, and
        the places where all of them were."""
        places = frozenset(whole)
        of_leaves: dict[int, Place] = {}
        for place in sorted(truncated.keys() - places):
            of_leaves.update(dict.fromkeys(truncated[place], place))
        return cls(places, of_leaves)

    @classmethod
    def joined(cls, each: Iterable[Truncates]) -> Truncates:
        """Combine the TRUNCATEs of several parts of the changes."""
        parts = list(each)
        of_leaves: dict[int, Place] = {}
        for part in parts:
            for leaf, place in part.of_leaves.items():
                of_leaves[leaf] = max(place, of_leaves.get(leaf, place))
        return cls(frozenset[Place]().union(*(part.whole for part in parts)), of_leaves)

    @property
    def leaves(self) -> frozenset[int]:
        """The leaf partitions whose rows from before the changes have to be deleted at the
        target."""
        return frozenset() if self.whole else frozenset(self.of_leaves)

    def remaining(self, runs: Sequence[RelationChanges]) -> list[RelationChanges]:
        """The changes, without those that a TRUNCATE of their own leaf partition has undone."""
        return [
            kept for run in runs if len(kept := _after(run, self.of_leaves.get(run.relation.oid)))
        ]


def truncated_leaves(runs: Iterable[RelationChanges]) -> dict[Place, set[int]]:
    """Where leaf partitions were truncated -> all leaves of the same statement."""
    truncated: dict[Place, set[int]] = {}
    for run in runs:
        if run.facts is None or run.facts.root_oid == run.relation.oid:
            continue
        for index in np.flatnonzero(run.actions == TRUNCATE).tolist():
            place = int(run.positions[index]), int(run.ordinals[index])
            truncated.setdefault(place, set()).add(run.relation.oid)
    return truncated


def are_before(run: RelationChanges, place: Place) -> Mask:
    """Which changes of a relation come before a place: a mask."""
    position, ordinal = place
    is_same = run.positions == position
    before: Mask = (run.positions < position) | (is_same & (run.ordinals < ordinal))
    return before


def _after(run: RelationChanges, place: Place | None) -> RelationChanges:
    """The changes of a run after a place; None: all of them."""
    if place is None:
        return run
    return run.take(np.flatnonzero(~are_before(run, (place[0], place[1] + 1))))
