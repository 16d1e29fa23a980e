"""Which transaction a message belongs to, and what it does to it: a pure state machine.

``pgsluice decode`` passes it messages; capture passes it the few fields that it needs, and keeps
the bytes. The machine never sees values of rows. It decides which message is legal, where a
transaction starts and ends, and how many of its messages are still valid; its users follow these
decisions.

:mod:`pgsluice.wire.transitions` has the tables of which message may follow which. The other rules
are here:

- **Announcements.** A relation has to be announced (R) before its first change. The announcements
  in a stream are valid in that stream only; those of plain and prepared transactions are valid for
  the connection at once, because the next transaction may use them without another R.
- **Stream Commit.** A stream's announcements become valid for the connection, except those that the
  connection has received again in the meantime: after ALTER PUBLICATION, another transaction can
  announce a relation with other columns while the stream is open. Announcements of a prepared
  stream are dropped, because the server sends them again.
- **Abort of a subtransaction.** It invalidates every message of the transaction from the
  subtransaction's first one on, announcements included. A child's own abort may come after
  its parent's. Aborting an unknown subtransaction is a no-op: none of its changes were streamed.
- **Logical messages in a stream** carry the top-level xid. One that precedes the first change
  of its subtransaction looks like the top level's and survives the abort, as in PostgreSQL.
- **Positions.** C, c, K and a logical message outside a transaction each have a position, and
  positions rise strictly within a connection. P and p have none.
- **Ends.** C and P repeat the values of their B and b.

A new connection needs a new machine. Its memory grows with open subtransactions and with
announcements, never with rows.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from pgsluice.errors import ProtocolError
from pgsluice.lsn import Lsn
from pgsluice.wire.decoder import decode_message
from pgsluice.wire.messages import (
    MESSAGES,
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Prepare,
    Relation,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Type,
    Update,
)
from pgsluice.wire.open_transactions import Announcement, Scope, Stream, Transaction
from pgsluice.wire.reading import MAX_LSN
from pgsluice.wire.transitions import (
    FIRST_BLOCK,
    STANDALONE,
    STREAM_TRANSITIONS,
    SUBTRANSACTION_ABORT,
    TRANSITIONS,
    Event,
    State,
    Step,
    StreamState,
)


class TransactionMachine:
    """Follows the messages of one connection. A method that raises changes nothing.

    Args:
        parallel: START_REPLICATION requested ``streaming 'parallel'``; for :meth:`feed`.
    """

    def __init__(self, *, parallel: bool = False) -> None:
        self._parallel = parallel
        self._state = State.OUTSIDE
        self._current: Transaction | None = None
        self._streams: dict[int, Stream] = {}
        self._scope = Scope()
        self._serial = 0
        self._position = 0

    @property
    def state(self) -> State:
        """Where the connection is: outside of transactions, or inside one of three brackets."""
        return self._state

    @property
    def in_stream(self) -> bool:
        """Whether the next message has to be decoded as one inside a stream."""
        return self._state is State.STREAM

    @property
    def xid(self) -> int | None:
        """The top-level transaction of the current message; None outside of transactions."""
        return None if self._current is None else self._current.xid

    @property
    def open_streams(self) -> frozenset[int]:
        """The top-level xids of the transactions in progress."""
        return frozenset(self._streams)

    def first_messages(self, xid: int) -> dict[int, int]:
        """An open transaction and its subtransactions, each with the index of its first message."""
        stream = self._streams.get(xid)
        return {xid: 0, **(stream.first_index if stream is not None else {})}

    @property
    def position(self) -> Lsn:
        """The last position on this connection; 0/0 before the first."""
        return Lsn(self._position)

    def relation(self, oid: int) -> Relation | None:
        """The valid announcement of a relation; None if there is none.

        Inside a stream only its own announcements are valid: the server sends every relation again
        there, and the connection's may be outdated.
        """
        announced = self._here().relations.get(oid)
        message = announced and announced.message
        return message if isinstance(message, Relation) else None

    def type_name(self, oid: int) -> Type | None:
        """The valid announcement of a type, as :meth:`relation`; built-in types are never
        announced."""
        announced = self._here().types.get(oid)
        message = announced and announced.message
        return message if isinstance(message, Type) else None

    def _here(self) -> Scope:
        return self._current.scope if isinstance(self._current, Stream) else self._scope

    def feed(self, data: bytes) -> tuple[Message, Step]:
        """Decode the next message in its context, and follow it; raises ProtocolError if the bytes
        are not a message, or if it is illegal here."""
        message = decode_message(data, in_stream=self.in_stream, parallel=self._parallel)
        return message, self.receive(message)

    def receive(self, message: Message) -> Step:
        """Follow the next message; raises ProtocolError if it is illegal here, with the facts
        ``tag``, ``state``, ``expected`` and ``xid``."""
        match message:
            case Begin():
                return self._open("B", Transaction(message.xid, (message.final_lsn,)))
            case Commit():
                return self._close("C", (message.commit_lsn,), message.end_lsn)
            case Insert() | Update() | Delete():
                xids = None if message.xid is None else {message.xid: 0}
                return self.changes((message.oid,), xids, tag=message.tag)
            case LogicalMessage() if not message.is_transactional:
                return self._standalone(message)
            case Origin() | Relation() | Type() | Truncate() | LogicalMessage():
                return self._content(message)
            case BeginPrepare():
                return self._open("b", Transaction(message.xid, _identity(message)))
            case Prepare():
                return self._close("P", _identity(message))
            case StreamStop():
                return self._close("E", ())
            case CommitPrepared():
                _, event = self._transition("K")
                self._advance("K", message.end_lsn)
                return Step(event, message.xid, 0)
            case RollbackPrepared():
                _, event = self._transition("r")
                return Step(event, message.xid, 0)
            case StreamStart() | StreamCommit() | StreamPrepare() | StreamAbort():
                return self._follow_stream(message)

    def transactions(
        self,
        final_lsns: Sequence[int],
        commit_lsns: Sequence[int],
        end_lsns: Sequence[int],
        oids: Collection[int],
    ) -> bool:
        """Follow consecutive plain transactions that contain only rows, by three LSNs of each; at
        least one. False if one of them is illegal: nothing was followed, and following message by
        message raises the error."""
        positions = [self._position, *end_lsns]
        is_legal = (
            self._state is State.OUTSIDE
            and final_lsns == commit_lsns
            and min(final_lsns) >= 0
            and all(map(operator.lt, positions, end_lsns))
            and self._scope.relations.keys() >= set(oids)
        )
        if is_legal:
            self._position = positions[-1]
        return is_legal

    def changes(
        self,
        oids: Collection[int],
        xids: Mapping[int, int] | None = None,
        *,
        count: int = 1,
        tag: str = "I",
    ) -> Step:
        """Follow consecutive Insert, Update and Delete messages; raises ProtocolError as
        :meth:`receive`.

        Args:
            oids: their relations; at least one.
            xids: their (sub)transactions inside a stream, each with the index of its first change;
                None outside of streams.
            count: the number of changes.
            tag: the tag of the first one, for errors.
        """
        current, event = self._inside(tag, has_xid=xids is not None)
        self._check_announced(tag, oids)
        if xids is not None:
            self._note_subtransactions(xids)
        current.length += count
        return Step(event, current.xid, current.length)

    def _transition(self, name: str) -> tuple[State, Event]:
        legal = TRANSITIONS[self._state]
        try:
            return legal[name]
        except KeyError:
            self._refuse(name, "one of " + ", ".join(legal))

    def _open(self, name: str, transaction: Transaction) -> Step:
        self._state, event = self._transition(name)
        self._current = transaction
        return Step(event, transaction.xid, transaction.length)

    def _close(self, name: str, ending: tuple[object, ...], position: int | None = None) -> Step:
        state, event = self._transition(name)
        current = self._current
        assert current is not None  # every state but OUTSIDE has one
        if ending != current.ending:
            self._refuse(name, "the fields with which its transaction began")
        if position is not None:
            self._advance(name, position)
        self._state, self._current = state, None
        return Step(event, current.xid, current.length)

    def _content(self, message: Origin | Relation | Type | Truncate | LogicalMessage) -> Step:
        xid = None if isinstance(message, Origin) else message.xid
        has_xid = self.in_stream if isinstance(message, Origin) else xid is not None
        current, event = self._inside(message.tag, has_xid=has_xid)
        if isinstance(message, Truncate):
            self._check_announced(message.tag, message.oids)
        if xid is not None:
            self._note_subtransactions({xid: 0})
        if isinstance(message, Relation | Type):
            self._serial += 1
            announcement = Announcement(message, self._serial, current.length)
            if isinstance(current, Stream):
                current.announce(announcement)
            else:
                self._scope.add(announcement)
        current.length += 1
        return Step(event, current.xid, current.length)

    def _inside(self, name: str, *, has_xid: bool) -> tuple[Transaction, Event]:
        """The transaction that a content message belongs to, and what the message does to it."""
        _, event = self._transition(name)
        assert self._current is not None  # every state in which content is legal has one
        if has_xid != self.in_stream:
            self._refuse(name, "an xid inside a stream, and only there")
        return self._current, event

    def _note_subtransactions(self, xids: Mapping[int, int]) -> None:
        """Remember where each subtransaction starts; its messages follow."""
        stream = self._current
        assert isinstance(stream, Stream)
        for xid, index in xids.items():
            if xid != stream.xid:
                stream.first_index.setdefault(xid, stream.length + index)

    def _standalone(self, message: LogicalMessage) -> Step:
        _, event = self._transition(STANDALONE)
        if message.xid is not None:
            self._refuse(STANDALONE, "no xid outside of a stream")
        self._advance(STANDALONE, message.lsn + 1)
        return Step(event, None, 0)

    def _follow_stream(
        self, message: StreamStart | StreamCommit | StreamPrepare | StreamAbort
    ) -> Step:
        """A message that acts on a transaction in progress as a whole."""
        state, _ = self._transition(message.tag)
        name = message.tag
        if isinstance(message, StreamStart) and message.is_first:
            name = FIRST_BLOCK
        elif isinstance(message, StreamAbort) and not message.is_top_level:
            name = SUBTRANSACTION_ABORT
        stream = self._streams.get(message.xid)
        before = StreamState.UNKNOWN if stream is None else StreamState.OPEN
        if name not in STREAM_TRANSITIONS[before]:
            expected = "one of " + ", ".join(STREAM_TRANSITIONS[before])
            self._refuse(name, expected, before, message.xid)
        after, event = STREAM_TRANSITIONS[before][name]
        if isinstance(message, StreamCommit):
            self._advance("c", message.end_lsn)
        if stream is None:
            if after is StreamState.UNKNOWN:
                return Step(event, message.xid, 0)
            stream = self._streams[message.xid] = Stream(message.xid)
        elif after is StreamState.UNKNOWN:
            del self._streams[message.xid]
        self._state = state
        match message:
            case StreamStart():
                self._current = stream
            case StreamAbort() if event is Event.SUBTRANSACTION_ABORTED:
                stream.abort(message.subxid)
            case StreamCommit():
                relations, joining = frozenset(stream.scope.relations), self._join(stream)
                return Step(event, message.xid, stream.length, relations, joining)
        return Step(event, message.xid, 0 if event is Event.ABORTED else stream.length)

    def _join(self, stream: Stream) -> frozenset[int]:
        """Make a committed stream's announcements the connection's, unless it has newer ones."""
        joining = set()
        for announcement in stream.history:
            message = announcement.message
            known = self._scope.relations if isinstance(message, Relation) else self._scope.types
            before = known.get(message.oid)
            if before is None or before.serial < announcement.serial:
                known[message.oid] = replace(announcement, message=replace(message, xid=None))
                if isinstance(message, Relation):
                    joining.add(message.oid)
        return frozenset(joining)

    def _check_announced(self, name: str, oids: Collection[int]) -> None:
        announced = self._here().relations.keys()
        if not announced >= set(oids):
            missing = next(oid for oid in oids if oid not in announced)
            self._refuse(name, f"a Relation message of relation {missing} before its changes")

    def _advance(self, name: str, position: int) -> None:
        if not self._position < position <= MAX_LSN:
            self._refuse(name, f"a position past {self.position}, the last of this connection")
        self._position = position

    def _refuse(
        self, name: str, expected: str, state: State | StreamState | None = None, xid: int = 0
    ) -> NoReturn:
        """Raise for an illegal message; ``state`` is its stream's if that forbids it."""
        xid_here = xid or self.xid
        where = f"transaction {xid} is {state}" if state else str(self._state)
        raise ProtocolError(
            f"{MESSAGES[ord(name[0])].__name__} message ({name}) cannot come here ({where}): "
            f"expected {expected}",
            tag=name[0],
            offset=0,
            state=str(state or self._state),
            expected=expected,
            xid=xid_here,
        )


def _identity(message: BeginPrepare | Prepare) -> tuple[object, ...]:
    return message.prepare_lsn, message.end_lsn, message.xid, message.gid
