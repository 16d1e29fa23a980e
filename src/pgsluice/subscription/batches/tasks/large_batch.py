"""Applies a batch of one table that does not fit into a task's memory: reads it twice, in pieces.

The first pass makes an outline, from which the target's columns follow before anything is written.
The second pass nets and stages each piece. One commit then contains all pieces.

Its figure: less than 1 GB in a worker for a transaction of 10 million rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pgsluice.changes.net import NetChanges
from pgsluice.changes.truncates import Place, Truncates
from pgsluice.changes.whole_rows import has_old_rows
from pgsluice.columnar import RelationChanges
from pgsluice.lsn import Lsn
from pgsluice.subscription.batches.tasks.table_changes import Chunk, TableChanges
from pgsluice.subscription.batches.tasks.target_columns import TargetColumns, columns_of
from pgsluice.system.freed_memory import give_back_freed_memory

LARGE_BYTES = 32 * 2**20
"""Changes of one table in a batch that are larger than this, in bytes, are read in pieces."""
PIECE_BYTES = 32 * 2**20
"""The size of a piece, in bytes."""


@dataclass(frozen=True, slots=True)
class Outline:
    """An outline of a table's changes, without their rows.

    Attributes:
        runs: some changes without tuples, of each sequence of changes with the same relation: the
            first, the first after the last catalog refresh, and the last.
        last: the position of the last change; 0: there are none.
        truncates: the TRUNCATEs of the table's leaf partitions.
        has_old_rows: there are updates or deletes.
    """

    runs: tuple[RelationChanges, ...]
    changes: int
    last: Lsn
    truncates: Truncates
    has_old_rows: bool

    @classmethod
    def of(cls, changes: TableChanges, runs: Sequence[RelationChanges]) -> Outline:
        """The outline of one piece."""
        looked_through = changes.work.looked_through
        return cls(
            tuple(_outlined(run, looked_through) for run in runs),
            sum(map(len, runs)),
            Lsn(max(int(run.positions[-1]) for run in runs)),
            changes.truncates(runs),
            has_old_rows(runs),
        )

    @classmethod
    def joined(cls, outlines: Iterable[Outline]) -> Outline:
        """Combine the outlines of pieces into one."""
        runs: list[RelationChanges] = []
        changes, last = 0, Lsn(0)
        outlines = list(outlines)
        for outline in outlines:
            runs += outline.runs
            changes += outline.changes
            last = max(last, outline.last)
        truncates = Truncates.joined(outline.truncates for outline in outlines)
        has_old = any(outline.has_old_rows for outline in outlines)
        return cls(tuple(runs), changes, last, truncates, has_old)

    @classmethod
    def between(cls, changes: TableChanges, after: Lsn, through: Lsn) -> Outline:
        """Read the outline of the changes in (after, through].

        Raises:
            TableError: the changes cannot be applied.
        """
        return cls.joined(cls.of(changes, runs) for runs in changes.pieces(Chunk(after, through)))


@dataclass(frozen=True, slots=True)
class ReadTwice:
    """The changes in (after, outline.last], first as an outline.

    Attributes:
        kept: all of them, if they are few; None: they are read again.
    """

    changes: TableChanges
    after: Lsn
    outline: Outline
    kept: list[RelationChanges] | None

    @classmethod
    def between(
        cls, changes: TableChanges, after: Lsn, through: Lsn, *, is_large: bool
    ) -> ReadTwice:
        """Read the outline of the changes in (after, through]."""
        if is_large:
            return cls(changes, after, Outline.between(changes, after, through), None)
        kept = changes.all(after, through)
        outline = Outline.joined([Outline.of(changes, kept)] if kept else [])
        return cls(changes, after, outline, kept)

    def pieces(self) -> Iterator[list[RelationChanges]]:
        """The changes in consecutive pieces."""
        if self.kept is not None:
            return iter([self.kept])
        return self.changes.pieces(Chunk(self.after, self.outline.last))


def read_twice(
    changes: TableChanges, existing: pa.Schema | None, after: Lsn, *, is_large: bool
) -> tuple[ReadTwice, TargetColumns] | None:
    """The changes after a position up to the point where the target needs other columns, and the
    columns that they need; None: there are no changes.

    Args:
        existing: the target's columns; None: it does not exist yet.
        is_large: do not keep the changes in memory.
    """
    work = changes.work
    read = ReadTwice.between(changes, after, work.through, is_large=is_large)
    if not read.outline.runs:
        return None
    columns = columns_of(work, read.outline.runs, existing, changes.options)
    if columns.through is not None:
        read = ReadTwice.between(changes, after, columns.through, is_large=is_large)
    return read, columns


def net_pieces(
    read: ReadTwice, columns: TargetColumns, begins: Mapping[str, Place]
) -> Iterator[NetChanges]:
    """The net changes of each piece; arguments as of :meth:`.TableChanges.nets`."""
    for runs in read.pieces():
        yield from read.changes.nets(runs, columns, read.outline.truncates, begins)
        give_back_freed_memory()


def _outlined(run: RelationChanges, looked_through: Lsn) -> RelationChanges:
    later = int(np.searchsorted(run.positions, int(looked_through), side="right"))
    last = len(run) - 1
    return run.outline(np.unique(np.array([0, min(later, last), last], np.int64)))
