"""The spool's writer: writes segments, transactions in parts and the received-through LSN, and
deletes segments.

One process writes a spool. It holds the writer's lock, and raises the spool's epoch durably before
it writes anything else. Every method returns after its changes are durable; if it fails, the spool
is unchanged. At its start, the writer deletes what an earlier one left of transactions without a
commit or PREPARE: the server resends them. What the spool has already of a resent one is dropped.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pgsluice.errors import SpoolError
from pgsluice.failpoints import failpoint
from pgsluice.lsn import Lsn
from pgsluice.spool.layout import (
    COMMITS,
    FRONTIER,
    IDENTITY,
    PARTS,
    PREPARED,
    RELEASED,
    SEGMENTS,
    START,
    PartName,
)
from pgsluice.spool.lock import writer_lock
from pgsluice.spool.segments.block import (
    COMMIT,
    FACTS_TAG,
    RELATION,
    RawMessages,
    count_changes,
    plain_block,
    relations_of,
)
from pgsluice.spool.segments.chain import ChainEnd, Written
from pgsluice.spool.segments.header import SegmentHeader
from pgsluice.spool.segments.parts_writer import PartsWriter
from pgsluice.spool.segments.reader import SegmentInfo, SpoolReader, relations_after, roots_of
from pgsluice.spool.segments.recent_commits import RecentCommits, Remembered, Request, commits_of
from pgsluice.spool.spool import ChainStart, Spool


class SpoolWriter:
    """Writes one spool; a context manager that holds the writer's lock.

    Args:
        spool: a spool whose chain has a start.
        patience_s: how long to wait for another writer that is about to end, in seconds.
        confirm: called after the epoch is raised and before anything else is changed; raises if
            another process receives from the slot.

    Attributes:
        reader: reads the same files; for the writer's own thread only.
        parts: writes the transactions in parts.

    Raises:
        SpoolBusy, SpoolTaken: another process on this machine, or on another one, writes the spool.
        SpoolError: the spool is still an intent, or its files cannot be written.
    """

    def __init__(
        self, spool: Spool, patience_s: float = 0.0, confirm: Callable[[], None] = lambda: None
    ) -> None:
        self.spool = spool
        self._lock = writer_lock(spool.path, patience_s)
        self._lock.acquire()
        try:
            self.reader = SpoolReader(spool)
            self.reader.start()
            epoch = spool.raise_epoch()
            confirm()
            spool.storage.own((IDENTITY, START, FRONTIER, COMMITS, RELEASED))
            position = self.reader.position()
            self._recent = RecentCommits(self.reader, position)
            self._chain = ChainEnd(spool, epoch, self._recent, position)
            self.parts = PartsWriter(self._chain)
            self._clean_up()
            self._frontier = self.reader.frontier()
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> SpoolWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock. The next writer deletes the parts of open transactions."""
        self._lock.release()

    @property
    def epoch(self) -> int:
        """This writer's number, which is higher than those of all earlier writers."""
        return self._chain.epoch

    @property
    def position(self) -> Lsn:
        """The end of the last commit that is durable in the spool."""
        return self._chain.position

    @property
    def frontier(self) -> Lsn:
        """The durable received-through LSN, at least the position."""
        return max(self._frontier, self.position)

    @property
    def written(self) -> Written:
        """How many transactions and rows this writer has appended; any thread may read it."""
        return self._chain.written

    @property
    def last_received(self) -> Lsn:
        """The end of the last commit, or a position inside a later PREPARE record."""
        prepared = (Lsn(header.prepare_lsn + 1) for header in self.parts.prepared)
        return max([self.position, *prepared])

    def _clean_up(self) -> None:
        """Delete temporary files, unreferenced parts, and segments below the oldest retained
        LSN."""
        storage = self.spool.storage
        for folder in (SEGMENTS, PARTS, PREPARED):
            storage.remove_temporaries(folder)
        floor = self.reader.start()
        named: set[str] = set()
        committed: set[str] = set()
        for info in self.reader.all_segments():
            if info.reference is not None:
                committed.add(info.reference.transaction)
            if info.end <= floor:
                storage.delete(info.name)
            else:
                named.update(part.name for part in info.parts)
        named |= self.parts.prepared.load(committed)
        for entry in storage.entries(PARTS):
            if entry.name not in named and PartName.parse(entry.base) is not None:
                storage.delete(entry.name)

    def check_epoch(self) -> None:
        """Check that no other writer has opened the spool, once the slot is this one's; raises
        SpoolTaken."""
        self.spool.check_epoch(self.epoch)

    def forget_connection(self) -> None:
        """Prepare for a new connection: the server announces each relation again before its
        changes, and resends open transactions, so their parts are deleted."""
        with self._chain.mutex:
            self._chain.in_force = {}
            self.parts.abandon_all()

    def append(self, messages: RawMessages) -> SegmentInfo | None:
        """Make whole transactions durable as one segment, without those at or below the position;
        None, and no segment, if nothing remains. Raises ProtocolError if the messages are not whole
        transactions, and SpoolFull or SpoolError if they could not be written."""
        chain = self._chain
        with chain.mutex:
            block = plain_block(messages)
            if len(block) and block.positions[0] <= chain.position:
                # Drop transactions that the spool has, but not their R and ``#``, which later ones
                # need.
                announces = (block.tags == RELATION) | (block.tags == FACTS_TAG)
                old = block.positions <= chain.position
                chain.in_force = relations_after(chain.in_force, block.select(old & announces))
                messages, block = messages.select(~old), block.select(~old)
            in_force = relations_after(chain.in_force, block)
            if not len(block) or block.positions[-1] <= chain.position:
                chain.in_force = in_force
                return None
            commits = np.flatnonzero(block.tags == COMMIT)
            counts = count_changes(block)
            header = SegmentHeader(
                chain.origin(),
                counts,
                relations_of(chain.in_force, counts.relations),
                start=chain.position,
                end=Lsn(int(block.positions[-1])),
                roots=roots_of(counts.relations, in_force),
                first_commit_timestamp=(
                    int(block.commit_timestamps[commits[0]]) if len(commits) else None
                ),
            )
            info = chain.append(header, commits_of(block), messages, transactions=len(commits))
            chain.in_force = in_force
            return info

    def advance_frontier(self, lsn: Lsn) -> None:
        """Record durably that everything up to ``lsn`` was received; a no-op for a lower one."""
        with self._chain.mutex:
            if lsn > self.frontier:
                self.spool.write_frontier(lsn)
                self._frontier = lsn

    def lower_frontier(self, lsn: Lsn) -> None:
        """Lower the received-through LSN durably, because another server was promoted at ``lsn``; a
        no-op for a higher one. Raises SpoolError if the spool has later commits or prepares."""
        with self._chain.mutex:
            if self.last_received > lsn:
                raise SpoolError(
                    f"the received-through LSN cannot be lowered to {lsn}: the spool has later "
                    "commits"
                )
            if lsn < self.frontier:
                self._recent.lower(lsn)
                self.spool.write_frontier(lsn)
                self._frontier = lsn

    def remembered(self) -> Remembered | None:
        """The last commits; None: the request to which the server sent them is unknown."""
        with self._chain.mutex:
            return self._recent.remembered()

    def begin(self, request: Request) -> None:
        """Record durably what is requested from the received-through LSN on."""
        with self._chain.mutex:
            self._recent.begin(request, self.frontier)

    def size_bytes(self) -> int:
        """The size of all segments and parts of the spool, in bytes."""
        storage = self.spool.storage
        return sum(
            entry.size_bytes for name in (SEGMENTS, PARTS) for entry in storage.entries(name)
        )

    def release(self, through: Lsn, *, written_before: float | None = None) -> int:
        """Delete segments that end at or below ``through``, with their parts, oldest first, but
        none that was written at ``written_before`` (seconds since 1970) or later; returns their
        number."""
        with self._chain.mutex:
            start = self.spool.chain_start()
            assert start is not None
            released: list[SegmentInfo] = []
            for info in self.reader.all_segments():
                is_young = written_before is not None and info.written_at >= written_before
                if info.end > through or is_young:
                    break
                released.append(info)
            if released:
                parts = [part.name for info in released for part in info.parts]
                floor = max(start.floor, released[-1].end)
                self._recent.save(floor)
                failpoint("spool.after_commits")
                # The oldest retained LSN rises durably first: what a crash leaves is below it.
                self.spool.write_start(ChainStart(start.registered, floor))
                failpoint("spool.after_floor")
                self.spool.storage.delete(*(info.name for info in released), *parts)
            return len(released)
