"""A model of a server that streams: transactions with savepoints, as rows and as bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from pgsluice.lsn import Lsn
from pgsluice.wire import (
    Aborted,
    Begin,
    Commit,
    Insert,
    LogicalMessage,
    Message,
    Relation,
    RelationColumn,
    ReplicaIdentity,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    TupleData,
)

_COLUMNS = (RelationColumn(1, "id", 23, -1),)
_OIDS = (16394, 16400)


@dataclass
class _Level:
    """A (sub)transaction that is open: its rows, and the subtransactions released into it."""

    xid: int
    rows: list[bytes | None] = field(default_factory=list)
    released: list[int] = field(default_factory=list)


@dataclass
class _Transaction:
    levels: list[_Level]
    has_begun: bool = False
    known: set[int] = field(default_factory=set)  # relations that the server has sent in it

    @property
    def xid(self) -> int:
        return self.levels[0].xid


class Streams:
    """Makes messages as a server would, and keeps what a reader has to end with.

    Args:
        generator: where its choices come from.
        parallel: whether aborts say where and when.

    Attributes:
        committed: by top-level xid, the rows that were committed or prepared, in order.
    """

    def __init__(self, generator: random.Random, *, parallel: bool) -> None:
        self.committed: dict[int, list[bytes | None]] = {}
        self._generator = generator
        self._parallel = parallel
        self._xid = 700
        self._row = 0
        self._open: list[_Transaction] = []

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
            yield LogicalMessage(0, Lsn(1), "standalone", b"")
        elif choice < 0.2:
            yield from self._plain()
        elif choice < 0.25:
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

    def _plain(self) -> Iterator[Message]:
        xid = self._next_xid()
        rows: list[bytes | None] = []
        yield Begin(Lsn(100), 0, xid)
        for oid in _OIDS:
            yield Relation(oid, "public", "t", ReplicaIdentity.DEFAULT, _COLUMNS)
            yield Insert(oid, self._new_row(rows))
        self.committed[xid] = rows
        yield Commit(0, Lsn(100), Lsn(200), 0)

    def _new_row(self, rows: list[bytes | None]) -> TupleData:
        self._row += 1
        row = TupleData.of(str(self._row))
        rows.append(row.values[0])
        return row

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
                    yield from self._insert(transaction)
        yield StreamStop()

    def _insert(self, transaction: _Transaction) -> Iterator[Message]:
        level = transaction.levels[-1]
        oid = self._generator.choice(_OIDS)
        if oid not in transaction.known:
            transaction.known.add(oid)
            identity = ReplicaIdentity.DEFAULT
            yield Relation(oid, "public", "t", identity, _COLUMNS, level.xid)
        yield Insert(oid, self._new_row(level.rows), level.xid)

    def _abort(self, xid: int, subxid: int) -> StreamAbort:
        return StreamAbort(xid, subxid, Aborted(Lsn(1), 2) if self._parallel else None)

    def _roll_back(self, transaction: _Transaction) -> Iterator[Message]:
        """To a savepoint: its children are aborted in any order, before it or after it."""
        level = transaction.levels.pop()
        xids = [level.xid, *level.released]
        self._generator.shuffle(xids)
        for xid in xids:
            yield self._abort(transaction.xid, xid)
        transaction.known.clear()  # the server sends relations again after each abort

    def _end(self, transaction: _Transaction) -> Iterator[Message]:
        self._open.remove(transaction)
        xid = transaction.xid
        rows = [row for level in transaction.levels for row in level.rows]
        if not transaction.has_begun:
            return  # nothing of it was streamed
        match self._generator.randrange(4):
            case 0:
                yield self._abort(xid, xid)
            case 1:
                self.committed[xid] = rows
                yield StreamPrepare(0, Lsn(100), Lsn(200), 0, xid, "gid")
            case _:
                self.committed[xid] = rows
                yield StreamCommit(xid, 0, Lsn(100), Lsn(200), 0)
