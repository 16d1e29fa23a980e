"""What a message means where it stands: its transaction, and the relations in force.

A whole stream is followed by :class:`~pgsluice.wire.TransactionMachine`, which refuses what
cannot come. A fragment (and a file of the spool, which holds pieces of transactions) is read
for what it is: only S and E count, and the newest R and Y of each OID are in force.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from pgsluice.errors import ProtocolError
from pgsluice.lsn import Lsn
from pgsluice.spool.block import FACTS_TAG
from pgsluice.wire import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    LogicalMessage,
    Message,
    Prepare,
    Relation,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    TransactionMachine,
    Type,
    decode_first_message,
    decode_message,
)

_ABORT = ord("A")
_WITH_XID = b"RYIUDTM" + bytes([FACTS_TAG])


@dataclass(frozen=True, slots=True)
class Raw:
    """A message's bytes and where they lie in the input.

    Attributes:
        data: the message, its tag first.
        offset: of its first byte, from the input's beginning.
        width: how many bytes of the input make one of the message: 2 in hexadecimal, else 1.
        where: the input, as errors name it.
        line: the line that it stands in, from 1; None in binary input.
        lsn: of the message, None where the input does not tell.
        xid: the transaction's, as the input (not the message) tells it.
        taken_back: the spool holds it, but its subtransaction was aborted.
    """

    data: bytes
    offset: int
    width: int
    where: str
    line: int | None = None
    lsn: Lsn | None = None
    xid: int | None = None
    taken_back: bool = False

    def wrong(self, error: ProtocolError) -> ProtocolError:
        """The error, with the byte of the input in front."""
        at = self.offset + self.width * int(error.facts.get("offset") or 0)
        hint = None
        if "state" in error.facts:
            hint = "for messages without those that came before them there is --fragment"
        return wrong_input(self.where, at, self.line, error.what, hint=hint, **error.facts)


def wrong_input(
    where: str,
    offset: int,
    line: int | None,
    what: str,
    /,
    *,
    hint: str | None = None,
    **facts: Any,
) -> ProtocolError:
    """The error for a byte of the input.

    Args:
        where: the input.
        offset: the byte, from 0.
        line: its line, from 1.
        what: what is wrong with it.
        hint: what to do.
        facts: more of it.
    """
    place = f"byte {offset}" if line is None else f"line {line}, byte {offset}"
    facts["input_offset"] = offset
    return ProtocolError(f"{where}, {place}: {what}", hint=hint, **facts)


@dataclass(frozen=True, slots=True)
class Facts:
    """The spool's own message: what the catalog says of a relation.

    Attributes:
        oid: the relation's.
        content: JSON, empty when nothing could be found any more.
        xid: the (sub)transaction's, in a stream.
    """

    tag: ClassVar[str] = "#"
    oid: int
    content: str
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """A message in its place.

    Attributes:
        raw: its bytes.
        message: what they say.
        xid: the top-level transaction's that it belongs to, None for those that stand alone.
    """

    raw: Raw
    message: Message | Facts
    xid: int | None

    @property
    def lsn(self) -> Lsn | None:
        """Where it lies; the server does not tell it for R and Y."""
        return self.raw.lsn if self.raw.lsn else None


class Follower:
    """Decodes messages one after another.

    Args:
        is_fragment: what came before is not known, so that no order is checked.
        in_stream: such a fragment begins between Stream Start and Stream Stop.
        is_parallel: Stream Abort must have its long form.
    """

    def __init__(
        self, *, is_fragment: bool = False, in_stream: bool = False, is_parallel: bool = False
    ) -> None:
        self._is_parallel = is_parallel
        self._machine = None if is_fragment else TransactionMachine()
        self._in_stream = in_stream
        self._xid: int | None = None
        self._relations: dict[int, Relation] = {}
        self._types: dict[int, Type] = {}

    def relation(self, oid: int) -> Relation | None:
        """The relation in force; None if it has not come."""
        return self._machine.relation(oid) if self._machine else self._relations.get(oid)

    def type_name(self, oid: int) -> Type | None:
        """The type in force; None if it has not come."""
        return self._machine.type_name(oid) if self._machine else self._types.get(oid)

    def begin_piece(
        self, relations: Iterable[Relation], *, in_stream: bool, xid: int | None
    ) -> None:
        """A file of the spool begins, which tells by itself what is in force.

        Args:
            relations: before its first message.
            in_stream: its messages came between Stream Start and Stream Stop.
            xid: of its transaction, None where each is begun by its B.
        """
        self._machine = None
        self._in_stream = in_stream
        self._xid = xid
        self._relations = {relation.oid: relation for relation in relations}

    def first(self, data: bytes) -> int:
        """The size of the message that the bytes begin with, were it the next one.

        Raises:
            ProtocolError: they begin with none, or with a part of one only.
        """
        size = self._size(data, self._is_parallel)
        # The short form of A is a beginning of the long one; a newline ends either here.
        if data[:1] == b"A" and size < len(data) and data[size] != ord("\n"):
            return self._size(data, True)
        return size

    def _size(self, data: bytes, parallel: bool) -> int:
        return decode_first_message(data, in_stream=self._stands_in_stream, parallel=parallel)[1]

    @property
    def _stands_in_stream(self) -> bool:
        return self._machine.in_stream if self._machine else self._in_stream

    def take(self, raw: Raw) -> Seen:
        """Decode the next message.

        Raises:
            ProtocolError: it is none, or cannot come here; names the byte in the input.
        """
        try:
            message = self._decode(raw.data)
            if self._machine is None:
                return Seen(raw, message, self._follow(message) or raw.xid)
            assert not isinstance(message, Facts)  # only the spool has them
            return Seen(raw, message, self._machine.receive(message).xid)
        except ProtocolError as error:
            raise raw.wrong(error) from None

    def _decode(self, data: bytes) -> Message | Facts:
        tag = data[0] if data else 0
        in_stream = self._stands_in_stream and tag in _WITH_XID
        if tag == FACTS_TAG and self._machine is None:
            return _facts(data, in_stream)
        parallel = self._is_parallel or (tag == _ABORT and len(data) > 9)
        return decode_message(data, in_stream=in_stream, parallel=parallel)

    def _follow(self, message: Message | Facts) -> int | None:
        """Without a machine: the transaction that the message belongs to."""
        match message:
            case Relation():
                self._relations[message.oid] = message
            case Type():
                self._types[message.oid] = message
            case Begin() | BeginPrepare() | StreamStart():
                self._xid = message.xid
                self._in_stream = isinstance(message, StreamStart)
            case Commit() | Prepare() | StreamStop():
                xid, self._xid, self._in_stream = self._xid, None, False
                return xid
            case StreamCommit() | StreamPrepare() | StreamAbort():
                return message.xid
            case CommitPrepared() | RollbackPrepared():
                return message.xid
            case LogicalMessage() if not message.is_transactional:
                return None
        return self._xid


def _facts(data: bytes, in_stream: bool) -> Facts:
    """The spool's own message: its tag, the xid in a stream, an OID, JSON or nothing."""
    layout = struct.Struct(">II" if in_stream else ">I")
    try:
        *xid, oid = layout.unpack_from(data, 1)
        content = data[1 + layout.size :].decode()
        if content:
            json.loads(content)
    except (struct.error, ValueError, RecursionError):
        raise ProtocolError(
            "Facts message ('#'), offset 1: expected a relation's OID and JSON, got other bytes",
            tag="#",
            offset=1,
        ) from None
    return Facts(oid, content, xid[0] if xid else None)
