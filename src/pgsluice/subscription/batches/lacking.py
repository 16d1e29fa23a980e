"""The oldest change that each target lacks, for status and the live view.

A target lacks the changes that the spool has past the table's own position, whatever the cause: an
unreachable store, a deferred merge, a parked table, a copy, a stopped run. So the answer needs only
the record and the spool's files, and no running process.

The header of a segment names the tables with changes. The messages of a segment are read only if a
table's position is inside the segment, as after a copy.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from pgsluice.errors import PgsluiceError
from pgsluice.lsn import Lsn
from pgsluice.spool import SegmentInfo, SpoolReader, SubscriptionRecord, TableRecord, TableState
from pgsluice.subscription.batches.planning import changed_tables, owners_of

_ROW_CHANGES = np.frombuffer(b"IUD", dtype=np.uint8)
_TRUNCATE = ord("T")


@dataclass(frozen=True, slots=True)
class Lacking:
    """The oldest change that a target lacks.

    Attributes:
        after: the target has everything up to this position; the change is past it.
        since: the change's commit time in seconds since 1970, or that of the first commit in its
            segment, which is slightly earlier.
    """

    after: Lsn
    since: float


@dataclass(frozen=True, slots=True)
class _Searched:
    """How far the spool was searched for changes of a table."""

    applied_through: Lsn
    through: Lsn
    found: Lacking | None = None


@dataclass(slots=True, eq=False)
class LackingChanges:
    """Finds the changes that targets lack; each further call reads only new files of the spool.

    Attributes:
        most_segments: how many headers to read in one call, at most.
        unknown: the tables for which nothing was found within this limit, although there are more
            segments.
    """

    reader: SpoolReader
    most_segments: float = math.inf
    unknown: frozenset[int] = frozenset()
    _searched: dict[int, _Searched] = field(default_factory=dict)

    def of(self, record: SubscriptionRecord) -> Mapping[int, Lacking]:
        """The oldest change that each target lacks, by the table's OID; tables that lack nothing
        are absent.

        Unpublished tables lack nothing, because they get no more changes.
        """
        segments = self.reader.all_segments()
        ends = [segment.end for segment in segments]
        self._searched = {
            oid: self._continued(oid, table)
            for oid, table in record.tables.items()
            if table.state is not TableState.UNPUBLISHED
        }
        open_ = [oid for oid, searched in self._searched.items() if searched.found is None]
        open_.sort(key=lambda oid: self._searched[oid].through, reverse=True)
        wanted, owners = dict[int, TableRecord](), owners_of(record)
        index = read = 0
        while index < len(segments) and (wanted or open_) and read < self.most_segments:
            if not wanted:  # nobody asks for the segments up to the next table's
                index = max(index, bisect_right(ends, self._searched[open_[-1]].through))
                if index == len(segments):
                    break
            segment = segments[index]
            index, read = index + 1, read + 1
            while open_ and self._searched[open_[-1]].through < segment.end:
                oid = open_.pop()
                wanted[oid] = record.tables[oid]
            self._search(segment, wanted, owners)
        self.unknown = frozenset(
            oid
            for oid in (*wanted, *open_)
            if index < len(ends) and self._searched[oid].through < ends[-1]
        )
        if ends:
            for oid, searched in self._searched.items():
                if searched.found is not None or oid in self.unknown:
                    continue
                if searched.through < ends[-1]:
                    self._searched[oid] = _Searched(searched.applied_through, ends[-1])
        return {oid: each.found for oid, each in self._searched.items() if each.found is not None}

    def _continued(self, oid: int, table: TableRecord) -> _Searched:
        """The earlier result for a table, if it is still valid."""
        known, position = self._searched.get(oid), table.applied_through
        if known is None or known.applied_through > position:
            return _Searched(position, position)
        if known.applied_through == position:
            return known
        return _Searched(
            position, max(position, known.through if known.found is None else position)
        )

    def _search(
        self, segment: SegmentInfo, wanted: dict[int, TableRecord], owners: Mapping[int, int]
    ) -> None:
        """Remove the tables from ``wanted`` that lack a change of this segment."""
        try:
            changed = changed_tables(segment.header, wanted, owners)
            for oid, relations in changed.items():
                position = wanted[oid].applied_through
                if segment.start < position and not self._has_after(segment, position, relations):
                    continue
                after = max(segment.start, position)
                found = Lacking(after, segment.committed_from)
                self._searched[oid] = _Searched(position, after, found)
                del wanted[oid]
        except PgsluiceError:
            return  # retention removed the file after it was listed; of a damaged one, runs say so

    def _has_after(self, segment: SegmentInfo, position: Lsn, relations: Mapping[int, int]) -> bool:
        """Whether a segment has changes of these relations after a position inside it."""
        oids = np.fromiter(relations, dtype=np.int64)
        return any(
            bool((np.isin(view.block.oids, oids) & np.isin(view.block.tags, _ROW_CHANGES)).any())
            or bool((view.block.tags == _TRUNCATE).any())
            for view in self.reader.views(segment, position)
        )
