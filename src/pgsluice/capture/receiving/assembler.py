"""Assembles frames to whole transactions: the commands to the store, in commit order.

:class:`~pgsluice.wire.TransactionMachine` decides what each message does; this module does it with
the bytes. Whole plain transactions are collected for a segment. Each open transaction (the plain
one, the one being prepared, and every streamed one) is collected separately, and is written as
parts when all of them together are too large.

Readers see an open transaction only after its end is written. An illegal message ends the
connection, so readers never see an illegal transaction.

The metadata of plain relations is read at their Relation message. That of a streamed or prepared
transaction is read at its commit, because before that other sessions cannot see what it created,
and older metadata would decode its rows wrongly. So the stream waits until the catalog shows the
transaction, which takes long only if its commit waits for a synchronous standby.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass

from pgsluice.capture.receiving.ack_policy import FlushLimit
from pgsluice.capture.receiving.facts import FactsSource
from pgsluice.capture.receiving.frames import Chunk, FrameChunks
from pgsluice.capture.receiving.open_transaction import OpenTransaction
from pgsluice.capture.receiving.store import Command, Store, to_parts
from pgsluice.errors import ProtocolError
from pgsluice.spool.segments.parts_writer import Facts, PartsWriter
from pgsluice.wire import (
    POSTGRES_EPOCH_US,
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Event,
    LogicalMessage,
    Prepare,
    Relation,
    RollbackPrepared,
    State,
    Step,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    TransactionMachine,
)

_AWAITED_S = 0.2
"""How long to hold a commit that may be waiting for capture's own acknowledgement, in seconds."""
_NOT_KEPT = frozenset("SEcAbPKrp")
"""Tags that are not stored: they delimit, end or abort a streamed or prepared transaction."""


@dataclass(slots=True)
class _Cursor:
    """The progress in a chunk: messages that the machine saw, frames assigned, and the last whole
    end."""

    chunk: Chunk
    now: float
    followed: int = 0
    kept: int = 0
    whole_end: int = 0


class TransactionAssembler:
    """Sorts the frames of one connection by transaction.

    Args:
        parallel: ``streaming 'parallel'`` was requested.

    Attributes:
        whole_since: when the oldest waiting whole transaction was received, by the caller's clock;
            None if none waits.
    """

    def __init__(
        self,
        facts: FactsSource,
        store: Store,
        limit: FlushLimit,
        *,
        parallel: bool,
    ) -> None:
        self._facts = facts
        self._store = store
        self._limit = limit
        self._machine = TransactionMachine(parallel=parallel)
        self._whole = FrameChunks()
        self._plain = OpenTransaction(0, in_stream=False)
        self._current = self._plain
        self._streams: dict[int, OpenTransaction] = {}
        self._keys = 0
        self.whole_since: float | None = None

    @property
    def whole_bytes(self) -> int:
        """Bytes of the whole transactions that wait for their segment."""
        return self._whole.size_bytes

    @property
    def holds_frontier(self) -> bool:
        """Whether a plain or a prepared transaction is partly received.

        The frontier may pass the start of a streamed transaction: the server sends it again from
        its start as long as its commit is past the frontier.
        """
        return self._machine.state in (State.TRANSACTION, State.PREPARE)

    def take(self, chunk: Chunk, now: float) -> Iterator[Command | None]:
        """Process a chunk.

        Yields:
            commands; hand each to the store before asking for the next one. None: the catalog does
            not show a transaction yet; ask again after a pause, or stop.

        Raises:
            ProtocolError: a message is malformed, or illegal at this point.
            SourceUnreachable, SourceRefused: the catalog could not be queried.
        """
        cursor = _Cursor(chunk, now)
        try:
            for number, index in enumerate(chunk.others):
                if index >= cursor.followed and not self._follow_plain(cursor, number):
                    self._follow_rows(cursor, index)
                    yield from self._follow(cursor, index, chunk.other_tags[number])
                    cursor.followed = index + 1
            self._follow_rows(cursor, len(chunk))
        except ProtocolError as error:
            raise chunk.locate(error, cursor.followed) from None
        self._keep(cursor, len(chunk))

    def take_whole(self) -> Iterator[Command]:
        """A segment of the waiting whole transactions, if there are any."""
        if self.whole_since is not None:
            self.whole_since, messages = None, self._whole.take()
            yield lambda writer: writer.append(messages)

    def overflow(self, limit_bytes: int) -> Iterator[Command]:
        """Parts to write, so that at most ``limit_bytes`` of open transactions stay in memory."""
        waiting = {id(each): each for each in (self._plain, self._current, *self._streams.values())}
        while sum(each.frames.size_bytes for each in waiting.values()) >= limit_bytes:
            largest = max(waiting.values(), key=lambda each: each.frames.size_bytes)
            yield from self._write_part(largest)

    def open_xids(self) -> set[int]:
        """The xids of open transactions and of their subtransactions."""
        return {xid for each in self._open() for xid in self._machine.first_messages(each.xid)}

    def drop_rolled_back(self, aborted: Collection[int]) -> Iterator[Command]:
        """Drop transactions that the server's catalog shows as rolled back before the stream says
        so. Their messages are dropped, too, until the stream reports the rollback.

        Args:
            aborted: the xids of transactions and subtransactions.
        """
        for transaction in self._open():
            first = self._machine.first_messages(transaction.xid)
            starts = [index for xid, index in first.items() if xid in aborted]
            if starts:
                yield from self._in_order(transaction.drop_rolled_back(min(starts)))

    def _open(self) -> list[OpenTransaction]:
        """The transactions that may still be rolled back: streamed ones, and the one being
        prepared."""
        current = self._current
        is_prepared = current is not self._plain and current.xid not in self._streams
        return [*self._streams.values(), *([current] if is_prepared else [])]

    def _keep(self, cursor: _Cursor, end: int) -> None:
        """Assign the frames up to ``end`` to their transactions."""
        first = cursor.kept
        if cursor.whole_end > first:
            self._plain.frames.move_to(self._whole)
            self._whole.add(*cursor.chunk.cut(first, cursor.whole_end))
            first = cursor.whole_end
            if self.whole_since is None:
                self.whole_since = cursor.now
        self._current.add(*cursor.chunk.cut(first, end))
        cursor.kept = end

    def _keep_own(self, cursor: _Cursor, end: int, message: bytes) -> None:
        """Insert a message of our own after the frames up to ``end``."""
        self._keep(cursor, end)
        self._current.frames.add_message(message)

    def _write_part(self, transaction: OpenTransaction) -> Iterator[Command]:
        """Write the in-memory messages of an open transaction as a part."""
        self._keys += not transaction.key
        # A key is unique by its xid: on another connection the numbers begin anew.
        yield from self._in_order(transaction.write_part(f"{transaction.xid:08X}-{self._keys:08X}"))

    def _in_order(self, command: Command | None) -> Iterator[Command]:
        """Put waiting whole transactions before this command: the spool has commits in order."""
        if command is not None:
            yield from self.take_whole()
            yield command

    def _follow_plain(self, cursor: _Cursor, number: int) -> bool:
        """Process consecutive plain transactions all at once; False: follow each message, which
        refuses a malformed one."""
        if cursor.chunk.other_tags[number] != "B" or cursor.followed < cursor.chunk.others[number]:
            return False
        plain = cursor.chunk.plain_transactions(number)
        if plain is None:
            return False
        end, (final_lsns, commit_lsns, end_lsns, oids) = plain
        if not self._machine.transactions(final_lsns, commit_lsns, end_lsns, oids):
            return False
        self._limit.check(end_lsns[-1])
        self._keep_changed_facts(cursor, cursor.followed)
        cursor.followed = cursor.whole_end = end
        return True

    def _keep_changed_facts(self, cursor: _Cursor, index: int) -> None:
        """Insert changed metadata, only before a Begin: a commit of a stream may bring newer."""
        for message in self._facts.take_changed():
            self._keep_own(cursor, index, message)

    def _follow_rows(self, cursor: _Cursor, end: int) -> None:
        first, chunk = cursor.followed, cursor.chunk
        if first < end:
            oids, xids = chunk.rows(first, end, in_stream=self._machine.in_stream)
            self._machine.changes(oids, xids, count=end - first)
            cursor.followed = end

    def _follow(self, cursor: _Cursor, index: int, tag: str) -> Iterator[Command | None]:
        """Process a message that is not a row."""
        if tag in _NOT_KEPT:
            self._keep(cursor, index)
            cursor.kept = index + 1
        message, step = self._machine.feed(cursor.chunk.message(index))
        match message:
            case Begin(xid=xid):
                self._plain.xid = xid
                self._keep_changed_facts(cursor, index)
            case Commit():
                yield from self._commit(cursor, index, message)
            case Relation(oid=oid, xid=None):
                is_seen = True
                if self._current is self._plain:
                    self._keep(cursor, index + 1)
                    is_seen = yield from self._until_seen(self._plain.xid)
                facts = self._facts.on_relation(oid, None if is_seen else message)
                if facts is not None:
                    self._keep_own(cursor, index + 1, facts)
            case Relation(oid=oid):
                self._current.announced[oid] = message
            case LogicalMessage() if step.event is Event.STANDALONE:
                self._limit.check(self._machine.position)
                cursor.whole_end = index + 1
            case StreamStart(xid):
                if step.event is Event.OPENED:
                    self._streams[xid] = OpenTransaction(xid, in_stream=True)
                self._current = self._streams[xid]
            case StreamStop():
                self._current = self._plain
            case BeginPrepare():
                self._current = OpenTransaction(message.xid, in_stream=False)
            case Prepare():
                prepared, self._current = self._current, self._plain
                yield from self._keep_prepared(prepared, message)
            case StreamPrepare():
                yield from self._keep_prepared(self._streams.pop(message.xid), message)
            case StreamAbort():
                yield from self._abort(step)
            case StreamCommit():
                yield from self._commit_stream(self._streams.pop(message.xid), message, step)
            case CommitPrepared():
                yield from self._commit_prepared(message)
            case RollbackPrepared(gid=gid, xid=xid):
                yield from self._in_order(to_parts(PartsWriter.rollback_prepared, gid, xid))

    def _until_seen(self, xid: int) -> Generator[Command | None, None, bool]:
        """Hold the stream until the catalog shows a transaction; False: its commit may await
        capture."""
        if self._facts.sees(xid):
            return True
        yield from self.take_whole()
        ends_at = time.monotonic() + _AWAITED_S
        while not self._facts.sees(xid):
            if time.monotonic() >= ends_at and self._facts.may_be_awaited():
                return False
            yield None
        return True

    def _facts_at_commit(
        self,
        xid: int,
        oids: Collection[int],
        joining: Collection[int],
        announced: Mapping[int, Relation],
    ) -> Generator[Command | None, None, Facts]:
        """The metadata of the relations that a transaction changed, as of its commit."""
        is_seen = yield from self._until_seen(xid)
        return self._facts.at_commit(oids, joining, None if is_seen else announced)

    def _commit(self, cursor: _Cursor, index: int, commit: Commit) -> Iterator[Command]:
        self._limit.check(commit.end_lsn)
        plain = self._plain
        if not plain.in_parts:
            cursor.whole_end = index + 1
            return
        self._keep(cursor, index + 1)
        yield from self._write_part(plain)
        yield to_parts(
            PartsWriter.commit,
            plain.key,
            position=commit.end_lsn,
            commit_timestamp=commit.commit_timestamp + POSTGRES_EPOCH_US,
            xid=plain.xid,
        )
        self._plain = self._current = OpenTransaction(0, in_stream=False)

    def _abort(self, step: Step) -> Iterator[Command]:
        """Drop a streamed transaction, or the messages from a subtransaction's first one on."""
        if step.event is Event.IGNORED or step.xid is None:
            return
        stream = self._streams[step.xid]
        if step.event is Event.ABORTED:
            del self._streams[step.xid]
            yield from self._in_order(stream.abandon())
        else:
            yield from self._in_order(stream.abort(step.length))

    def _commit_stream(
        self, stream: OpenTransaction, commit: StreamCommit, step: Step
    ) -> Iterator[Command | None]:
        self._limit.check(commit.end_lsn)
        stream.check_end()
        yield from self._write_part(stream)
        if stream.in_parts:
            facts = yield from self._facts_at_commit(
                stream.xid, step.relations, step.joining, stream.announced
            )
            command = to_parts(
                PartsWriter.commit,
                stream.key,
                position=commit.end_lsn,
                commit_timestamp=commit.commit_timestamp + POSTGRES_EPOCH_US,
                xid=stream.xid,
                facts=facts,
                joining=step.joining,
            )
            yield from self._in_order(command)

    def _keep_prepared(
        self, transaction: OpenTransaction, prepare: Prepare | StreamPrepare
    ) -> Iterator[Command]:
        if transaction.rolled_back_from == 0:  # by ROLLBACK PREPARED, which comes later
            yield from self._in_order(transaction.abandon())
            return
        transaction.check_end()
        yield from self._write_part(transaction)
        command = to_parts(
            PartsWriter.prepare,
            transaction.key,
            gid=prepare.gid,
            xid=prepare.xid,
            prepare_lsn=prepare.prepare_lsn,
        )
        yield from self._in_order(command)

    def _commit_prepared(self, commit: CommitPrepared) -> Iterator[Command | None]:
        self._limit.check(commit.end_lsn)
        yield from self.take_whole()
        oids = self._store.settled_writer().parts.prepared_relations(commit.gid, commit.xid)
        facts = yield from self._facts_at_commit(commit.xid, oids, (), {})
        yield to_parts(
            PartsWriter.commit_prepared,
            commit.gid,
            commit.xid,
            position=commit.end_lsn,
            commit_timestamp=commit.commit_timestamp + POSTGRES_EPOCH_US,
            facts=facts,
        )
