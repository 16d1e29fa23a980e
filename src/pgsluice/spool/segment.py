"""Segments and parts as files: Arrow IPC files of raw messages, with a header.

Columns: ``lsn`` (int64, WAL start of the message's frame) and ``message`` (large_binary, the
pgoutput message without its frame header). Everything else is in the header
(:mod:`pgsluice.spool.header`), under the key ``pgsluice`` of the schema's metadata.
"""

from __future__ import annotations

from typing import BinaryIO, TypeVar

import numpy as np
import pyarrow as pa

from pgsluice.errors import SpoolError
from pgsluice.spool.block import Int64s
from pgsluice.spool.header import (
    Header,
    PartHeader,
    PreparedHeader,
    ReferenceHeader,
    SegmentHeader,
    decode_header,
    encode_header,
)
from pgsluice.spool.scan import RawMessages

SCHEMA = pa.schema([("lsn", pa.int64()), ("message", pa.large_binary())])
_METADATA_KEY = b"pgsluice"
H = TypeVar("H", SegmentHeader, PartHeader, ReferenceHeader, PreparedHeader)


def _message_array(messages: RawMessages) -> pa.Array:
    """The messages as one large_binary array, without the gaps between them.

    In an array over the same bytes, messages and gaps alternate. Taking every second element
    copies the messages without creating a Python object for each.
    """
    count = len(messages)
    bounds = np.empty(2 * count, dtype=np.int64)
    bounds[0::2], bounds[1::2] = messages.starts, messages.ends
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(np.ascontiguousarray(messages.data))]
    alternating = pa.Array.from_buffers(pa.large_binary(), max(2 * count - 1, 0), buffers)
    return alternating.take(_int64_array(np.arange(0, 2 * count, 2)))


def _int64_array(values: Int64s) -> pa.Array:
    """An Arrow array over the values. ``pa.array`` would import pandas: 50 MB and some time."""
    data = np.ascontiguousarray(values, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(data), [None, pa.py_buffer(data)])


def write_segment(file: BinaryIO, header: Header, messages: RawMessages | None) -> None:
    """Write one file: the header, and the messages if it has any."""
    schema = SCHEMA.with_metadata({_METADATA_KEY: encode_header(header)})
    sink = pa.PythonFile(file, mode="w")
    with pa.ipc.new_file(sink, schema) as writer:
        if messages is not None and len(messages):
            columns = [_int64_array(messages.lsns), _message_array(messages)]
            writer.write_batch(pa.record_batch(columns, schema=schema))


def read_header(file: pa.NativeFile, path: str) -> Header:
    """Read the header only.

    Raises:
        SpoolError: the file is not a segment, or it is truncated.
    """
    return _header(_open(file, path), path)


def expect_kind(header: Header, kind: type[H], path: str) -> H:
    """Return the header if it is of the expected kind.

    Raises:
        SpoolError: the file is of another kind.
    """
    if not isinstance(header, kind):
        raise SpoolError(f"{path} is a file of another kind: {type(header).__name__}", path=path)
    return header


def read_segment(file: pa.NativeFile, path: str) -> tuple[Header, RawMessages]:
    """Read the header and the messages; a memory-mapped file's bytes are not copied.

    Raises:
        SpoolError: the file is not a segment, or it is truncated.
    """
    reader = _open(file, path)
    header = _header(reader, path)
    try:
        if reader.num_record_batches == 0:
            nothing = np.zeros(0, dtype=np.int64)
            return header, RawMessages(np.zeros(0, dtype=np.uint8), nothing, nothing, nothing)
        batch = reader.get_batch(0)
        array = batch.column(1)
        _, offsets, data = array.buffers()
        bounds = np.frombuffer(offsets, dtype=np.int64, count=len(array) + 1)
        if len(array) != header.counts.messages or bounds[-1] > data.size:
            raise SpoolError(f"{path} does not have the messages that its header counts", path=path)
        lsns = batch.column(0).to_numpy()
    except (pa.ArrowInvalid, OSError, ValueError, AttributeError, IndexError) as error:
        raise SpoolError(f"{path} cannot be read: {error}", path=path) from error
    return header, RawMessages(np.frombuffer(data, dtype=np.uint8), bounds[:-1], bounds[1:], lsns)


def _open(file: pa.NativeFile, path: str) -> pa.RecordBatchFileReader:
    try:
        return pa.ipc.open_file(file)
    except (pa.ArrowInvalid, OSError) as error:
        raise SpoolError(f"{path} is not a readable segment: {error}", path=path) from error


def _header(reader: pa.RecordBatchFileReader, path: str) -> Header:
    metadata = reader.schema.metadata or {}
    if _METADATA_KEY not in metadata:
        raise SpoolError(f"{path} is not a segment of pgsluice", path=path)
    return decode_header(metadata[_METADATA_KEY], path)
