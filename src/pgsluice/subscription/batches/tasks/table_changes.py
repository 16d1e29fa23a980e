"""Reads a table's changes from the spool, applies publications, and nets them.

It reads all changes at once, or in consecutive pieces that fit into a task's memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from pgsluice.changes.change_log import LogColumns
from pgsluice.changes.deleted_rows import with_marks
from pgsluice.changes.events import first_places, refuse_unidentified
from pgsluice.changes.history.columns import HistoryColumns
from pgsluice.changes.history.versions import versions_of
from pgsluice.changes.net import NetChanges, net_changes
from pgsluice.changes.truncates import Place, Truncates, truncated_leaves
from pgsluice.changes.whole_rows import by_columns, has_old_rows
from pgsluice.columnar import Definition, RelationChanges, decode_segment
from pgsluice.columnar.changes import Int64s
from pgsluice.errors import PgsluiceError, Remedy, TableError
from pgsluice.lsn import Lsn
from pgsluice.publication import Publisher, publish_all
from pgsluice.rejects.events import RejectedValues
from pgsluice.rejects.keys import log_key
from pgsluice.schema_rules.target import check_key
from pgsluice.sinks.contract import TargetTable
from pgsluice.sinks.target import TableOptions, key_columns
from pgsluice.sinks.writers import deletes_not_kept, refuse_deleted_column, refuse_history
from pgsluice.spool import SegmentView, SpoolReader, relations_after
from pgsluice.subscription.base.work import TableWork
from pgsluice.subscription.batches.tasks.column_identity import identified
from pgsluice.subscription.batches.tasks.target_columns import TargetColumns

_CHANGE_BYTES = 64
"""Bytes that a change counts in addition to its message, for its elements in arrays."""
_CHUNK_PIECES = 2
"""The approximate number of pieces in a chunk."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Changes that are read together: those with positions in (after, through].

    Attributes:
        parts: the first part and the one after the last, if the chunk is a section of one
            transaction in parts; None: the whole range.
    """

    after: Lsn
    through: Lsn
    parts: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class TableChanges:
    """Reads the changes of one table's work.

    Attributes:
        reader: reads the spool; the tables of a task share it.
        rules: the rules of pgsluice's own publications, by the relation that the server sends;
            None: there are no own publications, and all changes are applied.
        piece_bytes: the size of a piece. Decoded and netted, it takes several times as much memory.
        rejected: takes the values that do not fit out of changes.
    """

    work: TableWork
    reader: SpoolReader
    options: TableOptions
    rules: Mapping[int, Publisher] | None
    sends_all_origins: bool
    piece_bytes: int
    rejected: RejectedValues

    def all(self, after: Lsn, through: Lsn) -> list[RelationChanges]:
        """The published changes in (after, through], grouped by relation in commit order, without
        empty groups."""
        return self._published(self._views(Chunk(after, through)))

    def pieces(self, chunk: Chunk) -> Iterator[list[RelationChanges]]:
        """The published changes of a chunk, in consecutive pieces in commit order."""
        pieces = map(self._published, self._cut(self._views(chunk)))
        return (runs for runs in pieces if runs)

    def chunks(self, after: Lsn, through: Lsn) -> list[Chunk]:
        """Divide (after, through] into chunks of a few pieces, in commit order."""
        chunks: list[Chunk] = []
        size = 0
        for info in self.reader.segments(after, through):
            if info.reference is not None:
                sizes = [part.size_bytes for part in info.parts]
                chunks += (
                    Chunk(after, info.end, parts)
                    for parts in _ranges(sizes, _CHUNK_PIECES * self.piece_bytes)
                )
                size = _CHUNK_PIECES * self.piece_bytes  # the next segment begins another chunk
            elif chunks and size + info.size_bytes <= _CHUNK_PIECES * self.piece_bytes:
                chunks[-1] = Chunk(chunks[-1].after, min(info.end, through))
                size += info.size_bytes
            else:
                chunks.append(Chunk(after, min(info.end, through)))
                size = info.size_bytes
            after = info.end
        return chunks

    def nets(
        self,
        runs: Sequence[RelationChanges],
        columns: TargetColumns,
        truncates: Truncates,
        begins: Mapping[str, Place] | None = None,
    ) -> Iterator[NetChanges]:
        """The net changes of these changes, for a target with these columns: one, or several
        consecutive ones if a table without a key gets or loses columns among them.

        Args:
            truncates: the TRUNCATEs in all changes of the commit.
            begins: see :func:`pgsluice.changes.net.net_changes`.
        """
        runs = [run.without(columns.left_out) for run in truncates.remaining(runs)]
        runs = self.rejected.taken(runs, columns.table.key, truncates.whole)
        parts = [runs]
        if not columns.table.key and has_old_rows(runs):
            parts = by_columns(runs)
            begins = first_places(runs, columns.missing) if begins is None else begins
        return (self._net(part, columns, truncates, begins) for part in parts)

    def _net(
        self,
        runs: Sequence[RelationChanges],
        columns: TargetColumns,
        truncates: Truncates,
        begins: Mapping[str, Place] | None,
    ) -> NetChanges:
        deleted_column = self.options.mode.deleted_column
        times: list[Int64s] | None = None
        schema = columns.table.schema
        if deleted_column is not None:
            times = []
            refuse_deleted_column(self._sent(runs, columns), deleted_column)
            schema = pa.schema([field for field in schema if field.name != deleted_column])
        net = net_changes(
            runs,
            schema=schema,
            key=columns.table.key,
            # A row that was deleted may be there when its key is inserted.
            is_complete=self.work.is_complete and self.sends_all_origins and times is None,
            is_key_proved=self.work.is_key_proved,
            missing=columns.missing,
            begins=begins,
            truncates=truncates.whole,
            times=times,
        )
        if self.work.is_partitioned:
            net = replace(net, only_new=False)
        if deleted_column is None or times is None:
            return net
        if net.whole_rows is not None:
            raise deletes_not_kept(self.work.title)
        return with_marks(net, deleted_column, np.concatenate([np.empty(0, np.int64), *times]))

    def versions(
        self,
        runs: Sequence[RelationChanges],
        columns: TargetColumns,
        history: HistoryColumns,
        truncates: Truncates,
        begins: Mapping[str, Place],
    ) -> Iterator[NetChanges]:
        """The versions that these changes make, for a history with these columns; arguments as of
        :meth:`net`."""
        runs = [run.without(columns.left_out) for run in runs]
        refuse_history(self._sent(runs, columns), history)
        runs = self.rejected.taken(runs, columns.table.key, truncates.whole)
        return versions_of(
            runs,
            history,
            schema=history.without(columns.table.schema),
            key=columns.table.key,
            missing=columns.missing,
            begins=begins,
            truncates=truncates.whole,
        )

    def _sent(self, runs: Sequence[RelationChanges], columns: TargetColumns) -> TargetTable:
        """The target as these changes have it."""
        sent = pa.schema([field for run in runs for field in run.schema])
        return replace(columns.table, schema=sent, is_key_proved=self.work.is_key_proved)

    def log_rows(
        self,
        runs: Sequence[RelationChanges],
        columns: TargetColumns,
        log: LogColumns,
        begins: Mapping[str, Place],
    ) -> pa.Table:
        """The rows of these changes for a change log with these columns; arguments as of
        :meth:`nets`."""
        for run in runs:
            self._refuse_unidentified(run)
        known = [run.without(columns.left_out) for run in runs]
        known = self.rejected.taken(known, log_key(known, self.options))
        added = {name: (value, begins.get(name)) for name, value in columns.missing.items()}
        return log.rows(known, columns.table.schema, added)

    def _refuse_unidentified(self, run: RelationChanges) -> None:
        """Refuse updates and deletes without the table's old key, or the whole old row if it has
        none: no row of a log could be found by them."""
        facts, known = run.facts, self.work.known
        if facts is None or not has_old_rows([run]):
            return
        key = None if known is None else known.key
        # A leaf's own key is not that of a table without one.
        is_keyless = key == () and facts.oid != facts.root_oid
        now = () if is_keyless else key_columns(facts, self.options)
        check_key(self.work.title, key, now)
        refuse_unidentified(run, now)

    def without_rejects(
        self,
        deletes: Iterable[NetChanges],
        truncates: Truncates,
        runs: Sequence[RelationChanges],
    ) -> Iterator[NetChanges]:
        """The deletes of truncated partitions, whose rows' rejects are resolved.

        Args:
            truncates: the TRUNCATEs; changes before that of their own partition do not count.
            runs: the changes, or their outline.
        """
        place = min(truncates.of_leaves.values())
        time_us = max(int(run.commit_timestamps.max(initial=0)) for run in runs)
        for net in deletes:
            self.rejected.note_gone(net.deletes, place, time_us)
            yield net

    def truncates(self, runs: Sequence[RelationChanges]) -> Truncates:
        """The TRUNCATEs of the table's leaf partitions.

        Raises:
            TableError: all leaf partitions of the last catalog refresh were truncated after it. A
                partition that it has not found may have sent rows, too.
        """
        work, truncated = self.work, truncated_leaves(runs)
        whole = [
            place for place, leaves in truncated.items() if work.leaves and work.leaves <= leaves
        ]
        if any(position > work.looked_through for position, _ in whole):
            raise TableError(
                f"{work.title}: partitions were truncated, and a catalog refresh has to find "
                "all of them",
                table=work.title,
                remedy=Remedy.LOOK,
            )
        return Truncates.of(truncated, whole)

    def _views(self, chunk: Chunk) -> Iterator[SegmentView]:
        return self.reader.views_between(chunk.after, chunk.through, chunk.parts)

    def _cut(self, views: Iterable[SegmentView]) -> Iterator[list[SegmentView]]:
        """Views, cut and joined to pieces of about ``piece_bytes`` of the table's changes."""
        piece: list[SegmentView] = []
        size = 0
        for view in views:
            for part, part_size in _cuts(view, self.work.oids, self.piece_bytes):
                if piece and size + part_size > self.piece_bytes:
                    yield piece
                    piece, size = [], 0
                piece.append(part)
                size += part_size
        if piece:
            yield piece

    def _published(self, views: Iterable[SegmentView]) -> list[RelationChanges]:
        work, rules = self.work, self.rules
        if rules is None:
            return [run for run in self._decoded(views, frozenset()) if len(run)]
        if unknown := set(work.oids) - rules.keys():
            why = f"{work.title}: what publishes a partition is not known yet"
            raise PgsluiceError(why, remedy=Remedy.LOOK, partitions=frozenset(unknown))
        texts = frozenset[str]().union(*(rules[oid].filter_columns for oid in work.oids))
        return [run for run in publish_all(rules, list(self._decoded(views, texts))) if len(run)]

    def _decoded(
        self, views: Iterable[SegmentView], texts: frozenset[str]
    ) -> Iterator[RelationChanges]:
        work = self.work
        overrides = self.options.column_overrides(work.namespace, work.name)
        for view in views:
            yield from decode_segment(
                view,
                work.oids,
                self.options.types,
                overrides,
                texts,
                unfit_texts=True,
                identify=self._identified,
            )

    def _identified(self, definition: Definition, first: int) -> Definition:
        work = self.work
        is_later = first > work.looked_at
        return identified(definition, work.known, work.relation_oid, is_later=is_later)


def _cuts(
    view: SegmentView, oids: Sequence[int], most_bytes: int
) -> Iterator[tuple[SegmentView, int]]:
    """Parts of a view of about this size of some relations' changes, each with its size."""
    block = view.block
    is_change = np.isin(block.oids, oids)
    sizes = np.cumsum(np.where(is_change, block.ends - block.starts + _CHANGE_BYTES, 0))
    total = int(sizes[-1]) if len(sizes) else 0
    if total <= most_bytes:
        yield view, total
        return
    bounds = np.searchsorted(sizes, np.arange(most_bytes, total, most_bytes), side="right")
    relations = view.relations
    for begin, end in pairwise(sorted({0, *bounds.tolist(), len(block)})):
        part = block.select(np.arange(begin, end))
        size = int(sizes[end - 1]) - (int(sizes[begin - 1]) if begin else 0)
        yield SegmentView(view.name, view.start, view.end, relations, part), size
        relations = relations_after(relations, part)


def _ranges(sizes: Sequence[int], most_bytes: int) -> Iterator[tuple[int, int]]:
    """Group neighbours into ranges (first, after the last) of about this size."""
    first = size = 0
    for number, each in enumerate(sizes):
        if number > first and size + each > most_bytes:
            yield first, number
            first, size = number, 0
        size += each
    if len(sizes) > first:
        yield first, len(sizes)
