"""Spools without a server: transactions written as the wire's own messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from pgsluice.lsn import Lsn
from pgsluice.spark.source.data_source import PgoutputDataSource
from pgsluice.spark.source.streaming.stream import PgoutputStreamReader
from pgsluice.spool import (
    Owner,
    RawMessages,
    RecordStore,
    Spool,
    SpoolIdentity,
    SpoolWriter,
    SubscriptionRecord,
    TableRecord,
    TableState,
)
from pgsluice.wire import (
    Begin,
    Commit,
    Insert,
    LogicalMessage,
    Message,
    Relation,
    RelationColumn,
    ReplicaIdentity,
    TupleData,
)

START = 0x1000
BOOL, BYTEA, INT8, INT2, INT4, TEXT = 16, 17, 20, 21, 23, 25
FLOAT8, DATE, TIMESTAMP, TIMESTAMPTZ, NUMERIC, INT4_ARRAY = 701, 1082, 1114, 1184, 1700, 1007


def relation(
    oid: int,
    name: str,
    columns: Sequence[tuple[str, int] | tuple[str, int, int]],
    *,
    key: Sequence[str] = ("id",),
    identity: ReplicaIdentity = ReplicaIdentity.DEFAULT,
    namespace: str = "public",
) -> Relation:
    """A Relation message; columns are (name, type) or (name, type, typmod)."""
    return Relation(
        oid,
        namespace,
        name,
        identity,
        tuple(
            RelationColumn(int(one[0] in key), one[0], one[1], one[2] if len(one) > 2 else -1)
            for one in columns
        ),
    )


@dataclass
class SpoolMaker:
    """Writes a spool, one segment a call."""

    path: Path
    at: int = START
    spool: Spool = field(init=False)
    writer: SpoolWriter = field(init=False)
    xid: int = 700

    def __post_init__(self) -> None:
        identity = SpoolIdentity(
            system_identifier="7", timeline=1, database="shop", slot="pgsluice"
        )
        self.spool = Spool.create(self.path, identity)
        self.spool.register_start(Lsn(self.at))
        self.writer = SpoolWriter(self.spool)

    def close(self) -> None:
        """Give the writer's lock back."""
        self.writer.close()

    def segment(self, *changes_of: Sequence[Message]) -> Lsn:
        """Write transactions as one segment; its end."""
        self.writer.append(transactions(self.at, changes_of, self.xid))
        self.at += 0x100 * len(changes_of)
        self.xid += len(changes_of)
        return Lsn(self.at)

    def in_parts(self, parts: Sequence[Sequence[Message]]) -> Lsn:
        """Write one transaction in parts; its end."""
        begin, end, xid = Lsn(self.at), Lsn(self.at + 0x100), self.xid + 1
        whole = [[Begin(begin, 0, xid)], *parts, [Commit(0, begin, end, 0)]]
        for messages in whole:
            raw = RawMessages.from_messages([(int(begin), each.encode()) for each in messages])
            self.writer.parts.append("key", raw, xid=xid)
        self.writer.parts.commit("key", position=end, commit_timestamp=1, xid=xid)
        self.at, self.xid = int(end), xid
        return end

    def message(self, prefix: str, content: bytes) -> Lsn:
        """Write a message outside of any transaction as one segment; its position."""
        alone = LogicalMessage(0, Lsn(self.at), prefix, content)
        self.writer.append(RawMessages.from_messages([(self.at, alone.encode())]))
        self.at += 1
        return Lsn(self.at)


def transactions(
    start: int, changes_of: Sequence[Sequence[Message]], xid: int = 700
) -> RawMessages:
    """Transactions with the given changes, each 0x100 bytes of WAL long, as one segment has them.

    Args:
        start: where the first one begins.
        changes_of: the changes of each.
        xid: the one before the first transaction's.
    """
    pairs: list[tuple[int, bytes]] = []
    for number, changes in enumerate(changes_of):
        begin, xid = start + 0x100 * number, xid + 1
        end, time_us = begin + 0x100, xid * 1_000_000
        pairs.append((begin, Begin(Lsn(end - 8), time_us, xid).encode()))
        pairs += [(begin + 1 + n, change.encode()) for n, change in enumerate(changes)]
        pairs.append((end - 8, Commit(0, Lsn(end - 8), Lsn(end), time_us).encode()))
    return RawMessages.from_messages(pairs)


def transactional(prefix: str, content: bytes) -> LogicalMessage:
    """A message for a transaction of :meth:`SpoolMaker.segment`."""
    return LogicalMessage(1, Lsn(START), prefix, content)


OID = 16384
ORDERS = relation(OID, "orders", [("id", INT4), ("note", TEXT)])


def orders(*ids: int) -> list[Message]:
    """A transaction that inserts orders."""
    return [ORDERS, *(Insert(OID, TupleData.of(str(one), f"note {one}")) for one in ids)]


def configured(maker: SpoolMaker, name: str = "q", owner: Owner = Owner.CONFIG) -> None:
    """Register a subscription at the spool's position, with the one table ready."""
    at = Lsn(maker.at)
    table = TableRecord("public", "orders", TableState.READY, applied_through=at)
    record = SubscriptionRecord(name, owner, "current", "delta", at, at, {OID: table})
    RecordStore.create(maker.path, record)


SCHEMA = (
    StructType()
    .add("id", IntegerType())
    .add("note", StringType())
    .add("_change_type", StringType())
    .add("_commit_version", LongType())
    .add("_commit_timestamp", TimestampType())
    .add("_ordinal", LongType())
    .add("_xid", LongType())
    .add("_key", ArrayType(StringType()))
    .add("_absent", ArrayType(StringType()))
    .add("_unfit", ArrayType(StringType()))
    .add("_unfit_text", MapType(StringType(), StringType()))
)


def stream(maker: SpoolMaker, **options: str) -> PgoutputStreamReader:
    given = {"spool": str(maker.path), "subscription": "q", "table": "public.orders", **options}
    reader = PgoutputDataSource(given).streamReader(SCHEMA)
    assert isinstance(reader, PgoutputStreamReader)
    return reader
