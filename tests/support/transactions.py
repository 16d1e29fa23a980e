"""Builds what a server would send, without one."""

from __future__ import annotations

from collections.abc import Sequence

from pgsluice.lsn import Lsn
from pgsluice.spool import RawMessages, Spool, SpoolIdentity
from pgsluice.spool.segments.block import FACTS_TAG
from pgsluice.wire import (
    Begin,
    Commit,
    Insert,
    Relation,
    RelationColumn,
    ReplicaIdentity,
    TupleData,
)

Messages = list[tuple[int, bytes]]
BEGINNING = Lsn(1000)


def relation(oid: int, *columns: str) -> bytes:
    return Relation(
        oid=oid,
        namespace="public",
        name=f"t{oid}",
        replica_identity=ReplicaIdentity("d"),
        columns=tuple(RelationColumn(0, name, 25, -1) for name in columns or ("v",)),
    ).encode()


def insert(oid: int, value: bytes = b"x") -> bytes:
    return Insert(oid=oid, new=TupleData(kinds=b"t", values=(value,))).encode()


def facts(oid: int, json: str = "") -> bytes:
    return bytes([FACTS_TAG]) + oid.to_bytes(4, "big") + json.encode()


def begin(end: int, xid: int = 7) -> bytes:
    return Begin(final_lsn=Lsn(end - 10), commit_timestamp=end, xid=xid).encode()


def commit(end: int) -> bytes:
    return Commit(
        flags=0, commit_lsn=Lsn(end - 10), end_lsn=Lsn(end), commit_timestamp=end
    ).encode()


def transaction(end: int, messages: Sequence[bytes], xid: int = 7) -> Messages:
    """B, the messages, C; it ends at ``end``."""
    whole = [begin(end, xid), *messages, commit(end)]
    return [(end - 20, message) for message in whole]


def raw(*transactions: Messages) -> RawMessages:
    return RawMessages.from_messages([message for one in transactions for message in one])


def new_spool(path, start: Lsn | None = BEGINNING) -> Spool:
    identity = SpoolIdentity(
        system_identifier="7000000000000000001", timeline=1, database="shop", slot="pgsluice",
        publications=("pgsluice",), options={"proto_version": "1"},
    )  # fmt: skip
    spool = Spool.create(path, identity)
    if start is not None:
        spool.register_start(start)
    return spool
