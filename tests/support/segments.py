"""Segments made of messages, without a spool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from pgsluice.facts import RelationFacts
from pgsluice.lsn import Lsn
from pgsluice.spool.segments.block import FACTS_TAG, MessageBlock, RelationInForce, SegmentView
from pgsluice.wire import Message, Relation, RelationColumn, ReplicaIdentity

OID = 16400


def relation(
    *columns: tuple[str, int] | tuple[str, int, int],
    oid: int = OID,
    name: str = "t",
    key: Sequence[str] = ("id",),
) -> Relation:
    """A relation of (name, type OID[, typmod]) columns."""
    made = tuple(
        RelationColumn(int(one[0] in key), one[0], one[1], one[2] if len(one) > 2 else -1)
        for one in columns
    )
    return Relation(oid, "public", name, ReplicaIdentity.DEFAULT, made)


def facts_message(oid: int, facts: RelationFacts | None, xid: int | None = None) -> bytes:
    """Our own message that tells a relation's facts."""
    head = b"" if xid is None else xid.to_bytes(4, "big")
    body = b"" if facts is None else facts.to_json().encode()
    return bytes([FACTS_TAG]) + head + oid.to_bytes(4, "big") + body


def facts(oid: int = OID, **changed: object) -> RelationFacts:
    """Facts of a plain table."""
    plain: dict[str, object] = {
        "oid": oid,
        "namespace": "public",
        "name": "t",
        "kind": "r",
        "root_oid": oid,
        "root_namespace": "public",
        "root_name": "t",
        "primary_key": ("id",),
        "identity_key": ("id",),
        "replica_identity": "d",
        "filenode": 1,
        "columns": (),
    }
    return RelationFacts(**(plain | changed))  # type: ignore[arg-type]


def segment(
    messages: Iterable[Message | bytes],
    in_force: Mapping[int, RelationInForce] | None = None,
    *,
    gap: bytes = b"",
    in_stream: bool = False,
) -> SegmentView:
    """A view of messages: position 1000 + i, timestamp 2000 + i, xid 3000 + i, ordinal i.

    Args:
        messages: in commit order.
        in_force: relations before the first.
        gap: bytes that lie between messages.
        in_stream: messages carry an xid behind their tag.
    """
    raw = [one if isinstance(one, bytes) else one.encode() for one in messages]
    sizes = np.array([len(one) + len(gap) for one in raw], np.int64)
    ends = np.cumsum(sizes)
    starts = ends - sizes + len(gap)
    body = 5 if in_stream else 1
    count = np.arange(len(raw), dtype=np.int64)
    oids = [
        int.from_bytes(one[body : body + 4], "big") if one[:1] in b"RIUD#" else 0 for one in raw
    ]
    block = MessageBlock(
        data=np.frombuffer(b"".join(gap + one for one in raw), np.uint8),
        starts=starts,
        ends=ends,
        tags=np.array([one[0] for one in raw], np.uint8),
        oids=np.array(oids, np.int64),
        in_stream=in_stream,
        positions=1000 + count,
        commit_timestamps=2000 + count,
        xids=3000 + count,
        ordinals=count,
    )
    return SegmentView("segment-1", Lsn(999), Lsn(1000 + len(raw)), in_force or {}, block)
