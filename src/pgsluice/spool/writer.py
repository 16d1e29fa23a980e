"""The spool's one writer: segments, parts, the frontier, and what is released.

There is one writer a spool: the process that holds its lock, under an epoch that it raised
durably before it wrote anything. Every method returns only when what it wrote is durable,
and leaves the spool as it was when it fails.

A transaction that arrives before its commit, or does not fit a segment, is written as parts
(:mod:`pgsluice.spool.parts_writer`); nothing reads them until the reference segment at its
commit. A prepared one waits under a marker of its own (:mod:`pgsluice.spool.prepared`). Parts that
neither names (their writer died, or its connection broke) are deleted at the next start: the
stream comes again. What comes again though its commit is here already is dropped.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from types import TracebackType

import numpy as np

from pgsluice.errors import ProtocolError, SpoolError
from pgsluice.failpoints import failpoint
from pgsluice.lsn import Lsn
from pgsluice.spool.block import FACTS_TAG, MessageBlock, RelationInForce
from pgsluice.spool.identity import FORMAT
from pgsluice.spool.layout import EPOCH, PARTS, PREPARED, SEGMENTS, SegmentName, new_segment
from pgsluice.spool.lock import writer_lock
from pgsluice.spool.parts import InForce
from pgsluice.spool.parts_writer import PartsWriter
from pgsluice.spool.reader import (
    SegmentInfo,
    SpoolReader,
    relations_after,
    roots_of,
)
from pgsluice.spool.scan import COMMIT, RELATION, Counts, RawMessages, count_changes, plain_block
from pgsluice.spool.segment import SegmentHeader, write_segment
from pgsluice.spool.spool import ChainStart, Spool


class SpoolWriter:
    """Writes one spool; a context manager that holds the writer's lock.

    Args:
        spool: with a registered beginning.

    Attributes:
        spool: whose writer it is.
        epoch: this writer's number.
        parts: the transactions that arrive in parts.
        in_force: what the connection has said of relations so far.
        mutex: held by whoever changes the spool.

    Raises:
        SpoolBusy: another process writes.
        SpoolError: the spool is still an intent, or its files cannot be written.
    """

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self.mutex = threading.RLock()
        self._lock = writer_lock(spool.path)
        self._lock.acquire()
        try:
            self._reader = SpoolReader(spool)
            self._reader.start()
            self.epoch = self._raise_epoch()
            self.in_force: dict[int, RelationInForce] = {}
            self.parts = PartsWriter(self)
            self._clean_up()
            self._position = self._reader.position()
            self._frontier = self._reader.frontier()
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> SpoolWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the lock back. Parts of transactions still open stay for the next start."""
        self._lock.release()

    @property
    def position(self) -> Lsn:
        """The last durable position."""
        return self._position

    @property
    def frontier(self) -> Lsn:
        """The durable frontier; >= the position."""
        return max(self._frontier, self._position)

    @property
    def last_received(self) -> Lsn:
        """The end of the last commit, or a place inside the record of a later prepare."""
        return max([self._position, *(Lsn(one.prepare_lsn + 1) for one in self.parts.prepared())])

    @property
    def reader(self) -> SpoolReader:
        """A reader over the same listing; for the writer's own thread."""
        return self._reader

    def _raise_epoch(self) -> int:
        data = self.spool.storage.read(EPOCH)
        epoch = 1 if data is None else int(json.loads(data)["epoch"]) + 1
        content = json.dumps({"format": FORMAT, "epoch": epoch, "pid": os.getpid()})
        self.spool.storage.replace(EPOCH, content.encode())
        return epoch

    def _clean_up(self) -> None:
        """Remove what an earlier writer left: half-written files, parts that nothing names,
        and segments that were released but not deleted yet."""
        storage = self.spool.storage
        for folder in (SEGMENTS, PARTS, PREPARED):
            storage.remove_temporaries(folder)
        floor = self._reader.start()
        named: set[str] = set()
        committed: set[str] = set()
        for info in self._reader.all_segments():
            if info.is_reference:
                committed.add(info.header.transaction)
            if info.end <= floor:
                storage.delete(info.name)
            elif info.is_reference:
                named.update(part.name for part in info.header.parts)
        named |= self.parts.load(committed)
        for entry in storage.entries(PARTS):
            if entry.name not in named:
                storage.delete(entry.name)

    def forget_relations(self) -> None:
        """A new connection: the server sends every relation again before it is used."""
        with self.mutex:
            self.in_force.clear()
            self.parts.abandon_all()

    def append(self, messages: RawMessages) -> SegmentInfo | None:
        """Make whole transactions durable as one segment.

        Transactions at or below the position are dropped; without anything left there is no
        segment, and None is returned.

        Raises:
            ProtocolError: the messages are not whole transactions.
            SpoolFull, SpoolError: they could not be written; nothing changed.
        """
        with self.mutex:
            block = plain_block(messages.data, messages.starts, messages.ends, messages.lsns)
            if len(block) and block.positions[0] <= self._position:
                messages, block = self._past_position(messages, block)
            if not len(block) or block.positions[-1] <= self._position:
                self.in_force = relations_after(self.in_force, block)
                return None
            commits = np.flatnonzero(block.tags == COMMIT)
            counts = count_changes(block)
            timestamps = block.commit_timestamps[commits].tolist()
            name = SegmentName(self._position, Lsn(int(block.positions[-1])), self.epoch)
            in_force = relations_after(self.in_force, block)
            header = self.header(
                "segment",
                counts,
                self.in_force,
                roots=roots_of(counts.relations, in_force),
                start=name.start,
                end=name.end,
                transactions=len(commits),
                first_commit_timestamp=timestamps[0] if timestamps else None,
                last_commit_timestamp=timestamps[-1] if timestamps else None,
            )
            info = self.put_segment(name, header, messages)
            self.in_force = in_force
            return info

    def _past_position(
        self, messages: RawMessages, block: MessageBlock
    ) -> tuple[RawMessages, MessageBlock]:
        """Without transactions that are in the spool already; what they say of relations
        stays, since it holds for those that follow."""
        says = (block.tags == RELATION) | (block.tags == FACTS_TAG)
        old = block.positions <= self._position
        self.in_force = relations_after(self.in_force, block.select(old & says))
        kept = RawMessages(
            messages.data, messages.starts[~old], messages.ends[~old], messages.lsns[~old]
        )
        return kept, block.select(~old)

    def header(
        self, kind: str, counts: Counts, in_force: InForce | None = None, **more: object
    ) -> SegmentHeader:
        identity = self.spool.identity
        in_force = in_force or {}
        return replace(
            SegmentHeader(kind=kind, spool_id=identity.spool_id, epoch=self.epoch),
            relations={oid: in_force[oid] for oid in counts.relations if oid in in_force},
            counts=dict(counts.relations),
            messages=counts.messages,
            changes=counts.changes,
            publications=identity.publications,
            options=dict(identity.options),
            **more,  # type: ignore[arg-type]  # fields of the header, checked by replace
        )

    def put_segment(
        self, name: SegmentName, header: SegmentHeader, messages: RawMessages | None
    ) -> SegmentInfo:
        full = new_segment(name)
        if name.end <= name.start:
            raise ProtocolError(f"a segment would end at {name.end}, not past {name.start}")
        size = self.spool.storage.put(full, lambda file: write_segment(file, header, messages))
        failpoint("spool.after_segment")
        self._position = name.end
        return SegmentInfo(
            full, name.start, name.end, self.epoch, name.is_reference, 0.0, size,
            self.spool.storage, header,
        )  # fmt: skip

    def advance_frontier(self, lsn: Lsn) -> None:
        """Make it durable that everything up to ``lsn`` was received; lower ones do nothing."""
        with self.mutex:
            if lsn > self.frontier:
                self.spool.write_frontier(lsn)
                self._frontier = lsn

    def lower_frontier(self, lsn: Lsn) -> None:
        """Make it durable that only what is up to ``lsn`` was received from the source as it
        is now: another server was promoted there. Higher ones do nothing.

        Raises:
            SpoolError: commits or prepares past it are here.
        """
        with self.mutex:
            if self.last_received > lsn:
                raise SpoolError(f"the frontier cannot go down to {lsn}: there is more")
            if lsn < self.frontier:
                self.spool.write_frontier(lsn)
                self._frontier = lsn

    def size_bytes(self) -> int:
        """Bytes of all segments and parts."""
        storage = self.spool.storage
        return sum(
            entry.size_bytes for name in (SEGMENTS, PARTS) for entry in storage.entries(name)
        )

    def release(self, through: Lsn, *, written_before: float | None = None) -> int:
        """Delete segments that end at or below ``through``, with their parts, oldest first.

        Args:
            through: what every hold has passed.
            written_before: keep what was written at or after this (seconds since 1970).

        Returns:
            How many segments were deleted.
        """
        with self.mutex:
            start = self.spool.chain_start()
            assert start is not None
            going: list[SegmentInfo] = []
            for info in self._reader.all_segments():
                young = written_before is not None and info.written_at >= written_before
                if info.end > through or young:
                    break
                going.append(info)
            if going:
                self._delete(start, going)
            return len(going)

    def _delete(self, start: ChainStart, going: list[SegmentInfo]) -> None:
        """The floor rises durably first: a crash in between leaves files that nobody reads."""
        parts = [p.name for info in going if info.is_reference for p in info.header.parts]
        self.spool.raise_floor(start, max(start.floor, going[-1].end))
        failpoint("spool.after_floor")
        for name in [info.name for info in going] + parts:
            self.spool.storage.delete(name)
