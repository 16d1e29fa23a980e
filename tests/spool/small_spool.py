"""A small spool with every kind of file, and all that can be read from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.transactions import BEGINNING, begin, commit, facts, insert, raw, relation
from tests.support.transactions import transaction as tx

from pgsluice.facts import RelationFacts
from pgsluice.lsn import Lsn
from pgsluice.spool import (
    Owner,
    RawMessages,
    RecordStore,
    Spool,
    SpoolIdentity,
    SpoolReader,
    SpoolWriter,
    SubscriptionRecord,
    TableRecord,
    find_record,
)
from pgsluice.spool.segments.parts import PreparedTransactions
from pgsluice.spool.segments.recent_commits import Request
from pgsluice.spool.segments.segment import Objects
from pgsluice.stores.spool_place import SpoolPlace

SUBSCRIPTION = "lake"
FACTS = RelationFacts(5, "public", "t5", "r", 5, "public", "t5", ("v",), ("v",), "d", 1, ())


def make_small_spool(
    path: SpoolPlace | Path, spool_id: str = "11111111-2222-3333-4444-555555555555"
) -> Spool:
    """Two segments, two transactions in parts, two prepared ones, and each state file."""
    identity = SpoolIdentity(
        spool_id=spool_id, system_identifier="7000000000000000001", timeline=1, database="shop",
        slot="pgsluice", publications=("pgsluice",), options={"proto_version": "4"},
        history=((1, Lsn(5)),),
    )  # fmt: skip
    spool = Spool.create(path, identity)
    spool.register_start(BEGINNING)
    with SpoolWriter(spool) as writer:
        writer.append(raw(tx(2000, [relation(5), facts(5, FACTS.to_json()), insert(5, b"one")])))
        writer.append(raw(tx(3000, [insert(5, b"two")])))
        for key, end in (("p1", 4000), ("p2", 5000)):
            _append_parts(writer, key, end)
            writer.parts.commit(key, position=Lsn(end), commit_timestamp=end, xid=7)
        for key, lsn in (("q1", 6000), ("q2", 7000)):
            _append_parts(writer, key, lsn)
            writer.parts.prepare(key, gid=key, xid=lsn, prepare_lsn=Lsn(lsn))
        writer.advance_frontier(Lsn(8000))
        writer.begin(Request(("pgsluice", "later"), messages=False, origin="any"))
    spool.write_released({SUBSCRIPTION: {"5": "0/7D0"}})
    for name in (SUBSCRIPTION, "other"):
        _write_record(spool, name)
    return spool


def _append_parts(writer: SpoolWriter, key: str, end: int) -> None:
    first = [begin(end), insert(5, b"%d a" % end)]
    last = [insert(5, b"%d b" % end), commit(end)]
    for messages in (first, last):
        writer.parts.append(key, RawMessages.from_messages([(end, m) for m in messages]), xid=7)


def _write_record(spool: Spool, name: str) -> None:
    table = TableRecord("public", "t5", applied_through=Lsn(1500))
    record = SubscriptionRecord(
        name, Owner.CONFIG, "current", "delta", BEGINNING, Lsn(1500), {5: table}
    )
    store = RecordStore.create(spool.place, record)
    moved = TableRecord("public", "t5", applied_through=Lsn(2000), rows=3)
    store.save(
        SubscriptionRecord(name, Owner.CONFIG, "current", "delta", BEGINNING, Lsn(2000), {5: moved})
    )


def read_chain(path: SpoolPlace | Path) -> Any:
    """The header of each segment and reference, and all messages."""
    reader = SpoolReader(path)
    return [
        (info.start, info.end, info.header, [_content(view) for view in reader.views(info)])
        for info in reader.segments(BEGINNING)
    ]


def _content(view: Any) -> Any:
    block = view.block
    return (
        view.relations,
        block.positions.tolist(),
        [block.message(row) for row in range(len(block))],
    )


def read_prepared(path: SpoolPlace | Path) -> Any:
    """The prepared transactions, and their parts."""
    spool = Spool.open(path)
    prepared = PreparedTransactions(Objects(spool))
    names = prepared.load(())
    return sorted(names), sorted((header.gid, header) for header in prepared)


def read_state(path: SpoolPlace | Path) -> Any:
    """What the state files say."""
    spool = Spool.open(path)
    return (
        spool.identity,
        spool.chain_start(),
        spool.frontier_file(),
        spool.released(),
        [find_record(path, name) for name in (SUBSCRIPTION, "other")],
    )
