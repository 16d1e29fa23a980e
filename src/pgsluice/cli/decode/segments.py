"""Reads messages from files of a spool: segments, parts, and references to parts.

A segment has the relations in force before its first message, so it can be read alone. A
reference has no messages: its parts are read from the same spool, and messages of an aborted
subtransaction are shown as taken back.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import assert_never

import numpy as np
import pyarrow as pa

from pgsluice.cli.decode.follow import Follower, Raw, Seen
from pgsluice.errors import ConfigError, SpoolError
from pgsluice.lsn import Lsn
from pgsluice.spool import (
    PartHeader,
    PartReference,
    PreparedHeader,
    RawMessages,
    ReferenceHeader,
    SegmentHeader,
)
from pgsluice.spool.layout import spool_of
from pgsluice.spool.segments.header import Header
from pgsluice.spool.segments.segment import expect_kind, read_segment
from pgsluice.wire import Relation


def read_segments(where: str, path: Path | None, data: bytes, follower: Follower) -> Iterator[Seen]:
    """The messages of one file of a spool; for a reference, those of its parts.

    Args:
        path: the path of the file; None for stdin.

    Raises:
        ProtocolError: a message is malformed.
        SpoolError: a file is not a spool's, is truncated, or is missing.
        ConfigError: a reference was read from stdin.
    """
    header, messages, base = _read(where, data)
    match header:
        case SegmentHeader() | PartHeader():
            yield from _piece(where, header, messages, base, follower)
        case ReferenceHeader() | PreparedHeader():
            yield from _parts(where, path, header, follower)
        case _:
            assert_never(header)


def _parts(
    where: str, path: Path | None, header: ReferenceHeader | PreparedHeader, follower: Follower
) -> Iterator[Seen]:
    """The messages of the parts in a reference."""
    if path is None:
        raise ConfigError(
            "the input is a reference to files of a spool, and pgsluice cannot find that spool "
            "when it reads stdin",
            hint="give the path of the file inside its spool instead of -",
        )
    spool = spool_of(path)
    for part in header.parts:
        name = spool / part.name
        try:
            content = name.read_bytes()
        except OSError as error:
            raise SpoolError(
                f"{where} names the part {name}, which cannot be read: {error.strerror}",
                path=str(name),
            ) from None
        read, messages, base = _read(str(name), content)
        of_part = expect_kind(read, PartHeader, str(name))
        yield from _piece(str(name), of_part, messages, base, follower, header.xid, part)


def _read(where: str, data: bytes) -> tuple[Header, RawMessages, int]:
    """Header, messages, and the offset of the messages' bytes in the file."""
    source = pa.py_buffer(data)
    header, messages = read_segment(pa.BufferReader(source), where)
    # Nothing is copied, so the offset in memory is the offset in the file.
    base = messages.data.ctypes.data - source.address if len(messages) else 0
    return header, messages, base


def _piece(
    where: str,
    header: SegmentHeader | PartHeader,
    messages: RawMessages,
    base: int,
    follower: Follower,
    xid: int | None = None,
    part: PartReference | None = None,
) -> Iterator[Seen]:
    relations = (Relation.decode(in_force.relation) for in_force in header.relations.values())
    follower.begin_piece(relations, in_stream=header.in_stream, xid=xid)
    kept = np.ones(len(messages), dtype=np.bool_)
    for first, past in part.drops if part else ():
        kept[first:past] = False
    for start, end, lsn, is_kept in zip(
        messages.starts.tolist(),
        messages.ends.tolist(),
        messages.lsns.tolist(),
        kept.tolist(),
        strict=True,
    ):
        content = messages.data[start:end].tobytes()
        yield follower.take(
            Raw(content, base + start, 1, where, lsn=Lsn(max(lsn, 0)), taken_back=not is_kept)
        )
