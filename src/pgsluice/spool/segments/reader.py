"""Reads a spool: the chain of segments, and the messages between two positions.

A reader changes nothing and keeps no file open between calls. It works while the writer writes and
retention deletes. If a file is missing or unreadable, it raises an error that names the file; it
never skips one. Segments may overlap: transactions that were already read are dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pgsluice.errors import PgsluiceError, ProtocolError, SpoolError, SpoolHole
from pgsluice.hints import COPY_ALL_AGAIN
from pgsluice.lsn import Lsn
from pgsluice.spool.formats import RESTORE_FILE
from pgsluice.spool.layout import PARTS, SEGMENTS, SegmentName
from pgsluice.spool.segments.block import (
    FACTS_TAG,
    RELATION,
    Int64s,
    MessageBlock,
    RelationInForce,
    SegmentView,
    part_block,
    plain_block,
)
from pgsluice.spool.segments.header import (
    ChainHeader,
    PartHeader,
    PartReference,
    ReferenceHeader,
    SegmentHeader,
)
from pgsluice.spool.segments.segment import Objects, expect_kind
from pgsluice.spool.spool import Spool
from pgsluice.spool.storage import Entry, Storage
from pgsluice.stores.spool_place import SpoolPlace


@dataclass(slots=True)
class SegmentInfo:
    """A segment of the chain; its header is read when it is first needed.

    Attributes:
        start, end: its range (start, end].
        is_reference: whether it refers to a transaction in parts.
        written_at: seconds since 1970.
    """

    name: str
    start: Lsn
    end: Lsn
    epoch: int
    is_reference: bool
    written_at: float
    _file_bytes: int
    _objects: Objects
    _header: ChainHeader | None = field(default=None, repr=False)

    @property
    def header(self) -> ChainHeader:
        """The file's header; raises SpoolHole if the file is missing or unreadable."""
        if self._header is None:
            with _reading(self.name):
                self._header = (
                    self._objects.header(self.name, ReferenceHeader)
                    if self.is_reference
                    else self._objects.header(self.name, SegmentHeader)
                )
        return self._header

    @property
    def committed_from(self) -> float:
        """The time of its first commit in seconds since 1970; if unknown, when the file was
        written."""
        try:
            first = self.header.first_commit_timestamp
        except PgsluiceError:
            first = None
        return self.written_at if first is None else first / 1e6

    @property
    def size_bytes(self) -> int:
        """Its size on the disk in bytes, including a reference's parts."""
        return self._file_bytes + sum(part.size_bytes for part in self.parts)

    @property
    def parts(self) -> tuple[PartReference, ...]:
        """The parts of the transaction that a reference stands for, in order; empty for a
        segment."""
        return () if self.reference is None else self.reference.parts

    @property
    def reference(self) -> ReferenceHeader | None:
        """The header of a reference; None for a segment, whose header is not read."""
        return expect_kind(self.header, ReferenceHeader, self.name) if self.is_reference else None


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Turn any error of reading one file into a SpoolHole with the file's name."""
    try:
        yield
    except (OSError, SpoolError, ProtocolError) as error:
        reason = error if isinstance(error, OSError) else error.what
        raise SpoolHole(
            f"pgsluice cannot read the spool's file {name}: {reason}",
            hint=RESTORE_FILE,
            path=name,
        ) from error


@dataclass(frozen=True, slots=True)
class _Listed:
    """One listing of the segments' folder, with the parsed names."""

    entries: Sequence[Entry]
    infos: dict[str, SegmentInfo]
    chain: list[SegmentInfo]


class SpoolReader:
    """Reads one spool; thread-safe. Raises SpoolError if there is none.

    Args:
        path: where the spool is, or an opened spool.
        keep_bytes: keep this many bytes of read segments in memory, for one table after the other.
    """

    def __init__(self, path: SpoolPlace | Path | Spool, *, keep_bytes: int = 0) -> None:
        self.spool = path if isinstance(path, Spool) else Spool.open(path)
        self._storage: Storage = self.spool.storage
        self._objects = Objects(self.spool)
        self._listed = _Listed([], {}, [])
        self._kept: dict[str, tuple[SegmentHeader, MessageBlock]] = {}
        self._keep_bytes = keep_bytes
        self._lock = threading.Lock()

    @staticmethod
    def is_there(path: SpoolPlace | Path) -> bool:
        """Whether there is a spool with a start, so that it can be read."""
        return Spool.exists(path) and Spool.open(path).chain_start() is not None

    def start(self) -> Lsn:
        """Where the chain starts: no position at or below it can be read. Raises SpoolError if its
        slot was never created."""
        start = self.spool.chain_start()
        if start is None:
            raise SpoolError(
                f"the spool {self.spool.place} is empty: its replication slot does not exist yet",
                hint="start `pgsluice run CONFIG` or `pgsluice capture CONFIG`, which creates the "
                "slot",
                path=str(self.spool.place),
            )
        return start.floor

    def parts(self) -> dict[str, int]:
        """The size in bytes of each part, by name, including parts of open transactions."""
        return {entry.name: entry.size_bytes for entry in self._storage.entries(PARTS)}

    def position(self) -> Lsn:
        """The last position in the spool; while it is empty, the start of the chain."""
        chain = self.all_segments()
        start = self.start()  # after the listing, so that it tells what retention has deleted
        return max(start, chain[-1].end) if chain else start

    def frontier(self) -> Lsn:
        """Everything that the server sends up to here is durable; >= the position."""
        written = self.spool.frontier_file()  # before the listing, which may only be newer
        self._storage.refresh()
        return max(written, self.position())

    def all_segments(self) -> list[SegmentInfo]:
        """All segments and references, sorted by their ends; the chain is not checked."""
        entries, known = self._storage.entries(SEGMENTS), self._listed
        if entries is known.entries or entries == known.entries:
            return known.chain
        infos: dict[str, SegmentInfo] = {}
        for entry in entries:
            if entry.name in known.infos:
                infos[entry.name] = known.infos[entry.name]
            elif (name := SegmentName.parse(entry.base)) is not None:
                infos[entry.name] = SegmentInfo(
                    entry.name, name.start, name.end, name.epoch, name.is_reference,
                    entry.written_at, entry.size_bytes, self._objects,
                )  # fmt: skip
        chain = sorted(infos.values(), key=lambda info: (info.end, info.start, info.epoch))
        self._listed = _Listed(entries, infos, chain)
        return chain

    def segments(self, start: Lsn, end: Lsn | None = None) -> list[SegmentInfo]:
        """The segments that cover (start, end], in order, without covered duplicates. ``start`` may
        be inside a segment; without ``end``, they go to the end of the chain.

        Raises:
            SpoolHole: the chain has a gap in this range, ``start`` is before the chain's start, or
                ``end`` is past the frontier.
        """
        chain = self.all_segments()
        frontier = None
        if end is not None and not (chain and chain[-1].end >= end):
            frontier = self.frontier()
            chain = self.all_segments()
        candidates = [info for info in chain if info.end > start]
        floor = self.start()  # after the listing, so that it tells what retention has deleted
        if start < floor:
            raise SpoolHole(
                f"the spool no longer has the changes from {start} to {floor}, where it starts",
                hint=COPY_ALL_AGAIN,
                lsn=start,
                path=str(self.spool.place),
            )
        if end is not None and frontier is not None and end > frontier:
            raise SpoolHole(
                f"the spool ends at {frontier}, before the end of the batch at {end}",
                hint="check that the path leads to the spool that the checkpoint was made with",
                lsn=end,
                path=str(self.spool.place),
            )
        chosen = self._follow(candidates, start, end)
        self._storage.will_open([info.name for info in chosen])
        return chosen

    def _follow(
        self, candidates: list[SegmentInfo], start: Lsn, end: Lsn | None
    ) -> list[SegmentInfo]:
        chosen: list[SegmentInfo] = []
        reached = start
        for index, info in enumerate(candidates):
            if end is not None and reached >= end:
                break
            if info.end <= reached:
                continue
            following = next(
                (next_ for next_ in candidates[index:] if next_.start <= reached), None
            )
            if following is None:
                before = chosen[-1].name if chosen else f"position {reached}"
                raise SpoolHole(
                    f"the spool lacks the changes between {reached} and {info.start}: a file is "
                    f"missing between {before} and {info.name}",
                    hint=RESTORE_FILE,
                    lsn=reached,
                    path=info.name,
                )
            if end is None or following.start < end:
                chosen.append(following)
                reached = following.end
        return chosen

    def views_between(
        self, start: Lsn, end: Lsn | None = None, parts: tuple[int, int] | None = None
    ) -> Iterator[SegmentView]:
        """The messages with positions in (start, end], ready to decode, each once although segments
        may overlap; without ``end``, up to the end of the chain. Raises SpoolHole as
        :meth:`segments`, or if a file is missing or unreadable.

        Args:
            parts: the first part and the one after the last, if the range is a section of one
                transaction in parts; None: all parts.
        """
        reached = start
        for info in self.segments(start, end):
            yield from self.views(info, reached, end, parts)
            reached = info.end

    def views(
        self,
        info: SegmentInfo,
        after: Lsn | None = None,
        through: Lsn | None = None,
        parts: tuple[int, int] | None = None,
    ) -> Iterator[SegmentView]:
        """A segment's messages with positions in (after, through], ready to decode; raises
        SpoolHole if a file is missing or unreadable.

        A segment has one view, a reference has one for each part. A view's arrays use a
        memory-mapped file, which stays mapped as long as the view exists.
        """
        first_end = info.start if after is None else after
        last = info.end if through is None else through
        if info.reference is not None:
            if first_end < info.end <= last:
                yield from self._part_views(info, info.reference, slice(*parts or (None,)))
            return
        header, block = self._segment(info)
        relations = header.relations
        if first_end > info.start or last < info.end:
            first, past = np.searchsorted(
                block.positions, (int(first_end), int(last)), side="right"
            )
            if first:
                relations = relations_after(relations, block, stop=int(first))
            block = block.select(np.arange(first, past))
        if len(block):
            yield SegmentView(info.name, info.start, info.end, relations, block)

    def _segment(self, info: SegmentInfo) -> tuple[SegmentHeader, MessageBlock]:
        """A segment's header and messages."""
        with self._lock:  # threads that want the same segment wait for the first of them
            read = self._kept.get(info.name)
            if read is None:
                with _reading(info.name):
                    header, messages = self._objects.read(info.name, SegmentHeader)
                    read = header, plain_block(messages)
                if info.size_bytes <= self._keep_bytes:
                    self._keep_bytes -= info.size_bytes
                    self._kept[info.name] = read
            return read

    def _part_views(
        self, info: SegmentInfo, reference: ReferenceHeader, wanted: slice
    ) -> Iterator[SegmentView]:
        known = reference.relations
        self._storage.will_open([part.name for part in reference.parts[wanted]])
        for part in reference.parts[wanted]:
            with _reading(part.name):
                header, messages = self._objects.read(part.name, PartHeader)
                kept = np.ones(len(messages), dtype=np.bool_)
                for first, past in part.drops:
                    kept[first:past] = False
                block = part_block(
                    messages.select(kept) if part.drops else messages,
                    in_stream=header.in_stream,
                    position=reference.end,
                    commit_timestamp=reference.commit_timestamp,
                    xid=reference.xid,
                    ordinal_start=part.ordinal_start,
                )
            relations = header.relations
            if known:
                # The facts were looked up at the commit, and hold for the whole transaction.
                relations = {
                    **known,
                    **{
                        oid: RelationInForce(announced.relation, known[oid].facts)
                        for oid, announced in relations.items()
                        if oid in known
                    },
                }
                block = block.select(block.tags != FACTS_TAG)
            yield SegmentView(part.name, info.start, info.end, relations, block)


def relations_after(
    relations: Mapping[int, RelationInForce], block: MessageBlock, stop: int | None = None
) -> dict[int, RelationInForce]:
    """The relations in force after a block's first ``stop`` messages (None: after all); raises
    ProtocolError if a relation's metadata is unreadable."""
    result = dict(relations)
    tags = block.tags[:stop]
    rows: Int64s = np.flatnonzero((tags == RELATION) | (tags == FACTS_TAG))
    for row in rows.tolist():
        oid, message = int(block.oids[row]), block.message(row)
        known = result.get(oid)
        if block.tags[row] == RELATION:
            raw = message[:1] + message[block.body_offset :]
            result[oid] = RelationInForce(raw, None if known is None else known.facts)
        elif known is not None:
            try:
                facts = block.facts(row)
            except ValueError as error:
                what = "a relation's metadata in the spool cannot be read"
                raise ProtocolError(what, tag="#") from error
            result[oid] = RelationInForce(known.relation, facts)
    return result


def roots_of(oids: Collection[int], in_force: Mapping[int, RelationInForce]) -> dict[int, int]:
    """The partitioned table at the root of each relation; itself, if it is no partition."""
    roots = {}
    for oid in oids:
        known = in_force.get(oid)
        roots[oid] = oid if known is None or known.facts is None else known.facts.root_oid
    return roots
