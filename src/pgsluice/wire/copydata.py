"""The payloads of CopyData during START_REPLICATION: w and k from the server, r and h to it.

Source: the manual, "Streaming Replication Protocol".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from types import MappingProxyType
from typing import ClassVar, get_args

from pgsluice.wire.fields import (
    Boolean,
    Rest,
    TimestampTz,
    TransactionId,
    UInt32,
    Wire,
    XLogRecPtr,
    unknown_tag,
)

XLOG_DATA_HEADER = Struct(">cqqq")
"""The bytes before the message in an XLogData frame: ``w``, start LSN, end LSN, timestamp. For code
that reads many frames at once; :class:`XLogData` reads one."""


@dataclass(frozen=True, slots=True)
class XLogData(Wire):
    """One message of the output plugin.

    ``start`` and ``end`` are 0/0 for R, Y, and for B or S when an O follows: never derive
    progress from them.

    Attributes:
        start: where the data begins in the WAL.
        end: the server's current end of WAL.
        data: the message, for :func:`~pgsluice.wire.decode_message`.
    """

    tag: ClassVar[str] = "w"
    start: XLogRecPtr
    end: XLogRecPtr
    timestamp: TimestampTz
    data: Rest


@dataclass(frozen=True, slots=True)
class Keepalive(Wire):
    """The server reports its position.

    Attributes:
        end: the server has sent everything before this LSN.
        reply_requested: the server waits for a status update, or it will hang up.
    """

    tag: ClassVar[str] = "k"
    end: XLogRecPtr
    timestamp: TimestampTz
    reply_requested: Boolean


@dataclass(frozen=True, slots=True)
class StandbyStatusUpdate(Wire):
    """The client reports its position. No field has a default, so that nothing is acknowledged by
    accident.

    Attributes:
        write: the received LSN.
        flush: the durable LSN: the server may remove the WAL before it.
        apply: the applied LSN.
        reply_requested: the server has to answer with a keepalive at once.
    """

    tag: ClassVar[str] = "r"
    write: XLogRecPtr
    flush: XLogRecPtr
    apply: XLogRecPtr
    timestamp: TimestampTz
    reply_requested: Boolean


@dataclass(frozen=True, slots=True)
class HotStandbyFeedback(Wire):
    """A physical standby reports which old rows its queries need; 0 for none.

    Attributes:
        xmin: the oldest transaction that it needs.
        xmin_epoch: how often the counter had wrapped around for ``xmin``.
        catalog_xmin: the same for catalog rows.
        catalog_xmin_epoch: how often the counter had wrapped around for ``catalog_xmin``.
    """

    tag: ClassVar[str] = "h"
    timestamp: TimestampTz
    xmin: TransactionId
    xmin_epoch: UInt32
    catalog_xmin: TransactionId
    catalog_xmin_epoch: UInt32


CopyData = XLogData | Keepalive | StandbyStatusUpdate | HotStandbyFeedback

FRAMES: Mapping[int, type[CopyData]] = MappingProxyType(
    {ord(frame.tag): frame for frame in get_args(CopyData)}
)
"""Tag byte -> frame."""


def decode_copy_data(data: bytes) -> CopyData:
    """Read the payload of one CopyData message (any bytes-like object), in either direction; raises
    ProtocolError if the bytes are no such frame."""
    data = bytes(data)
    frame = FRAMES.get(data[0]) if data else None
    if frame is None:
        raise unknown_tag("replication frame", data, FRAMES)
    return frame.decode(data)
