"""The spool's one writer: segments, parts, the frontier, and what is released.

There is one writer a spool: the process that holds its lock, under an epoch that it raised
durably before it wrote anything. Every method returns only when what it wrote is durable,
and leaves the spool as it was when it fails.

A transaction that does not fit a segment is written as parts while it arrives; nothing reads
them until the reference segment at its commit. Parts that no reference names (their writer
died, or its connection broke) are deleted at the next start: the stream comes again.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

import numpy as np

from pgsluice.errors import ProtocolError, SpoolBusy, SpoolError
from pgsluice.failpoints import failpoint
from pgsluice.lsn import Lsn
from pgsluice.spool.block import FACTS_TAG, MessageBlock, RelationInForce
from pgsluice.spool.identity import FORMAT
from pgsluice.spool.reader import PARTS, SEGMENTS, SegmentInfo, SpoolReader, relations_after
from pgsluice.spool.scan import (
    COMMIT,
    RELATION,
    Counts,
    RawMessages,
    RelationCounts,
    count_changes,
    part_block,
    plain_block,
)
from pgsluice.spool.segment import PartReference, SegmentHeader, SegmentName, write_segment
from pgsluice.spool.spool import ChainStart, Spool
from pgsluice.spool.storage import shard_now

_EPOCH, _LOCK = "epoch.json", "writer.lock"


@dataclass(slots=True)
class _OpenTransaction:
    """A transaction whose parts are being written."""

    parts: list[PartReference] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    body: int = 1


class SpoolWriter:
    """Writes one spool; a context manager that holds the writer's lock.

    Args:
        spool: with a registered beginning.

    Raises:
        SpoolBusy: another process writes.
        SpoolError: the spool is still an intent, or its files cannot be written.
    """

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self._mutex = threading.RLock()
        self._lock = lock_spool(spool.path)
        try:
            self._reader = SpoolReader(spool)
            self._reader.start()
            self.epoch = self._raise_epoch()
            self._in_force: dict[int, RelationInForce] = {}
            self._open: dict[str, _OpenTransaction] = {}
            self._clean_up()
            self._position = self._reader.position()
            self._frontier = self._reader.frontier()
        except BaseException:
            os.close(self._lock)
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
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

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
        return self._position

    @property
    def reader(self) -> SpoolReader:
        """A reader over the same listing; for the writer's own thread."""
        return self._reader

    def _raise_epoch(self) -> int:
        data = self.spool.storage.read(_EPOCH)
        epoch = 1 if data is None else int(json.loads(data)["epoch"]) + 1
        content = json.dumps({"format": FORMAT, "epoch": epoch, "pid": os.getpid()})
        self.spool.storage.replace(_EPOCH, content.encode())
        return epoch

    def _clean_up(self) -> None:
        """Remove what an earlier writer left: half-written files, parts without a reference,
        and segments that were released but not deleted yet."""
        storage = self.spool.storage
        for folder in (SEGMENTS, PARTS):
            storage.remove_temporaries(folder)
        floor = self._reader.start()
        named: set[str] = set()
        for info in self._reader.all_segments():
            if info.end <= floor:
                storage.delete(info.name)
            elif info.is_reference:
                named.update(part.name for part in info.header.parts)
        for entry in storage.entries(PARTS):
            if entry.name not in named:
                storage.delete(entry.name)

    def forget_relations(self) -> None:
        """A new connection: the server sends every relation again before it is used."""
        with self._mutex:
            self._in_force.clear()
            for key in list(self._open):
                self.abandon(key)

    def append(self, messages: RawMessages) -> SegmentInfo | None:
        """Make whole transactions durable as one segment.

        Transactions at or below the position are dropped; without anything left there is no
        segment, and None is returned.

        Raises:
            ProtocolError: the messages are not whole transactions.
            SpoolFull, SpoolError: they could not be written; nothing changed.
        """
        with self._mutex:
            block = plain_block(messages.data, messages.starts, messages.ends, messages.lsns)
            if len(block) and block.positions[0] <= self._position:
                messages, block = self._past_position(messages, block)
            if not len(block) or block.positions[-1] <= self._position:
                self._in_force = relations_after(self._in_force, block)
                return None
            commits = np.flatnonzero(block.tags == COMMIT)
            counts = count_changes(block)
            timestamps = block.commit_timestamps[commits].tolist()
            name = SegmentName(self._position, Lsn(int(block.positions[-1])), self.epoch)
            in_force = relations_after(self._in_force, block)
            header = self._header(
                "segment",
                counts,
                roots=_roots(counts, in_force),
                start=name.start,
                end=name.end,
                transactions=len(commits),
                first_commit_timestamp=timestamps[0] if timestamps else None,
                last_commit_timestamp=timestamps[-1] if timestamps else None,
            )
            info = self._put_segment(name, header, messages)
            self._in_force = in_force
            return info

    def _past_position(
        self, messages: RawMessages, block: MessageBlock
    ) -> tuple[RawMessages, MessageBlock]:
        """Without transactions that are in the spool already; what they say of relations
        stays, since it holds for those that follow."""
        says = (block.tags == RELATION) | (block.tags == FACTS_TAG)
        old = block.positions <= self._position
        self._in_force = relations_after(self._in_force, block.select(old & says))
        kept = RawMessages(
            messages.data, messages.starts[~old], messages.ends[~old], messages.lsns[~old]
        )
        return kept, block.select(~old)

    def append_part(self, transaction: str, messages: RawMessages, *, body: int = 1) -> None:
        """Make a piece of an open transaction durable.

        Args:
            transaction: the transaction's key, unique among those this writer has open;
                letters, digits and ``-``.
            messages: what arrived since its last part.
            body: 5 for messages that carry an in-stream xid, else 1.

        Raises:
            SpoolFull, SpoolError: it could not be written; nothing changed.
        """
        with self._mutex:
            state = self._open.setdefault(transaction, _OpenTransaction(body=body))
            block = part_block(
                messages, body=body, position=0, commit_timestamp=0, xid=0, ordinal_start=0
            )
            counts, sequence = count_changes(block), len(state.parts)
            in_force = relations_after(self._in_force, block)
            header = self._header(
                "part", counts, body=body, transaction=transaction, sequence=sequence
            )
            name = f"{PARTS}/{shard_now()}/{self.epoch:08X}-{transaction}-{sequence:06d}.arrow"
            size = self.spool.storage.put(name, lambda file: write_segment(file, header, messages))
            self._in_force = in_force
            state.parts.append(PartReference(name, size, counts.messages, state.counts.changes))
            _add(state.counts, counts)
            failpoint("spool.after_part")

    def commit(
        self, transaction: str, *, position: Lsn, commit_timestamp: int, xid: int
    ) -> SegmentInfo:
        """Make a transaction's parts readable, by one reference segment at its commit.

        Args:
            transaction: the key of its parts; its last message is in them.
            position: the transaction's end LSN.
            commit_timestamp: microseconds since 1970-01-01 UTC.
            xid: the top-level transaction's.

        Raises:
            SpoolFull, SpoolError: it could not be written; nothing changed.
        """
        with self._mutex:
            state = self._open[transaction]
            if position <= self._position:
                raise SpoolError(f"a transaction at {position} follows one at {self._position}")
            name = SegmentName(self._position, position, self.epoch, is_reference=True)
            header = replace(
                self._header("reference", state.counts, start=name.start, end=position),
                transactions=1,
                relations={},
                roots=_roots(state.counts, self._in_force),
                first_commit_timestamp=commit_timestamp,
                last_commit_timestamp=commit_timestamp,
                body=state.body,
                transaction=transaction,
                xid=xid,
                parts=tuple(state.parts),
            )
            info = self._put_segment(name, header, None)
            del self._open[transaction]
            return info

    def abandon(self, transaction: str) -> None:
        """Delete the parts of a transaction that will not be committed (not from here)."""
        with self._mutex:
            state = self._open.pop(transaction, None)
            for part in state.parts if state else ():
                self.spool.storage.delete(part.name)

    def _header(self, kind: str, counts: Counts, **more: object) -> SegmentHeader:
        identity = self.spool.identity
        in_force = self._in_force
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

    def _put_segment(
        self, name: SegmentName, header: SegmentHeader, messages: RawMessages | None
    ) -> SegmentInfo:
        full = f"{SEGMENTS}/{shard_now()}/{name}"
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
        with self._mutex:
            if lsn > self.frontier:
                self.spool.write_frontier(lsn)
                self._frontier = lsn

    def lower_frontier(self, lsn: Lsn) -> None:
        """Make it durable that only what is up to ``lsn`` was received from the source as it
        is now: another server was promoted there. Higher ones do nothing.

        Raises:
            SpoolError: commits or prepares past it are here.
        """
        with self._mutex:
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
        with self._mutex:
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


def lock_spool(path: Path) -> int:
    """Take the writer's lock of the spool in a folder that is there.

    Returns:
        a file descriptor; closing it, or the end of the process, gives the lock back.

    Raises:
        SpoolBusy: another process has it.
    """
    descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise SpoolBusy(
            f"another process writes to the spool {path}",
            hint="one capture a slot: stop the other one, or leave the work to it",
            path=str(path),
        ) from error
    return descriptor


def _roots(counts: Counts, in_force: dict[int, RelationInForce]) -> dict[int, int]:
    """The root of each relation that the counts name."""
    roots = {}
    for oid in counts.relations:
        known = in_force.get(oid)
        roots[oid] = oid if known is None or known.facts is None else known.facts.root_oid
    return roots


def _add(total: Counts, more: Counts) -> None:
    total.messages += more.messages
    total.changes += more.changes
    for oid, counts in more.relations.items():
        mine = total.relations.setdefault(oid, RelationCounts())
        mine.inserts += counts.inserts
        mine.updates += counts.updates
        mine.deletes += counts.deletes
        mine.truncates += counts.truncates
        mine.size_bytes += counts.size_bytes
