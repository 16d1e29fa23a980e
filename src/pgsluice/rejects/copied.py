"""The rejects of rows that a task copies: of a whole table, of partitions, or of ranges of keys."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from pgsluice.changes.net import NetChanges
from pgsluice.lsn import Lsn
from pgsluice.rejects.events import RejectedValues
from pgsluice.rejects.table import RejectsPlace

if TYPE_CHECKING:
    from pgsluice.snapshots.ranges import Portion
    from pgsluice.snapshots.reader import ReadRows, TableReader


def read_at() -> int:
    """The time of rows that are read now, in microseconds since 1970."""
    return time.time_ns() // 1000


@dataclass(slots=True)
class CopiedRejects:
    """Takes the values that do not fit out of copied rows; used by one task.

    Attributes:
        place: where the rejects are; None: such a value is an error.
        relation, copy_number: those of the copy.
        position: the position of its snapshot.
        key: the columns that identify a row; without any, such a value is an error.
        is_copy: all rows of the table are copied; otherwise some are replaced, and rejects that
            they had are resolved.
    """

    place: RejectsPlace | None
    relation: int
    copy_number: int
    position: Lsn
    key: tuple[str, ...]
    is_copy: bool
    _values: RejectedValues | None = None

    def batches(
        self, reader: TableReader, portion: Portion, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Read a chunk of a table in the target's schema; values that do not fit are NULL."""
        from pgsluice.snapshots.reader import fitting_batch

        accepted = frozenset[str]()
        if self.place is not None and self.place.accepts and self.key:
            accepted = frozenset(schema.names) - {*self.key}
        place, now = (int(self.position), 1), read_at()

        def fitting(rows: ReadRows) -> pa.RecordBatch:
            batch = fitting_batch(rows, schema, accepted)
            if self.place is not None and self.key:
                names = rows.query.columns
                rejected = [
                    (
                        names[number],
                        rows.unfit(number),
                        rows.text(number).filter(rows.unfit(number)),
                    )
                    for number in rows.sent
                ]
                self._known().note_copied(batch, self.key, rejected, place, now)
            return batch

        yield from map(fitting, reader.rows(portion))  # a map keeps no rows

    def deleting(self, pieces: Iterable[NetChanges]) -> Iterator[NetChanges]:
        """Net changes that delete rows, whose rejects are resolved."""
        for net in pieces:
            if self.place is not None:
                self._known().note_gone(net.deletes, (int(self.position), 0), read_at())
            yield net

    def write(self) -> None:
        """Write the events of rejects that were found since the last call durably; without any, no
        file."""
        if self.place is not None and self._values is not None:
            # Those of a part begin before its snapshot's position, at which all of them are.
            after = self.position if self.is_copy else Lsn(int(self.position) - 1)
            events = self._known().take_events()
            files = self.place.files
            files.write(self.relation, self.copy_number, after, events, is_copy=self.is_copy)

    def _known(self) -> RejectedValues:
        if self._values is None:
            assert self.place is not None
            keys = () if self.is_copy else self.place.open_keys(self.relation)
            self._values = RejectedValues(keys, accepts=self.place.accepts)
        return self._values
