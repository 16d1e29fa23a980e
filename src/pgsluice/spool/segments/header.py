"""Headers of a spool's Arrow files: one type for each kind of file, and their codec.

* A *segment* holds whole transactions, and belongs to the chain of segments.
* A *part* holds a piece of one transaction that had not ended when the part was written.
* A *reference* has no messages. It belongs to the chain at its transaction's commit, and names
  the transaction's parts in order.
* A *prepared* file has no messages and does not belong to the chain. It names the parts of a
  prepared transaction, which are kept until the transaction ends.

A header is JSON under one key of the Arrow schema's metadata.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

from pgsluice.facts import RelationFacts
from pgsluice.lsn import Lsn
from pgsluice.spool.formats import FORMAT, damaged, decode_file, encode_json
from pgsluice.spool.layout import PartName, PreparedName, SegmentName
from pgsluice.spool.segments.block import Counts, RelationCounts, RelationInForce, body_offset


@dataclass(frozen=True, slots=True)
class Origin:
    """The writer of a file, and the replication options it requested.

    Attributes:
        spool_id, epoch: the writer's.
        publications, options: those in effect while the messages were received.
    """

    spool_id: str
    epoch: int
    publications: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartReference:
    """A part, as in a reference or prepared file.

    Attributes:
        ordinal_start: how many changes the transaction has before the part, without those of
            aborted subtransactions.
        drops: pairs (first, past the last) of message indices that belong to aborted
            subtransactions.
    """

    name: str
    size_bytes: int
    messages: int
    ordinal_start: int
    drops: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class _Header:
    """The fields of every kind of header.

    Attributes:
        counts: the counts of its messages; for a reference or prepared file, of all parts.
        relations: the definitions of changed relations, by OID, before the first message; in a
            reference or prepared file, after the last message. The metadata in a reference is valid
            for all of its parts. A reference without relations: use those of each part.
        checksums: checksums of the file's blocks, by name; None before the file is written.
    """

    origin: Origin
    counts: Counts
    relations: Mapping[int, RelationInForce]
    checksums: Mapping[str, int] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentHeader(_Header):
    """A segment's header.

    Attributes:
        start, end: the segment covers the positions in (start, end].
        roots: the root of each relation with counts: the partition root, else the relation itself.
            A relation without metadata is its own root.
        first_commit_timestamp: microseconds since 1970-01-01 UTC; None without a transaction.
    """

    is_reference: ClassVar[bool] = False
    in_stream: ClassVar[bool] = False
    start: Lsn
    end: Lsn
    roots: Mapping[int, int]
    first_commit_timestamp: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartHeader(_Header):
    """A part's header.

    Attributes:
        sequence: the part's number in its transaction, from 0.
        number: the part's number among all parts of its writer, as in its name; None: not yet.
    """

    in_stream: bool
    transaction: str
    sequence: int
    number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceHeader(_Header):
    """A reference's header; see :class:`SegmentHeader` and :class:`PreparedHeader`. Its commit
    timestamp is in microseconds since 1970-01-01 UTC."""

    is_reference: ClassVar[bool] = True
    start: Lsn
    end: Lsn
    roots: Mapping[int, int]
    commit_timestamp: int
    in_stream: bool
    transaction: str
    xid: int
    parts: tuple[PartReference, ...]

    @property
    def first_commit_timestamp(self) -> int:
        """The commit timestamp, under the name that it has in a segment's header."""
        return self.commit_timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedHeader(_Header):
    """A prepared file's header.

    Attributes:
        transaction: the transaction's key, with the epoch of the writer that received it.
        xid: its top-level transaction ID.
        gid: the name that PREPARE TRANSACTION gave it.
        prepare_lsn: where the record of its PREPARE starts.
    """

    in_stream: bool
    transaction: str
    xid: int
    parts: tuple[PartReference, ...]
    gid: str
    prepare_lsn: Lsn


ChainHeader = SegmentHeader | ReferenceHeader
Header = SegmentHeader | PartHeader | ReferenceHeader | PreparedHeader

_KINDS: dict[str, type[Header]] = {
    "segment": SegmentHeader,
    "part": PartHeader,
    "reference": ReferenceHeader,
    "prepared": PreparedHeader,
}
_KIND_NAMES = {kind: name for name, kind in _KINDS.items()}
_OWN_FIELDS = {
    kind: [own.name for own in fields(kind) if own.name not in _Header.__slots__]
    for kind in _KINDS.values()
}


def name_of(header: Header) -> SegmentName | PartName | PreparedName:
    """The name of the file that has this header."""
    match header:
        case SegmentHeader() | ReferenceHeader():
            return SegmentName(header.start, header.end, header.origin.epoch, header.is_reference)
        case PartHeader():
            return PartName(header.origin.epoch, header.transaction, header.number or 0)
        case PreparedHeader():
            return PreparedName(header.prepare_lsn, header.xid)


def encode_header(header: Header) -> bytes:
    """Encode the metadata's value; :func:`decode_header` decodes it."""
    raw: dict[str, Any] = {
        "kind": _KIND_NAMES[type(header)],
        **asdict(header.origin),
        "relations": {
            str(oid): _encode_relation(relation) for oid, relation in header.relations.items()
        },
        "counts": {str(oid): asdict(counts) for oid, counts in header.counts.relations.items()},
        "messages": header.counts.messages,
        "changes": header.counts.changes,
        "roots": {},  # other versions of this format expect these two keys in every kind
        "parts": [],
        "checksums": dict(header.checksums or {}),
        "format": FORMAT,
    }
    for name in _OWN_FIELDS[type(header)]:
        value = getattr(header, name)
        match name:
            case "in_stream":
                raw["body"] = body_offset(in_stream=value)
            case "commit_timestamp":
                raw["first_commit_timestamp"] = raw["last_commit_timestamp"] = value
            case "roots":
                raw[name] = {str(oid): root for oid, root in value.items()}
            case "parts":
                raw[name] = [asdict(part) for part in value]
            case _:
                raw[name] = str(value) if isinstance(value, Lsn) else value
    return encode_json(raw)


def decode_header(data: bytes, path: str) -> Header:
    """Decode the metadata's value; raises ForeignSpool if this version does not read its format,
    and SpoolError if it is damaged, or not a header."""
    raw = decode_file(data, path)
    try:
        kind = _KINDS[raw["kind"]]
        own = {name: _decode_field(name, raw) for name in _OWN_FIELDS[kind]}
        counts = {int(oid): RelationCounts(**count) for oid, count in raw["counts"].items()}
        relations = {int(oid): _decode_relation(known) for oid, known in raw["relations"].items()}
        return kind(
            Origin(raw["spool_id"], raw["epoch"], tuple(raw["publications"]), dict(raw["options"])),
            Counts(counts, raw["messages"], raw["changes"]),
            relations,
            raw.get("checksums"),
            **own,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(path, "it has no readable header") from error


def _decode_field(name: str, raw: Mapping[str, Any]) -> Any:
    match name:
        case "in_stream":
            return raw["body"] == body_offset(in_stream=True)
        case "commit_timestamp":
            return raw["last_commit_timestamp"]
        case "number":
            return raw.get(name)
        case "start" | "end" | "prepare_lsn":
            return Lsn.parse(raw[name])
        case "roots":
            return {int(oid): root for oid, root in raw[name].items()}
        case "parts":
            return tuple(
                PartReference(**{**part, "drops": tuple(map(tuple, part["drops"]))})
                for part in raw[name]
            )
        case _:
            return raw[name]


def _encode_relation(relation: RelationInForce) -> dict[str, Any]:
    facts = None if relation.facts is None else relation.facts.to_json()
    return {"relation": base64.b64encode(relation.relation).decode(), "facts": facts}


def _decode_relation(raw: Mapping[str, Any]) -> RelationInForce:
    facts = None if raw["facts"] is None else RelationFacts.from_json(raw["facts"])
    return RelationInForce(base64.b64decode(raw["relation"]), facts)
