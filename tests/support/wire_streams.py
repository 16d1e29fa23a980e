"""A model of a server: transactions with savepoints, as rows and as the bytes it sends.

Its rules are those of pgoutput: a relation is announced before its first change, again after
an abort of a subtransaction, and in each stream; positions rise; an abort of a subtransaction
can come for one that was never streamed. Every relation has columns of its own time, so that
whoever takes the wrong announcement reads the wrong column.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from pgsluice.lsn import Lsn
from pgsluice.wire import (
    Aborted,
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Prepare,
    Relation,
    RelationColumn,
    ReplicaIdentity,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    TupleData,
    Type,
)

_OIDS = (16394, 16400)
Row = tuple[str, bytes]
"""The name of the column as announced, and the value."""


@dataclass
class _Level:
    """A (sub)transaction that is open: its rows, and the subtransactions released into it."""

    xid: int
    rows: list[Row] = field(default_factory=list)
    released: list[int] = field(default_factory=list)


@dataclass
class _Transaction:
    levels: list[_Level]
    has_begun: bool = False

    @property
    def xid(self) -> int:
        return self.levels[0].xid


@dataclass
class _CachedRelation:
    """pgoutput's cache entry of a relation.

    Attributes:
        column: the name of its column now.
        is_sent: the connection knows it.
        streams: the top-level xids of the streams that know it.
    """

    column: str
    is_sent: bool = False
    streams: set[int] = field(default_factory=set)


class Streams:
    """Makes messages as a server would, and keeps what a reader has to end with.

    Args:
        generator: where its choices come from.
        parallel: whether aborts say where and when.

    Attributes:
        committed: by top-level xid, the rows that were committed, in order.
        prepared: by top-level xid, the rows of transactions that are still prepared.
    """

    def __init__(self, generator: random.Random, *, parallel: bool) -> None:
        self.committed: dict[int, list[Row]] = {}
        self.prepared: dict[int, list[Row]] = {}
        self._generator = generator
        self._parallel = parallel
        self._xid = 700
        self._row = 0
        self._column = 0
        self._lsn = 1000
        self._open: list[_Transaction] = []
        self._relations = {oid: self._new_relation() for oid in _OIDS}

    def messages(self, steps: int) -> Iterator[bytes]:
        """About ``steps`` blocks and what lies between them; all transactions end."""
        for _ in range(steps):
            for message in self._step():
                yield message.encode()
        while self._open:
            for message in self._end(self._open[0]):
                yield message.encode()

    def _step(self) -> Iterator[Message]:
        if len(self._open) < 3 and self._generator.random() < 0.3:
            self._open.append(_Transaction([_Level(self._next_xid())]))
        choice = self._generator.random()
        if choice < 0.1:
            yield LogicalMessage(0, self._next_lsn(), "standalone", b"")
        elif choice < 0.2:
            yield from self._plain()
        elif choice < 0.25:
            yield from self._two_phase()
        elif choice < 0.3 and self.prepared:
            yield from self._end_prepared()
        elif choice < 0.35:
            yield self._abort(1, self._generator.choice((1, 2)))  # unknown here
        elif self._open:
            transaction = self._generator.choice(self._open)
            yield from self._block(transaction)
            match self._generator.randrange(6):
                case 0:
                    yield from self._end(transaction)
                case 1 | 2 if len(transaction.levels) > 1:
                    yield from self._roll_back(transaction)

    def _next_xid(self) -> int:
        self._xid += 1
        return self._xid

    def _next_lsn(self) -> Lsn:
        self._lsn += 10
        return Lsn(self._lsn)

    def _new_relation(self) -> _CachedRelation:
        self._column += 1
        return _CachedRelation(f"c{self._column}")

    def _plain(self) -> Iterator[Message]:
        xid, commit_lsn = self._next_xid(), self._next_lsn()
        rows: list[Row] = []
        yield Begin(commit_lsn, 0, xid)
        if self._generator.random() < 0.2:
            yield Origin(Lsn(1), "elsewhere")
        for _ in range(self._generator.randint(0, 4)):
            yield from self._change(rows)
        self.committed[xid] = rows
        yield Commit(0, commit_lsn, self._next_lsn(), 0)

    def _two_phase(self) -> Iterator[Message]:
        xid, prepare_lsn, end_lsn = self._next_xid(), self._next_lsn(), self._next_lsn()
        rows: list[Row] = []
        yield BeginPrepare(prepare_lsn, end_lsn, 0, xid, f"g{xid}")
        for _ in range(self._generator.randint(0, 3)):
            yield from self._change(rows)
        self.prepared[xid] = rows
        yield Prepare(0, prepare_lsn, end_lsn, 0, xid, f"g{xid}")

    def _end_prepared(self) -> Iterator[Message]:
        xid = self._generator.choice(list(self.prepared))
        rows, lsn, gid = self.prepared.pop(xid), self._next_lsn(), f"g{xid}"
        if self._generator.random() < 0.3:
            yield RollbackPrepared(0, Lsn(1), lsn, 0, 0, xid, gid)
        else:
            self.committed[xid] = rows
            yield CommitPrepared(0, lsn, self._next_lsn(), 0, xid, gid)

    def _change(
        self, rows: list[Row], top: int | None = None, xid: int | None = None
    ) -> Iterator[Message]:
        """Rows of one relation, after its announcement if that is missing or out of date."""
        oid = self._generator.choice(_OIDS)
        if self._generator.random() < 0.1:
            self._relations[oid] = self._new_relation()
        relation = self._relations[oid]
        if not (relation.is_sent if top is None else top in relation.streams):
            if top is None:
                relation.is_sent = True
            else:
                relation.streams.add(top)
            columns = (RelationColumn(1, relation.column, 25, -1),)
            if self._generator.random() < 0.2:
                yield Type(20000, "public", "mood", xid)
            yield Relation(oid, "public", f"t{oid}", ReplicaIdentity.DEFAULT, columns, xid)
        for _ in range(self._generator.randint(0, 3)):
            self._row += 1
            value = b"%d" % self._row
            rows.append((relation.column, value))
            yield Insert(oid, TupleData.of(value.decode()), xid)
        if self._generator.random() < 0.1:
            yield Truncate((oid,), 0, xid)

    def _forget_stream(self, top: int, *, is_commit: bool = False) -> None:
        """As ``cleanup_rel_sync_cache`` does, at each A, c and p."""
        for relation in self._relations.values():
            if top in relation.streams:
                relation.streams.remove(top)
                relation.is_sent |= is_commit

    def _block(self, transaction: _Transaction) -> Iterator[Message]:
        yield StreamStart(transaction.xid, is_first=not transaction.has_begun)
        transaction.has_begun = True
        levels = transaction.levels
        for _ in range(self._generator.randint(0, 6)):
            match self._generator.randrange(6):
                case 0:
                    levels.append(_Level(self._next_xid()))
                case 1 if len(levels) > 1:
                    released = levels.pop()
                    levels[-1].rows += released.rows
                    levels[-1].released += [released.xid, *released.released]
                case 2:
                    yield LogicalMessage(1, Lsn(1), "p", b"", transaction.xid)
                case _:
                    yield from self._change(levels[-1].rows, transaction.xid, levels[-1].xid)
        yield StreamStop()

    def _abort(self, xid: int, subxid: int) -> StreamAbort:
        return StreamAbort(xid, subxid, Aborted(Lsn(1), 2) if self._parallel else None)

    def _roll_back(self, transaction: _Transaction) -> Iterator[Message]:
        """To a savepoint: its children are aborted in any order, before it or after it."""
        level = transaction.levels.pop()
        xids = [level.xid, *level.released]
        self._generator.shuffle(xids)
        for xid in xids:
            yield self._abort(transaction.xid, xid)
            self._forget_stream(transaction.xid)

    def _end(self, transaction: _Transaction) -> Iterator[Message]:
        self._open.remove(transaction)
        xid = transaction.xid
        rows = [row for level in transaction.levels for row in level.rows]
        if not transaction.has_begun:
            return  # nothing of it was streamed
        lsn, outcome = self._next_lsn(), self._generator.randrange(4)
        self._forget_stream(xid, is_commit=outcome > 1)
        match outcome:
            case 0:
                yield self._abort(xid, xid)
            case 1:
                self.prepared[xid] = rows
                yield StreamPrepare(0, lsn, self._next_lsn(), 0, xid, f"g{xid}")
            case _:
                self.committed[xid] = rows
                yield StreamCommit(xid, 0, lsn, self._next_lsn(), 0)
