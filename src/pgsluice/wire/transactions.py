"""Which transaction a message belongs to, and what has become of it: a pure state machine.

What may follow what is data, in :mod:`pgsluice.wire.transitions`. Here is what it means:

- A takes back by position: from the subtransaction's first message on, everything of the
  transaction is void, its children with it. A child's own A may come later, and a
  subtransaction of which nothing was streamed is unknown: neither changes anything.
- A logical message in a stream carries the top-level xid: one that precedes its
  subtransaction's first change cannot be told from the top level's, and survives its A. So it
  is in PostgreSQL.
- Relations and types learnt in a stream count for that stream only, go with the
  subtransaction that brought them, and join the connection's at Stream Commit, unless the
  connection has learnt something newer meanwhile: after ALTER PUBLICATION another transaction
  can bring a relation with other columns while the stream is open. Those of plain and
  prepared transactions join at once, since the next one may use them without another R;
  those of a stream that is prepared never, since the server sends them again.
- A new connection begins with a new tracker.
- Memory: one entry for each open subtransaction and each R and Y, none for a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pgsluice.errors import ProtocolError
from pgsluice.wire.basic import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Relation,
    Truncate,
    Type,
    Update,
)
from pgsluice.wire.decoder import Message, decode_message
from pgsluice.wire.streaming import StreamAbort, StreamCommit, StreamStart
from pgsluice.wire.transitions import (
    FIRST_BLOCK,
    STANDALONE,
    STREAM_TRANSITIONS,
    SUBTRANSACTION_ABORT,
    TRANSITIONS,
    Event,
    State,
    StreamState,
)
from pgsluice.wire.two_phase import (
    BeginPrepare,
    CommitPrepared,
    Prepare,
    RollbackPrepared,
    StreamPrepare,
)

_WithXid = Relation | Type | Insert | Update | Delete | Truncate | LogicalMessage


@dataclass(frozen=True, slots=True)
class Step:
    """What a message did.

    Attributes:
        event: what.
        xid: the top-level transaction's; None for a standalone message.
        length: how many of the transaction's content messages are valid after this one. A
            list of them follows by ``append`` at content, ``del list[length:]`` at taken back.
    """

    event: Event
    xid: int | None
    length: int


_Key = tuple[str, int]
"""R or Y, and the OID."""


@dataclass(frozen=True, slots=True)
class _Learnt:
    """A relation or type, and when it came.

    Attributes:
        fact: the message.
        serial: rises with each R and Y of the connection.
        position: of the message in its transaction's content.
    """

    fact: Relation | Type
    serial: int
    position: int

    @property
    def key(self) -> _Key:
        return self.fact.tag, self.fact.oid


@dataclass(slots=True)
class _Open:
    """A transaction that is open: its first message, and what has come since."""

    first: Begin | BeginPrepare | StreamStart
    length: int = 0
    # Of a stream only; the first two in the order of their positions.
    subtransactions: dict[int, int] = field(default_factory=dict)  # subxid -> first position
    history: list[_Learnt] = field(default_factory=list)
    in_force: dict[_Key, _Learnt] = field(default_factory=dict)

    def learn(self, learnt: _Learnt) -> None:
        self.history.append(learnt)
        self.in_force[learnt.key] = learnt

    def take_back(self, subxid: int) -> None:
        """Void everything from the subtransaction's first message on."""
        start = self.subtransactions.get(subxid)
        if start is None:
            return
        self.length = start
        self.subtransactions = {x: at for x, at in self.subtransactions.items() if at < start}
        self.history = [learnt for learnt in self.history if learnt.position < start]
        self.in_force = {learnt.key: learnt for learnt in self.history}


class TransactionTracker:
    """Follows one connection's messages.

    Args:
        parallel: START_REPLICATION asked for ``streaming 'parallel'``.
    """

    def __init__(self, *, parallel: bool = False) -> None:
        self._parallel = parallel
        self._state = State.OUTSIDE
        self._current: _Open | None = None
        self._streams: dict[int, _Open] = {}
        self._in_force: dict[_Key, _Learnt] = {}
        self._serial = 0

    @property
    def state(self) -> State:
        """Where the connection stands."""
        return self._state

    @property
    def in_stream(self) -> bool:
        """Whether the next message has to be decoded as one inside a stream."""
        return self._state is State.STREAM

    @property
    def xid(self) -> int | None:
        """The top-level transaction that the connection stands in."""
        return None if self._current is None else self._current.first.xid

    @property
    def open_streams(self) -> frozenset[int]:
        """The top-level xids of the transactions in progress."""
        return frozenset(self._streams)

    def relation(self, oid: int) -> Relation | None:
        """The relation in force where the connection stands; None if it has not come.

        In a stream the server sends every relation anew, so that the connection's own are
        not asked there: after a subtransaction's A they could be of the wrong time.
        """
        found = self._find(Relation.tag, oid)
        return found if isinstance(found, Relation) else None

    def type_name(self, oid: int) -> Type | None:
        """The same for a type; those that are built in never come."""
        found = self._find(Type.tag, oid)
        return found if isinstance(found, Type) else None

    def _find(self, tag: str, oid: int) -> Relation | Type | None:
        current = self._current
        in_force = current.in_force if current and self.in_stream else self._in_force
        learnt = in_force.get((tag, oid))
        return None if learnt is None else learnt.fact

    def feed(self, data: bytes) -> tuple[Message, Step]:
        """Decode the next message, as its place demands, and follow it.

        Raises:
            ProtocolError: the bytes are no message, or it cannot come here.
        """
        message = decode_message(data, in_stream=self.in_stream, parallel=self._parallel)
        return message, self.receive(message)

    def receive(self, message: Message) -> Step:
        """Follow the next message. After an error nothing has changed.

        Raises:
            ProtocolError: the message cannot come here; facts ``tag``, ``state``,
                ``expected``, ``xid``.
        """
        name = message.tag
        if isinstance(message, LogicalMessage) and not message.is_transactional:
            name = STANDALONE
        try:
            state, event = TRANSITIONS[self._state][name]
        except KeyError:
            raise self._illegal(message, name, self._state, TRANSITIONS[self._state]) from None
        match message:
            case StreamStart() | StreamCommit() | StreamPrepare() | StreamAbort():
                step = self._streamed(message)
            case Begin() | BeginPrepare():
                self._current = _Open(message)
                step = Step(event, message.xid, 0)
            case CommitPrepared() | RollbackPrepared():
                step = Step(event, message.xid, 0)
            case LogicalMessage() if name == STANDALONE:
                self._check_xid(message)
                step = Step(event, None, 0)
            case _:
                step = self._inside(message, event)
        self._state = state
        return step

    def _inside(self, message: Message, event: Event) -> Step:
        """What lies in a bracket, and what closes one."""
        current = self._current
        assert current is not None  # every state but OUTSIDE has one
        if isinstance(message, Commit | Prepare):
            self._check_end(message, current.first)
        elif isinstance(message, _WithXid):
            self._content(message, current)
        if event is Event.CONTENT:
            current.length += 1
        else:
            self._current = None
        return Step(event, current.first.xid, current.length)

    def _content(self, message: _WithXid, current: _Open) -> None:
        self._check_xid(message)
        match message:
            case Insert() | Update() | Delete():
                self._check_known(message, message.oid)
            case Truncate():
                for oid in message.oids:
                    self._check_known(message, oid)
            case Relation() | Type():
                self._serial += 1
                learnt = _Learnt(message, self._serial, current.length)
                if self.in_stream:
                    current.learn(learnt)
                else:
                    self._in_force[learnt.key] = learnt
            case LogicalMessage():
                pass
        if message.xid is not None and message.xid != current.first.xid:
            current.subtransactions.setdefault(message.xid, current.length)

    def _streamed(self, message: StreamStart | StreamCommit | StreamPrepare | StreamAbort) -> Step:
        """What acts on a transaction in progress as a whole."""
        name = message.tag
        if isinstance(message, StreamStart) and message.is_first:
            name = FIRST_BLOCK
        elif isinstance(message, StreamAbort) and not message.is_top_level:
            name = SUBTRANSACTION_ABORT
        stream = self._streams.get(message.xid)
        before = StreamState.UNKNOWN if stream is None else StreamState.OPEN
        try:
            after, event = STREAM_TRANSITIONS[before][name]
        except KeyError:
            raise self._illegal(message, name, before, STREAM_TRANSITIONS[before]) from None
        if stream is None:
            if after is StreamState.UNKNOWN:
                return Step(event, message.xid, 0)
            assert isinstance(message, StreamStart)
            stream = self._streams[message.xid] = _Open(message)
        match message:
            case StreamStart():
                self._current = stream
            case StreamAbort() if event is Event.TAKEN_BACK:
                stream.take_back(message.subxid)
            case StreamCommit():
                self._join(stream)
        if after is StreamState.UNKNOWN:
            del self._streams[message.xid]
        length = 0 if event is Event.ABORTED else stream.length
        return Step(event, message.xid, length)

    def _join(self, stream: _Open) -> None:
        """What a committed stream has learnt holds for the connection."""
        for key, learnt in stream.in_force.items():
            known = self._in_force.get(key)
            if known is None or known.serial < learnt.serial:
                self._in_force[key] = replace(learnt, fact=replace(learnt.fact, xid=None))

    def _check_known(self, message: Message, oid: int) -> None:
        if self.relation(oid) is None:
            raise self._wrong(message, f"relation {oid} is sent before its changes")

    def _check_xid(self, message: _WithXid) -> None:
        if (message.xid is not None) != self.in_stream:
            raise self._wrong(message, "it has an xid in a stream, and only there")

    def _check_end(self, end: Commit | Prepare, first: Begin | BeginPrepare | StreamStart) -> None:
        match end, first:
            case Commit(), Begin():
                fits = end.commit_lsn == first.final_lsn
            case Prepare(), BeginPrepare():
                fits = (end.prepare_lsn, end.end_lsn, end.xid, end.gid) == (
                    first.prepare_lsn,
                    first.end_lsn,
                    first.xid,
                    first.gid,
                )
            case _:
                fits = False
        if not fits:
            raise self._wrong(end, "it names the transaction that it ends")

    def _illegal(
        self, message: Message, name: str, state: State | StreamState, legal: Mapping[str, object]
    ) -> ProtocolError:
        xid = getattr(message, "xid", None) or self.xid
        where = f"transaction {xid} is {state}" if isinstance(state, StreamState) else state
        expected = "one of " + ", ".join(legal)
        return ProtocolError(
            f"{type(message).__name__} message ({name}) cannot come here ({where}): "
            f"expected {expected}",
            tag=message.tag,
            offset=0,
            state=str(state),
            expected=expected,
            xid=xid,
        )

    def _wrong(self, message: Message, expected: str) -> ProtocolError:
        return ProtocolError(
            f"{type(message).__name__} message ({message.tag}) does not fit here "
            f"({self._state}, transaction {self.xid}): expected that {expected}",
            tag=message.tag,
            offset=0,
            state=str(self._state),
            expected=expected,
            xid=self.xid,
        )
