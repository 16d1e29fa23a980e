"""The spool's one writer: segments, parts, the frontier, and what is released.

There is one writer a spool: the process that holds its lock, under an epoch that it raised
durably before it wrote anything. Every method returns only when what it wrote is durable,
and leaves the spool as it was when it fails.

A transaction that arrives before its commit, or does not fit a segment, is written as parts
(:mod:`pgsluice.spool.parts`); nothing reads them until the reference segment at its commit.
A prepared one waits under a marker of its own (:mod:`pgsluice.spool.prepared`). Parts that
neither names (their writer died, or its connection broke) are deleted at the next start: the
stream comes again. What comes again though its commit is here already is dropped.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np

from pgsluice.catalog.facts import RelationFacts
from pgsluice.errors import ProtocolError, SpoolBusy, SpoolError
from pgsluice.failpoints import failpoint
from pgsluice.lsn import Lsn
from pgsluice.spool.block import FACTS_TAG, MessageBlock, RelationInForce
from pgsluice.spool.identity import FORMAT
from pgsluice.spool.parts import TransactionInParts, WrittenPart
from pgsluice.spool.prepared import PREPARED, PreparedTransactions
from pgsluice.spool.reader import PARTS, SEGMENTS, SegmentInfo, SpoolReader, relations_after
from pgsluice.spool.scan import (
    COMMIT,
    RELATION,
    Counts,
    RawMessages,
    count_changes,
    part_block,
    plain_block,
)
from pgsluice.spool.segment import (
    SegmentHeader,
    SegmentName,
    read_segment,
    write_segment,
)
from pgsluice.spool.spool import ChainStart, Spool
from pgsluice.spool.storage import shard_now

_EPOCH, _LOCK = "epoch.json", "writer.lock"

InForce = Mapping[int, RelationInForce]


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
            self._open: dict[str, TransactionInParts] = {}
            self._prepared = PreparedTransactions(spool.storage)
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
        return max([self._position, *(Lsn(one.prepare_lsn + 1) for one in self._prepared)])

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
        named |= self._prepared.load(committed)
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
                self._in_force,
                roots=_roots(counts.relations, in_force),
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
            body: 5 for messages that carry an in-stream xid, else 1. What the former say of
                relations holds for their transaction until it joins at its commit.

        Raises:
            SpoolFull, SpoolError: it could not be written; nothing changed.
        """
        with self._mutex:
            state = self._open.setdefault(transaction, TransactionInParts(body))
            before = self._in_force if body == 1 else state.in_force
            counts, in_force = _measure(messages, body, before)
            header = self._header(
                "part", counts, before, body=body, transaction=transaction, sequence=state.sequence
            )
            file = f"{self.epoch:08X}-{transaction}-{state.sequence:06d}.arrow"
            name = f"{PARTS}/{shard_now()}/{file}"
            size = self.spool.storage.put(name, lambda file: write_segment(file, header, messages))
            if body == 1:
                self._in_force = dict(in_force)
            kept = len(messages)
            state.parts.append(WrittenPart(name, size, kept, kept, counts, in_force))
            state.sequence += 1
            failpoint("spool.after_part")

    def take_back(self, transaction: str, kept_messages: int) -> None:
        """Keep only the first messages of an open transaction: a subtransaction aborted.

        Args:
            transaction: the key of its parts.
            kept_messages: how many, counted over its parts without what was taken back before.

        Raises:
            SpoolError: a part cannot be read again.
        """
        with self._mutex:
            state = self._open[transaction]

            def shorten(part: WrittenPart, kept: int) -> WrittenPart:
                with self.spool.storage.open(part.name) as file:
                    _, messages = read_segment(file, part.name)
                    counts, in_force = _measure(messages.first(kept), state.body, state.in_force)
                return replace(part, kept=kept, counts=counts, in_force=in_force)

            for part in state.take_back(kept_messages, shorten):
                self.spool.storage.delete(part.name)

    def commit(
        self,
        transaction: str,
        *,
        position: Lsn,
        commit_timestamp: int,
        xid: int,
        facts: Mapping[int, RelationFacts | None] | None = None,
        joining: Collection[int] = (),
    ) -> SegmentInfo | None:
        """Make a transaction's parts readable, by one reference segment at its commit.

        Args:
            transaction: the key of its parts; its last message is in them.
            position: the transaction's end LSN.
            commit_timestamp: microseconds since 1970-01-01 UTC.
            xid: the top-level transaction's.
            facts: of the relations that it changed, looked up after its commit; None when
                they stand in its messages.
            joining: relations that from now on are as this transaction has said.

        Returns:
            the reference; None when the transaction was here already.

        Raises:
            SpoolFull, SpoolError: it could not be written; nothing changed.
        """
        with self._mutex:
            state = self._open[transaction]
            relations = {} if facts is None else _with_facts(state.relations(), facts)
            learnt = _with_facts(state.in_force, facts or {})
            info = None
            if position > self._position:
                header = replace(
                    self._header("reference", state.counts()),
                    body=state.body,
                    transaction=f"{self.epoch:08X}-{transaction}",
                    xid=xid,
                    parts=state.references(),
                )
                info = self._put_reference(header, position, commit_timestamp, relations)
                del self._open[transaction]
            else:
                self.abandon(transaction)
            self._in_force.update({oid: learnt[oid] for oid in joining if oid in learnt})
            return info

    def prepare(self, transaction: str, *, gid: str, xid: int, prepare_lsn: Lsn) -> None:
        """Keep a prepared transaction's parts until its end, across restarts.

        One that is kept already (the server sends it again until it is acknowledged) is
        dropped.

        Args:
            transaction: the key of its parts; may have none.
            gid: the name that PREPARE TRANSACTION gave it.
            xid: the transaction's.
            prepare_lsn: where the prepare's record starts.

        Raises:
            SpoolFull, SpoolError: it could not be written; nothing changed.
        """
        with self._mutex:
            state = self._open.get(transaction) or TransactionInParts(1)
            header = replace(
                self._header("prepared", state.counts()),
                relations=state.relations(),
                body=state.body,
                transaction=f"{self.epoch:08X}-{transaction}",
                xid=xid,
                parts=state.references(),
                gid=gid,
                prepare_lsn=prepare_lsn,
            )
            if self._prepared.put(header):
                self._open.pop(transaction, None)
                failpoint("spool.after_prepared")
            else:
                self.abandon(transaction)

    def prepared_relations(self, gid: str, xid: int) -> tuple[int, ...]:
        """OIDs of the relations that a prepared transaction changes."""
        with self._mutex:
            kept = self._prepared.find(gid, xid)
            return () if kept is None else tuple(kept.relations)

    def commit_prepared(
        self,
        gid: str,
        xid: int,
        *,
        position: Lsn,
        commit_timestamp: int,
        facts: Mapping[int, RelationFacts | None],
    ) -> SegmentInfo | None:
        """Make a prepared transaction readable at its COMMIT PREPARED.

        Args:
            gid, xid: of the transaction.
            position: the end LSN of its commit.
            commit_timestamp: microseconds since 1970-01-01 UTC.
            facts: see :meth:`commit`.

        Returns:
            the reference; None when it was here already.

        Raises:
            SpoolError: its prepare is not in the spool.
            SpoolFull, SpoolError: it could not be written; nothing changed.
        """
        with self._mutex:
            kept = self._prepared.find(gid, xid)
            if position <= self._position:
                self.rollback_prepared(gid, xid)
                return None
            if kept is None:
                raise SpoolError(
                    f"COMMIT PREPARED at {position} of a transaction (xid {xid}) whose PREPARE "
                    "is not in the spool: it cannot be applied",
                    hint="what it changed has to be copied again: `pgsluice drop`, then start",
                    xid=xid,
                    lsn=position,
                )
            relations = _with_facts(dict(kept.relations), facts)
            header = replace(kept, spool_id=self.spool.identity.spool_id, epoch=self.epoch)
            info = self._put_reference(header, position, commit_timestamp, relations)
            failpoint("spool.after_commit_prepared")
            self._prepared.end(gid, xid)
            return info

    def rollback_prepared(self, gid: str, xid: int) -> None:
        """Forget a prepared transaction and delete its parts; nothing when it is not here."""
        with self._mutex:
            for part in self._prepared.end(gid, xid):
                self.spool.storage.delete(part.name)

    def abandon(self, transaction: str) -> None:
        """Delete the parts of a transaction that will not be committed (not from here)."""
        with self._mutex:
            state = self._open.pop(transaction, None)
            for part in state.parts if state else ():
                self.spool.storage.delete(part.name)

    def _put_reference(
        self, header: SegmentHeader, position: Lsn, commit_timestamp: int, relations: InForce
    ) -> SegmentInfo:
        name = SegmentName(self._position, position, self.epoch, is_reference=True)
        reference = replace(
            header,
            kind="reference",
            start=name.start,
            end=name.end,
            transactions=1,
            relations=relations,
            roots=_roots(header.counts, relations or self._in_force),
            first_commit_timestamp=commit_timestamp,
            last_commit_timestamp=commit_timestamp,
            gid="",
            prepare_lsn=Lsn(0),
        )
        return self._put_segment(name, reference, None)

    def _header(
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


def _measure(messages: RawMessages, body: int, before: InForce) -> tuple[Counts, InForce]:
    """What a part counts, and which relations are in force after it."""
    block = part_block(messages, body=body, position=0, commit_timestamp=0, xid=0, ordinal_start=0)
    return count_changes(block), relations_after(before, block)


def _with_facts(relations: InForce, facts: Mapping[int, RelationFacts | None]) -> InForce:
    return {
        oid: RelationInForce(one.relation, facts.get(oid, one.facts))
        for oid, one in relations.items()
    }


def _roots(oids: Collection[int], in_force: InForce) -> dict[int, int]:
    """The root of each relation."""
    roots = {}
    for oid in oids:
        known = in_force.get(oid)
        roots[oid] = oid if known is None or known.facts is None else known.facts.root_oid
    return roots
