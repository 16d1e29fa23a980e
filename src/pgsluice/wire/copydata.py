"""What travels in CopyData during START_REPLICATION: w k from the server, r h to it.

======================= === =========================================================
XLogData                w   lsn start, lsn end, i64 timestamp, data
Keepalive               k   lsn end, i64 timestamp, u8 reply requested
StandbyStatusUpdate     r   lsn write, lsn flush, lsn apply, i64 timestamp, u8 reply
HotStandbyFeedback      h   i64 timestamp, u32 xmin, u32 its epoch, u32 catalog_xmin,
                            u32 its epoch
======================= === =========================================================

Source: the manual, "Streaming Replication Protocol".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from types import MappingProxyType
from typing import ClassVar, Self, get_args

from pgsluice.lsn import Lsn
from pgsluice.wire.message import Wire, unknown_tag
from pgsluice.wire.reading import Reader, Writer

XLOG_DATA_HEADER = Struct(">cqqq")
"""What precedes an XLogData frame's message: ``w``, start LSN, end LSN, timestamp. For those that
read many frames at once; :class:`XLogData` reads one."""


@dataclass(frozen=True, slots=True)
class XLogData(Wire):
    """One message of the output plugin.

    ``start`` and ``end`` are 0/0 for R, Y, and for B or S when an O follows: never derive
    progress from them.

    Attributes:
        start: where the data begins in the WAL.
        end: the server's current end of WAL.
        timestamp: when it was sent, microseconds since 2000-01-01 UTC.
        data: the message, for :func:`~pgsluice.wire.decode_message`.
    """

    tag: ClassVar[str] = "w"
    start: Lsn
    end: Lsn
    timestamp: int
    data: bytes

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(reader.lsn("start"), reader.lsn("end"), reader.i64("timestamp"), reader.rest())

    def _write(self, writer: Writer) -> None:
        writer.lsn(self.start, "start")
        writer.lsn(self.end, "end")
        writer.i64(self.timestamp, "timestamp")
        writer.raw(self.data)


@dataclass(frozen=True, slots=True)
class Keepalive(Wire):
    """The server says how far it is.

    Attributes:
        end: everything before it has been sent.
        timestamp: when it was sent, microseconds since 2000-01-01 UTC.
        reply_requested: the server waits for a status update, or it will hang up.
    """

    tag: ClassVar[str] = "k"
    end: Lsn
    timestamp: int
    reply_requested: bool

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(reader.lsn("end"), reader.i64("timestamp"), reader.boolean("reply"))

    def _write(self, writer: Writer) -> None:
        writer.lsn(self.end, "end")
        writer.i64(self.timestamp, "timestamp")
        writer.boolean(self.reply_requested, "reply")


@dataclass(frozen=True, slots=True)
class StandbyStatusUpdate(Wire):
    """We say how far we are. No field has a default: none may acknowledge by itself.

    Attributes:
        write: received.
        flush: durable: the server may forget everything before it.
        apply: applied.
        timestamp: when it was sent, microseconds since 2000-01-01 UTC.
        reply_requested: the server is to answer with a keepalive at once.
    """

    tag: ClassVar[str] = "r"
    write: Lsn
    flush: Lsn
    apply: Lsn
    timestamp: int
    reply_requested: bool

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(
            reader.lsn("write"),
            reader.lsn("flush"),
            reader.lsn("apply"),
            reader.i64("timestamp"),
            reader.boolean("reply"),
        )

    def _write(self, writer: Writer) -> None:
        writer.lsn(self.write, "write")
        writer.lsn(self.flush, "flush")
        writer.lsn(self.apply, "apply")
        writer.i64(self.timestamp, "timestamp")
        writer.boolean(self.reply_requested, "reply")


@dataclass(frozen=True, slots=True)
class HotStandbyFeedback(Wire):
    """A physical standby says which old rows its queries need; 0 for none.

    Attributes:
        timestamp: when it was sent, microseconds since 2000-01-01 UTC.
        xmin: the oldest transaction that matters to it.
        xmin_epoch: how often the counter had wrapped around for ``xmin``.
        catalog_xmin: the same for catalog rows.
        catalog_xmin_epoch: how often the counter had wrapped around for ``catalog_xmin``.
    """

    tag: ClassVar[str] = "h"
    timestamp: int
    xmin: int
    xmin_epoch: int
    catalog_xmin: int
    catalog_xmin_epoch: int

    @classmethod
    def _read(cls, reader: Reader) -> Self:
        return cls(
            reader.i64("timestamp"),
            reader.u32("xmin"),
            reader.u32("xmin epoch"),
            reader.u32("catalog_xmin"),
            reader.u32("catalog_xmin epoch"),
        )

    def _write(self, writer: Writer) -> None:
        writer.i64(self.timestamp, "timestamp")
        writer.u32(self.xmin, "xmin")
        writer.u32(self.xmin_epoch, "xmin epoch")
        writer.u32(self.catalog_xmin, "catalog_xmin")
        writer.u32(self.catalog_xmin_epoch, "catalog_xmin epoch")


CopyData = XLogData | Keepalive | StandbyStatusUpdate | HotStandbyFeedback

FRAMES: Mapping[int, type[CopyData]] = MappingProxyType(
    {ord(frame.tag): frame for frame in get_args(CopyData)}
)
"""Tag byte -> frame."""


def decode_copy_data(data: bytes) -> CopyData:
    """Read the payload of one CopyData message, in either direction.

    Args:
        data: the payload (any bytes-like object), its tag first.

    Raises:
        ProtocolError: the bytes are no such frame.
    """
    data = bytes(data)
    frame = FRAMES.get(data[0]) if data else None
    if frame is None:
        raise unknown_tag("replication frame", data, FRAMES)
    return frame.decode(data)
