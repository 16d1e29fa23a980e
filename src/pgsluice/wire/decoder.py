"""Decodes one message, by its tag."""

from __future__ import annotations

from pgsluice.errors import ProtocolError
from pgsluice.lsn import Lsn
from pgsluice.wire.fields import unknown_tag
from pgsluice.wire.messages import MESSAGES, Message
from pgsluice.wire.reading import Reader


def decode_message(
    data: bytes, *, in_stream: bool = False, parallel: bool = False, lsn: Lsn | None = None
) -> Message:
    """Read one pgoutput message; its ``encode()`` returns the same bytes.

    Args:
        data: the whole message (any bytes-like object), starting with its tag.
        in_stream: it was sent between Stream Start and Stream Stop, where changes have their
            (sub)transaction's id.
        parallel: START_REPLICATION requested ``streaming 'parallel'``, with which Stream Abort has
            an LSN and a time.
        lsn: the message's LSN (``XLogData.start``), for errors.

    Raises:
        ProtocolError: the bytes are not a message; facts ``tag``, ``offset``, ``expected``, and
            ``lsn`` if it was given.
    """
    data = bytes(data)
    try:
        kind = MESSAGES.get(data[0]) if data else None
        if kind is None:
            raise unknown_tag("pgoutput message", data, MESSAGES)
        reader = Reader(data, kind.__name__, in_stream, parallel)
        message = kind.read(reader)
        reader.end()
        return message
    except ProtocolError as error:
        if lsn is None:
            raise
        raise ProtocolError(f"at {lsn}: {error.what}", **{**error.facts, "lsn": lsn}) from None


def decode_first_message(
    data: bytes, *, in_stream: bool = False, parallel: bool = False
) -> tuple[Message, int]:
    """Read the pgoutput message at the start of the bytes, and its size in bytes; ignore the rest,
    as in a file of consecutive messages: the protocol has no length of a message, but its end
    follows from its content. Arguments are those of :func:`decode_message`. Raises ProtocolError if
    the bytes do not start with a complete message."""
    kind = MESSAGES.get(data[0]) if data else None
    if kind is None:
        raise unknown_tag("pgoutput message", data, MESSAGES)
    reader = Reader(data, kind.__name__, in_stream, parallel)
    return kind.read(reader), reader.offset
