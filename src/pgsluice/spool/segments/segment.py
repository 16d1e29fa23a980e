"""A spool's Arrow IPC files of raw messages: segments, parts, references and prepared files.

Columns: ``lsn`` (int64, WAL start of the message's frame) and ``message`` (large_binary, the
pgoutput message without its frame header). Everything else is in the header
(:mod:`pgsluice.spool.segments.header`), under the key ``pgsluice`` of the schema's metadata.

The columns are three *blocks*: the LSNs, the messages' offsets, and their bytes. The header has the
checksum and, by the number of messages, the size of each. Readers use Arrow's own metadata only for
the place of each block, so the checksums also detect damage there. A process checks the checksums
of a file once, because these files never change.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import BinaryIO, TypeVar

import numpy as np
import pyarrow as pa

from pgsluice.errors import SpoolError
from pgsluice.spool.formats import RESTORE_FILE, checksum, damaged
from pgsluice.spool.layout import new_object
from pgsluice.spool.segments.block import RawMessages
from pgsluice.spool.segments.header import (
    Header,
    PartHeader,
    PreparedHeader,
    ReferenceHeader,
    SegmentHeader,
    decode_header,
    encode_header,
    name_of,
)
from pgsluice.spool.spool import Spool
from pgsluice.spool.storage import Storage
from pgsluice.types.buffers import fixed_width, spans

SCHEMA = pa.schema([("lsn", pa.int64()), ("message", pa.large_binary())])
_METADATA_KEY = b"pgsluice"
_LSNS, _OFFSETS, _BYTES = "lsns", "offsets", "bytes"
_UNREADABLE = (pa.ArrowException, OSError, ValueError, TypeError, IndexError, MemoryError)
Blocks = Mapping[str, memoryview]
H = TypeVar("H", SegmentHeader, PartHeader, ReferenceHeader, PreparedHeader)
_REMEMBERED = 10_000
CHECKED: dict[Hashable, None] = {}
"""The files whose checksums this process has checked, the oldest first."""


class Objects:
    """The Arrow files of one spool, with checks when they are read.

    A file is refused if it is damaged, belongs to another spool, or has the name of another file.
    """

    def __init__(self, spool: Spool) -> None:
        self.storage: Storage = spool.storage
        self._spool_id = spool.identity.spool_id

    def put(self, header: Header, messages: RawMessages | None = None) -> tuple[str, int]:
        """Store a new file durably; returns its name with its folders, and its size in bytes.
        Raises SpoolFull or SpoolError if it cannot be written."""
        base = name_of(header)
        name = new_object(base, self.storage.shard(base.folder))
        return name, self.storage.put(name, lambda file: write_segment(file, header, messages))

    def header(self, name: str, kind: type[H]) -> H:
        """Read a file's header; raises OSError if the file cannot be opened, and SpoolError if it
        is damaged, of another kind or spool, or has another file's name."""
        with self.storage.open(name, is_header=True) as file:
            return self._expect(read_header(file, name), kind, name)

    def read(self, name: str, kind: type[H]) -> tuple[H, RawMessages]:
        """Read a file; the messages are views of the memory-mapped file. Raises as
        :meth:`header`."""
        version = self.storage.version(name)
        with self.storage.open(name) as file:
            header, messages = read_segment(file, name, is_checked=version in CHECKED)
        own = self._expect(header, kind, name)
        CHECKED[version] = None
        if len(CHECKED) > _REMEMBERED:
            CHECKED.pop(next(iter(CHECKED)), None)
        return own, messages

    def _expect(self, header: Header, kind: type[H], name: str) -> H:
        header = expect_kind(header, kind, name)
        if header.origin.spool_id != self._spool_id:
            raise SpoolError(
                f"the file {name} belongs to the spool with id {header.origin.spool_id}, not to "
                f"this spool with id {self._spool_id}",
                hint=RESTORE_FILE,
                path=name,
            )
        own_name = name_of(header)
        named = type(own_name).parse(name.rpartition("/")[2])
        if own_name != named:
            raise SpoolError(
                f"the file {name} has the content of another file of this spool, {own_name}",
                hint=RESTORE_FILE,
                path=name,
            )
        return header


def expect_kind(header: Header, kind: type[H], path: str) -> H:
    """Return the header if it is of the expected kind; else raise SpoolError."""
    if not isinstance(header, kind):
        raise SpoolError(
            f"the file {path} has the content of another kind of file: {type(header).__name__}",
            hint=RESTORE_FILE,
            path=path,
        )
    return header


def write_segment(file: BinaryIO, header: Header, messages: RawMessages | None) -> None:
    """Write an Arrow file of a spool: the header, and the messages if it has any."""
    columns: list[pa.Array] = []
    checksums: dict[str, int] = {}
    if messages is not None and len(messages):
        columns = [
            fixed_width(messages.lsns, pa.int64()),
            spans(messages.data, messages.starts, messages.ends),
        ]
        blocks = _blocks(columns, len(messages))
        checksums = {name: checksum(block) for name, block in blocks.items()}
    metadata = encode_header(replace(header, checksums=checksums))
    schema = SCHEMA.with_metadata({_METADATA_KEY: metadata})
    with pa.ipc.new_file(pa.PythonFile(file, mode="w"), schema) as writer:
        if columns:
            writer.write_batch(pa.record_batch(columns, schema=schema))


def read_header(file: pa.NativeFile, path: str) -> Header:
    """Read only the header of an Arrow file of a spool; raises as :func:`read_segment`."""
    return _header(_open(file, path), path)


def read_segment(
    file: pa.NativeFile, path: str, *, is_checked: bool = False
) -> tuple[Header, RawMessages]:
    """Read the header and the messages; the bytes of a memory-mapped file are not copied.
    ``is_checked``: this process has already checked the blocks' checksums. Raises ForeignSpool if
    this version does not read its format, and SpoolError if it is damaged, or not a segment."""
    reader = _open(file, path)
    header = _header(reader, path)
    count = header.counts.messages if isinstance(header, SegmentHeader | PartHeader) else 0
    if count == 0:
        nothing = np.zeros(0, dtype=np.int64)
        return header, RawMessages(np.zeros(0, dtype=np.uint8), nothing, nothing, nothing)
    try:
        blocks = _blocks(reader.get_batch(0).columns, count)
    except _UNREADABLE as error:
        raise damaged(path, f"its messages cannot be read: {error}") from error
    if header.checksums is not None and not is_checked:
        for name, block in blocks.items():
            if header.checksums.get(name) != checksum(block):
                raise damaged(path, f"the checksum of its messages' {name} is wrong")
    bounds = np.frombuffer(blocks[_OFFSETS], dtype=np.int64)
    lsns = np.frombuffer(blocks[_LSNS], dtype=np.int64)
    data = np.frombuffer(blocks[_BYTES], dtype=np.uint8)
    return header, RawMessages(data, bounds[:-1], bounds[1:], lsns)


def _blocks(columns: list[pa.Array], count: int) -> Blocks:
    """The blocks of ``count`` messages, without Arrow's padding; ValueError if one is too short."""
    lsns, messages = columns
    _, offsets, data = messages.buffers()
    offsets = _first(offsets, 8 * (count + 1))
    size = int.from_bytes(offsets[-8:], "little", signed=True)
    return {
        _LSNS: _first(lsns.buffers()[1], 8 * count),
        _OFFSETS: offsets,
        _BYTES: _first(data, size),
    }


def _first(buffer: pa.Buffer | None, size: int) -> memoryview:
    block = memoryview(b"" if buffer is None else buffer)
    if not 0 <= size <= len(block):
        raise ValueError(f"a block has {len(block)} of {size} bytes")
    return block[:size]


def _open(file: pa.NativeFile, path: str) -> pa.RecordBatchFileReader:
    try:
        return pa.ipc.open_file(file)
    except _UNREADABLE as error:
        raise SpoolError(
            f"{path} is not a readable file of a spool: {error}", hint=RESTORE_FILE, path=path
        ) from error


def _header(reader: pa.RecordBatchFileReader, path: str) -> Header:
    metadata = reader.schema.metadata or {}
    if _METADATA_KEY not in metadata:
        raise SpoolError(
            f"the file {path} is not a segment file of pgsluice", hint=RESTORE_FILE, path=path
        )
    if not reader.schema.equals(SCHEMA):
        raise damaged(path, "its columns are not those of a segment")
    return decode_header(metadata[_METADATA_KEY], path)
