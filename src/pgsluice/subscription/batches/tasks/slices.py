"""Pieces of a table's changes in files, sliced by bucket, between the tasks that share a batch.

A task that reads changes writes a file for each piece. A task that nets some buckets reads their
slices of all files. The files lie in the subscription's folder of the spool, which only pgsluice's
own user can write, so they may be pickles.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pgsluice.changes.buckets import EVERY_BUCKET, place
from pgsluice.columnar import RelationChanges
from pgsluice.disk import naming


@dataclass(frozen=True, slots=True)
class SlicedPiece:
    """The file of one piece.

    Attributes:
        slices: by bucket, where its slice begins and how long it is, in bytes.
        links: pairs of buckets that have to be netted together.
    """

    path: str
    slices: Mapping[int, tuple[int, int]]
    links: frozenset[tuple[int, int]]

    @classmethod
    def write(
        cls, folder: Path, runs: Iterable[RelationChanges], key: tuple[str, ...]
    ) -> SlicedPiece:
        """Slice the runs of a piece, and write them.

        Args:
            folder: which exists.
            key: of the table.
        """
        by_bucket: dict[int, list[RelationChanges]] = {}
        links: set[tuple[int, int]] = set()
        for run in runs:
            placement = place(run, key)
            links |= placement.links
            order = np.argsort(placement.buckets, kind="stable")
            buckets, firsts = np.unique(placement.buckets[order], return_index=True)
            for bucket, chosen in zip(buckets.tolist(), np.split(order, firsts[1:]), strict=True):
                by_bucket.setdefault(bucket, []).append(run.take(chosen))
        slices: dict[int, tuple[int, int]] = {}
        path = folder / f"{uuid.uuid4()}.changes"
        with naming(folder), path.open("wb") as file:
            for bucket, chosen_runs in by_bucket.items():
                begin = file.tell()
                pickle.dump(chosen_runs, file, pickle.HIGHEST_PROTOCOL)
                slices[bucket] = begin, file.tell() - begin
        return cls(str(path), slices, frozenset(links))

    def size(self, buckets: Collection[int]) -> int:
        """How large the slices of some buckets are, in bytes."""
        return sum(length for bucket, (_, length) in self.slices.items() if bucket in buckets)

    def read(self, buckets: Sequence[int]) -> list[RelationChanges]:
        """The runs of some buckets, with what every bucket needs."""
        runs: list[RelationChanges] = []
        with Path(self.path).open("rb") as file:
            for bucket in (*buckets, EVERY_BUCKET):
                if bucket in self.slices:
                    file.seek(self.slices[bucket][0])
                    runs += pickle.load(file)  # noqa: S301 - our own tasks wrote it
        return runs
