"""From a tag to its message: the one table, and the one way in."""

from __future__ import annotations

from pgsluice.errors import ProtocolError
from pgsluice.wire.basic import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Origin,
    Relation,
    Truncate,
    Type,
    Update,
)

Message = (
    Begin | Commit | Origin | Relation | Type | Insert | Update | Delete | Truncate | LogicalMessage
)

MESSAGES: dict[int, type[Message]] = {
    ord(message.tag): message
    for message in (
        Begin,
        Commit,
        Origin,
        Relation,
        Type,
        Insert,
        Update,
        Delete,
        Truncate,
        LogicalMessage,
    )
}
"""Tag byte -> message."""


def decode_message(data: bytes, *, in_stream: bool = False, parallel: bool = False) -> Message:
    """Read one pgoutput message.

    Args:
        data: the whole message (any bytes-like object), its tag first.
        in_stream: it came between Stream Start and Stream Stop.
        parallel: START_REPLICATION asked for ``streaming 'parallel'``.

    Returns:
        A message whose ``encode()`` gives the same bytes.

    Raises:
        ProtocolError: the bytes are no message; facts ``tag``, ``offset``, ``expected``.
    """
    data = bytes(data)
    kind = MESSAGES.get(data[0]) if data else None
    if kind is None:
        got = f"byte {data[0]:#04x}" if data else "nothing"
        expected = "a message's tag, one of " + ", ".join(repr(chr(tag)) for tag in MESSAGES)
        raise ProtocolError(
            f"pgoutput message, offset 0: expected {expected}, got {got}",
            tag=chr(data[0]) if data else None,
            offset=0,
            expected=expected,
        )
    return kind.decode(data, in_stream=in_stream, parallel=parallel)
