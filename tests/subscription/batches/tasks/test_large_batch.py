"""A table's batch leaves the same rows when it is read at once, in pieces, and by several tasks."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.subscription.applying import FactsMessage, apply_tables
from tests.support.local_spark import LocalSession
from tests.support.spools import INT4, OID, START, TEXT, SpoolMaker, relation

from pgsluice import failpoints
from pgsluice.errors import Failure
from pgsluice.facts import ColumnFacts, RelationFacts
from pgsluice.lsn import Lsn
from pgsluice.row_filter import FilterColumn, FilterEvaluator, bind_row_filter, plan_filters
from pgsluice.schema_rules.known import KnownColumns
from pgsluice.sinks import make_sink
from pgsluice.sinks.contract import TargetTable
from pgsluice.sinks.delta.log.reading import newest_snapshot
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.identity import TargetIdentity
from pgsluice.spark.jobs.tasks import attempt
from pgsluice.stores.local import LocalFolder
from pgsluice.stores.places import folder_at
from pgsluice.subscription.base.work import TableWork, TaskResult
from pgsluice.subscription.batches.tasks.apply import ApplyTables
from pgsluice.subscription.batches.tasks.shared_batch import SharedBatch
from pgsluice.subscription.batches.work import run_works
from pgsluice.wire import UNCHANGED, Delete, Insert, Message, OldKey, Truncate, TupleData, Update

ORDERS = relation(OID, "orders", [("id", INT4), ("quantity", INT4), ("note", TEXT)])
FACTS = RelationFacts(
    OID, "public", "orders", "r", OID, "public", "orders", ("id",), ("id",), "d", 1,
    (
        ColumnFacts("id", 1, INT4, -1, not_null=True),
        ColumnFacts("quantity", 2, INT4, -1),
        ColumnFacts("note", 3, TEXT, -1),
    ),
)  # fmt: skip
COPIED = 6
SCHEMA = pa.schema(
    [pa.field("id", pa.int32(), nullable=False), ("quantity", pa.int32()), ("note", pa.string())]
)


def copied(task: ApplyTables) -> None:
    """The target holds a copy of some rows, at the spool's beginning."""
    identity = TargetIdentity(task.spool_id, OID, 1)
    table = TargetTable("public", "orders", SCHEMA, ("id",))
    rows = [{"id": i, "quantity": 0, "note": f"copied {i}"} for i in range(COPIED)]
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    TableWriter(make_sink(task.sink), table, identity).load([batch], Lsn(START))


LOW, HIGH = OID + 1, OID + 2
BOUNDS = {LOW: f"id < {2 * COPIED}", HIGH: f"id >= {2 * COPIED}"}


def announced_leaves() -> list[Any]:
    """What the server sends before changes of two leaves of the table."""
    columns = [("id", INT4), ("quantity", INT4), ("note", TEXT)]
    messages: list[Any] = []
    for oid in BOUNDS:
        name = f"orders_{oid}"
        messages.append(relation(oid, name, columns))
        messages.append(FactsMessage(replace(FACTS, oid=oid, name=name)))
    return messages


def leaf_bounds() -> dict[int, FilterEvaluator]:
    columns = [FilterColumn("id", INT4, -1, 0)]
    return {leaf: plan_filters([bind_row_filter(text, columns)]) for leaf, text in BOUNDS.items()}


def partitioned(work: TableWork) -> TableWork:
    """The work of the table as the root of two leaves."""
    leaves = frozenset(BOUNDS)
    return replace(
        work, oids=tuple(BOUNDS), leaves=leaves, looked_through=work.through,
        leaf_bounds=leaf_bounds(),
    )  # fmt: skip


def work(through: Lsn) -> TableWork:
    start = Lsn(START)
    types = {column.name: (column.type_oid, column.typmod) for column in FACTS.columns}
    return TableWork(
        OID, "public", "orders", start, through, start, 1, (OID,),
        is_complete=True, size_bytes=1000, known=KnownColumns(types, key=("id",)),
    )  # fmt: skip


def apply(task: ApplyTables, work: TableWork) -> TaskResult | Failure:
    """Apply the work, in a session of two cores."""
    [(_, outcome)] = run_works(lambda: cast("Any", LocalSession()), task, [work])
    return outcome


def rows_of(task: ApplyTables) -> list[dict[str, Any]]:
    location = make_sink(task.sink).location("public", "orders")
    rows = pa.RecordBatchReader.from_stream(DeltaTable(location).scan()).read_all()
    return sorted(rows.to_pylist(), key=lambda row: int(row["id"]))


def sidecars(task: ApplyTables) -> list[str]:
    """The names of the files that find the rows of keys."""
    return [path.name for path in Path(task.sink["cache_dir"]).rglob("*.keys")]


def live_files(task: ApplyTables) -> set[str]:
    """What the sidecars of the table's files are called."""
    snapshot = newest_snapshot(LocalFolder(Path(make_sink(task.sink).location("public", "orders"))))
    assert snapshot is not None
    return {f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.keys" for name in snapshot.files}


def tasks(maker: SpoolMaker, folder: Path) -> list[ApplyTables]:
    """One that applies the batch at once, and others that read pieces, by each way of merging."""
    made = []
    for name, merge, large_bytes, is_shared in (
        ("at_once", "on_write", 2000, False),
        ("rewritten", "on_write", 0, False),
        ("vectors", "on_read", 0, False),
        ("shared_rewritten", "on_write", 0, True),
        ("shared_vectors", "on_read", 0, True),
    ):
        lake = folder / name
        lake.mkdir()
        made.append(
            replace(
                apply_tables(maker, lake / "orders"),
                sink={
                    **apply_tables(maker, lake / "orders").sink,
                    "merge": merge,
                    "cache_dir": str(lake / "keys"),
                },
                large_bytes=large_bytes,
                piece_bytes=300,
                staging_path=str(lake / "staging") if is_shared else None,
            )
        )
    return made


class Shop:
    """The source's rows, and random changes of them as the server sends them.

    Args:
        is_partitioned: the table has two leaves.
    """

    def __init__(self, seed: int, *, is_partitioned: bool = False) -> None:
        self.is_partitioned = is_partitioned
        self.random = random.Random(seed)
        self.moves = 4 * (seed % 2)
        self.live = set(range(COPIED))
        self.sequence = 0

    def changes(self, count: int) -> list[Message]:
        return [self._change() for _ in range(count)]

    def _change(self) -> Message:
        self.sequence += 1
        truncates = 1 if self.is_partitioned else 0
        kind = self.random.choices(
            ["insert", "update", "unchanged", "move", "delete", "truncate", "truncate leaf"],
            [5, 3, 4, self.moves, 3, 0.2, truncates],
        )[0]
        if kind == "truncate":
            self.live.clear()
            return Truncate(tuple(BOUNDS) if self.is_partitioned else (OID,), 0)
        if kind == "truncate leaf":
            leaf = self.random.choice([*BOUNDS])
            self.live = {id_ for id_ in self.live if self._oid(id_) != leaf}
            return Truncate((leaf,), 0)
        if kind == "insert" or not self.live:
            id_ = self._free(range(4 * COPIED))
            return Insert(self._oid(id_), self._row(id_))
        id_ = self.random.choice(sorted(self.live))
        oid = self._oid(id_)
        if kind == "delete":
            self.live.discard(id_)
            return Delete(oid, self._key(id_))
        near = [i for i in range(4 * COPIED) if self._oid(i) == oid]
        if kind == "move" and not self.live.issuperset(near):
            self.live.discard(id_)
            return Update(oid, self._key(id_), self._row(self._free(near), UNCHANGED))
        return Update(oid, None, self._row(id_, UNCHANGED if kind == "unchanged" else None))

    def _oid(self, id_: int) -> int:
        """The relation that has a row; an UPDATE does not take it to another leaf."""
        if not self.is_partitioned:
            return OID
        return LOW if id_ < 2 * COPIED else HIGH

    def _free(self, among: Sequence[int]) -> int:
        id_ = self.random.choice([i for i in among if i not in self.live])
        self.live.add(id_)
        return id_

    def _key(self, id_: int) -> OldKey:
        return OldKey(TupleData.of(str(id_), None, None))

    def _row(self, id_: int, note: Any = None) -> TupleData:
        return TupleData.of(
            str(id_), str(self.sequence), f"note {self.sequence}" if note is None else note
        )


@pytest.mark.parametrize("is_partitioned", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_pieces_leave_what_the_whole_batch_leaves(
    maker: SpoolMaker, tmp_path: Path, seed: int, is_partitioned: bool
) -> None:
    """A TRUNCATE of one leaf takes only the rows of that leaf."""
    shop = Shop(seed, is_partitioned=is_partitioned)
    announced: Sequence[Any] = [ORDERS, FactsMessage(FACTS)]
    if is_partitioned:
        announced = announced_leaves()
    maker.segment([*announced, *shop.changes(20)], shop.changes(5))
    end = maker.in_parts([[*announced, *shop.changes(15)], shop.changes(15)])
    wanted = partitioned(work(end)) if is_partitioned else work(end)
    at_once, *in_pieces = tasks(maker, tmp_path)
    copied(at_once)
    expected = apply(at_once, wanted)
    assert isinstance(expected, TaskResult)
    rows = rows_of(at_once)
    assert {row["id"] for row in rows} == shop.live
    for task in in_pieces:
        copied(task)
        done = apply(task, wanted)
        assert isinstance(done, TaskResult), done
        assert rows_of(task) == rows
        assert (done.committed, done.changes) == (expected.committed, expected.changes)
        assert done.version == expected.version, "it is one commit"
        again = apply(task, wanted)
        assert isinstance(again, TaskResult)
        assert again.skipped
        assert not task.staging_path or not Path(task.staging_path).exists()
        assert set(sidecars(task)) <= live_files(task), "no other file is known any more"


def test_inserts_into_a_table_without_a_key_are_shared(maker: SpoolMaker, tmp_path: Path) -> None:
    def inserted(*ids: int) -> list[Message]:
        return [Insert(OID, TupleData.of(str(id_), "0", "new")) for id_ in ids]

    keyless = replace(FACTS, primary_key=(), identity_key=(), replica_identity="n")
    announced: Any = [
        relation(OID, "orders", [("id", INT4), ("quantity", INT4), ("note", TEXT)], key=()),
        FactsMessage(keyless),
    ]
    maker.segment([*announced, *inserted(1, 2, 3), Truncate((OID,), 0), *inserted(*range(20))])
    end = maker.segment(inserted(4, 4))
    for task in tasks(maker, tmp_path):
        known = KnownColumns({"id": (INT4, -1), "quantity": (INT4, -1), "note": (TEXT, -1)}, key=())
        begun = replace(work(end), committed=Lsn(0), copy_number=0, known=known)
        [(_, outcome)] = run_works(lambda: cast("Any", LocalSession()), task, [begun])
        assert isinstance(outcome, TaskResult), outcome
        assert outcome.changes == 26
        assert [row["id"] for row in rows_of(task)] == sorted([*range(20), 4, 4])


def test_a_large_batch_that_fails_leaves_no_files(maker: SpoolMaker, tmp_path: Path) -> None:
    """Whichever of its files the disk has no room for; the next attempt has that room again."""
    shop = Shop(1)
    maker.segment([ORDERS, FactsMessage(FACTS), *shop.changes(12)])
    end = maker.segment(shop.changes(12))
    for task in tasks(maker, tmp_path):
        copied(task)
        folder = Path(make_sink(task.sink).location("public", "orders"))
        before = set(folder.rglob("*.parquet"))
        number, outcome = 1, None
        while not isinstance(outcome, TaskResult):
            failpoints.arm(f"delta.written=enospc@{number}")
            outcome = apply(task, work(end))
            failpoints.arm("")
            is_done = isinstance(outcome, TaskResult)
            table = newest_snapshot(LocalFolder(folder))
            assert table is not None
            named = {folder / name for name in table.files}  # its upkeep fails, after the commit
            assert is_done or set(folder.rglob("*.parquet")) == before | named, number
            number += max(1, number // 2)
        assert number > 2


def large_tasks(maker: SpoolMaker, folder: Path) -> Iterator[tuple[ApplyTables, TableWork, Path]]:
    """Those that read pieces, with a large batch for a copied table, and the table's folder."""
    shop = Shop(1)
    maker.segment([ORDERS, FactsMessage(FACTS), *shop.changes(12)])
    end = maker.segment(shop.changes(12))
    for task in tasks(maker, folder)[1:]:
        copied(task)
        yield task, work(end), Path(make_sink(task.sink).location("public", "orders"))


@pytest.mark.parametrize("place", ["store.sync", "delta.before_commit"])
def test_a_large_batch_whose_commit_fails_before_it_begins_leaves_no_files(
    maker: SpoolMaker, tmp_path: Path, place: str
) -> None:
    for task, large, folder in large_tasks(maker, tmp_path):
        before = set(folder.rglob("*.parquet"))
        failpoints.arm(f"{place}=enospc")
        assert isinstance(apply(task, large), Failure)
        failpoints.arm("")
        assert set(folder.rglob("*.parquet")) == before
        assert isinstance(apply(task, large), TaskResult)


def test_a_large_batch_whose_commit_may_have_been_made_keeps_its_files(
    maker: SpoolMaker, tmp_path: Path
) -> None:
    for task, large, _ in large_tasks(maker, tmp_path):
        failpoints.arm("delta.after_commit=eio")
        assert isinstance(apply(task, large), Failure)
        failpoints.arm("")
        done = apply(task, large)
        assert isinstance(done, TaskResult)
        assert done.skipped
        assert len({row["id"] for row in rows_of(task)}) == len(rows_of(task))


COMMIT = SharedBatch.commit
ATTEMPTS: list[TaskResult | Failure] = []


def commit_by_attempts(self: SharedBatch, wanted: Any, numbers: Sequence[int]) -> TaskResult:
    """Commit by two attempts of one task, of which the first that is made fails."""
    ATTEMPTS.clear()
    for number in numbers:
        with pytest.MonkeyPatch.context() as patched:
            module = "pgsluice.subscription.batches.tasks.shared_batch"
            patched.setattr(f"{module}.again_in_stage", lambda number=number: number or None)
            failpoints.arm("" if ATTEMPTS else "delta.before_commit=eio")
            ATTEMPTS.append(attempt(partial(COMMIT, self), wanted))
    return cast("TaskResult", ATTEMPTS[-1])


def commit_again(self: SharedBatch, wanted: Any) -> TaskResult:
    return commit_by_attempts(self, wanted, (0, 1))


def commit_late(self: SharedBatch, wanted: Any) -> TaskResult:
    return commit_by_attempts(self, wanted, (1, 0))


def test_attempts_to_commit_agree_on_what_becomes_of_staged_changes(
    maker: SpoolMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark may make another attempt while the first one goes on somewhere. If the first one has
    deleted what is staged, the later one commits nothing; else it stays, whichever commits it."""
    for task, large, folder in large_tasks(maker, tmp_path):
        if task.staging_path is None:
            continue
        before = set(folder.rglob("*.parquet"))
        monkeypatch.setattr(SharedBatch, "commit", commit_again)
        refused = apply(task, large)
        assert isinstance(ATTEMPTS[0], Failure)
        assert isinstance(refused, Failure)
        assert "an attempt that failed has deleted the staged changes" in refused.message
        assert set(folder.rglob("*.parquet")) == before
        monkeypatch.setattr(SharedBatch, "commit", commit_late)
        done = apply(task, large)
        assert isinstance(ATTEMPTS[0], Failure)
        assert isinstance(done, TaskResult)
        ids = [row["id"] for row in rows_of(task)]
        assert len(ids) == len(set(ids)) > 0


def test_an_attempt_of_an_earlier_batch_decides_nothing(tmp_path: Path) -> None:
    """It may go on after its batch has ended, and would delete files that a version names."""
    batch = SharedBatch(cast("Any", None), cast("Any", None), (), folder_at(str(tmp_path)))
    (tmp_path / "second.undecided").touch()
    assert not batch.claim_outcome("first", "deleted")
    assert batch.claim_outcome("second", "kept")
    assert not batch.claim_outcome("second", "deleted")
