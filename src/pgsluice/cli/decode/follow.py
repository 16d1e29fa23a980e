"""Decodes messages in context: their transaction, and the current definitions of relations.

A complete stream is decoded with :class:`~pgsluice.wire.TransactionMachine`, which refuses illegal
messages. In a fragment, and in a file of the spool, which may have parts of transactions, the order
is not checked: only S and E matter, and the last R and Y of each OID are valid.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from pgsluice import wire
from pgsluice.errors import ProtocolError
from pgsluice.lsn import Lsn
from pgsluice.spool.segments.block import FACTS_TAG

_ABORT = ord("A")
_WITH_XID = b"RYIUDTM" + bytes([FACTS_TAG])


@dataclass(frozen=True, slots=True)
class Raw:
    """A message's bytes and their place in the input.

    Attributes:
        data: the message, with its tag.
        offset: the offset of the first byte in the input.
        width: bytes of the input for one byte of the message: 2 in hexadecimal, else 1.
        where: the name of the input, for errors.
        line: the line's number, from 1; None in binary input.
        lsn: the message's LSN; None if the input does not have it.
        xid: the transaction's xid, if the input (not the message) has it.
        taken_back: the message is in the spool, but its subtransaction was aborted.
    """

    data: bytes
    offset: int
    width: int
    where: str
    line: int | None = None
    lsn: Lsn | None = None
    xid: int | None = None
    taken_back: bool = False

    def locate(self, error: ProtocolError) -> ProtocolError:
        """The error of a message, with the message's place in the input."""
        offset = self.offset + self.width * int(error.facts.get("offset") or 0)
        hint = None
        if "state" in error.facts:
            hint = "if the messages before these are missing, use --fragment"
        return input_error(self.where, offset, self.line, error.what, hint=hint, **error.facts)


def input_error(
    where: str,
    offset: int,
    line: int | None,
    what: str,
    /,
    *,
    hint: str | None = None,
    **facts: Any,
) -> ProtocolError:
    """An error about a byte of the input ``where``; bytes count from 0, lines from 1."""
    place = f"byte {offset}" if line is None else f"line {line}, byte {offset}"
    facts["input_offset"] = offset
    return ProtocolError(f"{where}, {place}: {what}", hint=hint, **facts)


@dataclass(frozen=True, slots=True)
class Facts:
    """pgsluice's own message in the spool: a relation's metadata.

    Attributes:
        oid: the relation's OID.
        content: JSON; empty if the relation no longer existed.
        xid: the xid of the (sub)transaction, in a stream.
    """

    tag: ClassVar[str] = "#"
    oid: int
    content: str
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """A decoded message, with the xid of its top-level transaction; None outside transactions."""

    raw: Raw
    message: wire.Message | Facts
    xid: int | None

    @property
    def lsn(self) -> Lsn | None:
        """The message's LSN; the server sends none for R and Y."""
        return self.raw.lsn if self.raw.lsn else None


class Follower:
    """Decodes messages in order.

    Args:
        is_fragment: the start is missing, so the order is not checked.
        in_stream: the fragment starts between Stream Start and Stream Stop.
        is_parallel: Stream Abort must have its long form.
    """

    def __init__(
        self, *, is_fragment: bool = False, in_stream: bool = False, is_parallel: bool = False
    ) -> None:
        self._is_parallel = is_parallel
        self._machine = None if is_fragment else wire.TransactionMachine()
        self._in_stream = in_stream
        self._xid: int | None = None
        self._relations: dict[int, wire.Relation] = {}
        self._types: dict[int, wire.Type] = {}

    def relation(self, oid: int) -> wire.Relation | None:
        """The current definition of a relation; None if it was not announced."""
        return self._machine.relation(oid) if self._machine else self._relations.get(oid)

    def type_name(self, oid: int) -> wire.Type | None:
        """The current name of a type; None if it was not announced."""
        return self._machine.type_name(oid) if self._machine else self._types.get(oid)

    def begin_piece(
        self, relations: Iterable[wire.Relation], *, in_stream: bool, xid: int | None
    ) -> None:
        """Start a file of the spool, which has the definitions of its relations.

        Args:
            relations: the definitions before its first message.
            in_stream: its messages were sent between Stream Start and Stream Stop.
            xid: its transaction's xid; None if each transaction has its own Begin.
        """
        self._machine = None
        self._in_stream = in_stream
        self._xid = xid
        self._relations = {relation.oid: relation for relation in relations}

    def first(self, data: bytes) -> int:
        """The size of the message at the start of the bytes.

        Raises:
            ProtocolError: there is none, or it is incomplete.
        """
        size = self._size(data, self._is_parallel)
        # The long form of A begins like the short one. A newline follows either.
        if data[:1] == b"A" and size < len(data) and data[size] != ord("\n"):
            return self._size(data, True)
        return size

    def _size(self, data: bytes, parallel: bool) -> int:
        return wire.decode_first_message(data, in_stream=self._is_in_stream, parallel=parallel)[1]

    @property
    def _is_in_stream(self) -> bool:
        return self._machine.in_stream if self._machine else self._in_stream

    def take(self, raw: Raw) -> Seen:
        """Decode the next message.

        Raises:
            ProtocolError: it is malformed or illegal here; the error has the byte's offset in the
                input.
        """
        try:
            message = self._decode(raw.data)
            if self._machine is None:
                return Seen(raw, message, self._follow(message) or raw.xid)
            assert not isinstance(message, Facts)  # they exist in the spool only
            return Seen(raw, message, self._machine.receive(message).xid)
        except ProtocolError as error:
            raise raw.locate(error) from None

    def _decode(self, data: bytes) -> wire.Message | Facts:
        tag = data[0] if data else 0
        in_stream = self._is_in_stream and tag in _WITH_XID
        if tag == FACTS_TAG and self._machine is None:
            return _facts(data, in_stream)
        parallel = self._is_parallel or (tag == _ABORT and len(data) > 9)
        return wire.decode_message(data, in_stream=in_stream, parallel=parallel)

    def _follow(self, message: wire.Message | Facts) -> int | None:
        """The transaction of a message, without the transaction machine."""
        match message:
            case wire.Relation():
                self._relations[message.oid] = message
            case wire.Type():
                self._types[message.oid] = message
            case wire.Begin() | wire.BeginPrepare() | wire.StreamStart():
                self._xid = message.xid
                self._in_stream = isinstance(message, wire.StreamStart)
            case wire.Commit() | wire.Prepare() | wire.StreamStop():
                xid, self._xid, self._in_stream = self._xid, None, False
                return xid
            case wire.StreamCommit() | wire.StreamPrepare() | wire.StreamAbort():
                return message.xid
            case wire.CommitPrepared() | wire.RollbackPrepared():
                return message.xid
            case wire.LogicalMessage() if not message.is_transactional:
                return None
        return self._xid


def _facts(data: bytes, in_stream: bool) -> Facts:
    """Decode pgsluice's own message: tag, xid in a stream, OID, JSON or nothing."""
    layout = struct.Struct(">II" if in_stream else ">I")
    try:
        *xid, oid = layout.unpack_from(data, 1)
        content = data[1 + layout.size :].decode()
        if content:
            json.dumps(json.loads(content), allow_nan=False)
    except (struct.error, ValueError, RecursionError):
        raise ProtocolError(
            "Relation metadata ('#'), offset 1: expected a relation's OID and JSON, got other "
            "bytes",
            tag="#",
            offset=1,
        ) from None
    return Facts(oid, content, xid[0] if xid else None)
