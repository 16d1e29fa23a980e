"""Segments and parts: Arrow IPC files of raw messages with a header that makes each decode alone.

Columns: ``lsn`` (int64, WAL start of the message's frame) and ``message`` (large_binary, the
pgoutput message without its frame header). Everything else lies in the schema's metadata, key
``pgsluice``, as JSON: see :class:`SegmentHeader`.

Four kinds: ``segment`` holds whole transactions; ``part`` a piece of one transaction that is
still open when it is written; ``reference`` has no messages, stands in the chain of segments
at its transaction's commit and names that transaction's parts in order; ``prepared`` has none
either, stands outside the chain and keeps the parts of a prepared transaction until its end.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from pgsluice.errors import SpoolError
from pgsluice.facts import RelationFacts
from pgsluice.lsn import Lsn
from pgsluice.spool.block import Int64s, RelationInForce
from pgsluice.spool.identity import FORMAT, check_format
from pgsluice.spool.scan import RawMessages, RelationCounts

SCHEMA = pa.schema([("lsn", pa.int64()), ("message", pa.large_binary())])
_NOWHERE = Lsn(0)
_LSNS = ("start", "end", "prepare_lsn")
_METADATA_KEY = b"pgsluice"


@dataclass(frozen=True, slots=True)
class PartReference:
    """A part of a transaction, as its reference segment names it.

    Attributes:
        name: the part's object name.
        size_bytes: its size.
        messages: how many it holds.
        ordinal_start: changes of the transaction before it, dropped ones not counted.
        drops: pairs (first, past the last) of message indices that do not belong to the
            transaction any more: its aborted subtransactions.
    """

    name: str
    size_bytes: int
    messages: int
    ordinal_start: int
    drops: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """What a segment, part or reference says of itself.

    Attributes:
        kind: ``segment``, ``part``, ``reference`` or ``prepared``.
        spool_id, epoch: of the writer.
        start, end: the range (start, end]; both 0 in a part.
        relations: by OID, in force before the first message, for what the messages use. In
            a reference: as of the commit, for a transaction that arrived before it; its facts
            then hold for all parts. Empty where the parts say all themselves.
        counts: by relation OID.
        roots: the root of each relation with counts (a leaf's partitioned table, else itself);
            a relation whose facts are unknown is its own.
        messages, changes, transactions: totals.
        first_commit_timestamp, last_commit_timestamp: microseconds since 1970-01-01 UTC, or
            None without a transaction.
        publications, options: in force while it was received.
        body: see :class:`pgsluice.spool.block.MessageBlock`.
        transaction: its transaction's key, but for segments.
        sequence: a part's number, from 0.
        xid: of the transaction of a reference or ``prepared``, else 0.
        parts: of a reference or ``prepared``.
        gid, prepare_lsn: of ``prepared``: what PREPARE TRANSACTION named it, and where the
            record of that starts.
    """

    kind: str
    spool_id: str
    epoch: int
    start: Lsn = _NOWHERE
    end: Lsn = _NOWHERE
    relations: Mapping[int, RelationInForce] = field(default_factory=dict)
    counts: Mapping[int, RelationCounts] = field(default_factory=dict)
    roots: Mapping[int, int] = field(default_factory=dict)
    messages: int = 0
    changes: int = 0
    transactions: int = 0
    first_commit_timestamp: int | None = None
    last_commit_timestamp: int | None = None
    publications: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    body: int = 1
    transaction: str = ""
    sequence: int = 0
    xid: int = 0
    parts: tuple[PartReference, ...] = ()
    gid: str = ""
    prepare_lsn: Lsn = _NOWHERE
    format: int = FORMAT

    def to_json(self) -> bytes:
        """The metadata's value; :meth:`from_json` reads it back."""
        raw: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        for name in _LSNS:
            raw[name] = str(raw[name])
        raw["relations"] = {
            str(oid): {
                "relation": base64.b64encode(one.relation).decode(),
                "facts": None if one.facts is None else one.facts.to_json(),
            }
            for oid, one in self.relations.items()
        }
        raw["counts"] = {str(oid): asdict(counts) for oid, counts in self.counts.items()}
        raw["roots"] = {str(oid): root for oid, root in self.roots.items()}
        raw["options"] = dict(self.options)
        raw["parts"] = [asdict(part) for part in self.parts]
        return json.dumps(raw, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes, path: str) -> SegmentHeader:
        """Read the metadata's value.

        Raises:
            SpoolError: not a header, or of a format that this version does not read.
        """
        try:
            raw: dict[str, Any] = json.loads(data)
            check_format(raw["format"], path)
            for name in _LSNS:
                raw[name] = Lsn.parse(raw.get(name, "0/0"))
            raw["relations"] = {int(oid): _relation(one) for oid, one in raw["relations"].items()}
            raw["counts"] = {int(oid): RelationCounts(**one) for oid, one in raw["counts"].items()}
            raw["roots"] = {int(oid): root for oid, root in raw["roots"].items()}
            raw["publications"] = tuple(raw["publications"])
            raw["parts"] = tuple(
                PartReference(**{**one, "drops": tuple(tuple(pair) for pair in one["drops"])})
                for one in raw["parts"]
            )
            return cls(**raw)
        except (ValueError, KeyError, TypeError) as error:
            raise SpoolError(f"{path} has no readable header", path=path) from error


def _relation(raw: Mapping[str, Any]) -> RelationInForce:
    facts = raw["facts"]
    return RelationInForce(
        relation=base64.b64decode(raw["relation"]),
        facts=None if facts is None else RelationFacts.from_json(facts),
    )


def _message_array(messages: RawMessages) -> pa.Array:
    """The messages as one large_binary array, gaps between them dropped in one pass.

    Values and gaps alternate in one array over the same bytes; taking every second element
    copies the values together without a Python object for any of them.
    """
    count = len(messages)
    bounds = np.empty(2 * count, dtype=np.int64)
    bounds[0::2], bounds[1::2] = messages.starts, messages.ends
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(np.ascontiguousarray(messages.data))]
    alternating = pa.Array.from_buffers(pa.large_binary(), max(2 * count - 1, 0), buffers)
    return alternating.take(_int64_array(np.arange(0, 2 * count, 2)))


def _int64_array(values: Int64s) -> pa.Array:
    """As Arrow has it. ``pa.array`` would load pandas first: most of a second and 50 MB."""
    data = np.ascontiguousarray(values, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(data), [None, pa.py_buffer(data)])


def write_segment(file: BinaryIO, header: SegmentHeader, messages: RawMessages | None) -> None:
    """Write one file: the header, and the messages if there are any."""
    schema = SCHEMA.with_metadata({_METADATA_KEY: header.to_json()})
    sink = pa.PythonFile(file, mode="w")
    with pa.ipc.new_file(sink, schema) as writer:
        if messages is not None and len(messages):
            columns = [_int64_array(messages.lsns), _message_array(messages)]
            writer.write_batch(pa.record_batch(columns, schema=schema))


def read_header(file: pa.NativeFile, path: str) -> SegmentHeader:
    """The header alone.

    Raises:
        SpoolError: the file is not a segment, or cut short.
    """
    return _header(_open(file, path), path)


def read_segment(file: pa.NativeFile, path: str) -> tuple[SegmentHeader, RawMessages]:
    """The header and the messages; over the file's own memory when that is mapped.

    Raises:
        SpoolError: the file is not a segment, or cut short.
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
        if len(array) != header.messages or bounds[-1] > data.size:
            raise SpoolError(f"{path} does not hold what its header says", path=path)
        lsns = batch.column(0).to_numpy()
    except (pa.ArrowInvalid, OSError, ValueError, AttributeError, IndexError) as error:
        raise SpoolError(f"{path} cannot be read: {error}", path=path) from error
    return header, RawMessages(np.frombuffer(data, dtype=np.uint8), bounds[:-1], bounds[1:], lsns)


def _open(file: pa.NativeFile, path: str) -> pa.RecordBatchFileReader:
    try:
        return pa.ipc.open_file(file)
    except (pa.ArrowInvalid, OSError) as error:
        raise SpoolError(f"{path} is not a readable segment: {error}", path=path) from error


def _header(reader: pa.RecordBatchFileReader, path: str) -> SegmentHeader:
    metadata = reader.schema.metadata or {}
    if _METADATA_KEY not in metadata:
        raise SpoolError(f"{path} is not a segment of pgsluice", path=path)
    return SegmentHeader.from_json(metadata[_METADATA_KEY], path)
