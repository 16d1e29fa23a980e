"""What one task does where target and record disagree; on a real spool and Delta table."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from tests.subscription.applying import FactsMessage, apply_tables
from tests.support.spools import INT4, OID, ORDERS, START, TEXT, SpoolMaker, orders, transactions

from pgsluice.errors import Failure, Remedy
from pgsluice.facts import ColumnFacts, RelationFacts
from pgsluice.lsn import Lsn
from pgsluice.sinks import make_sink
from pgsluice.sinks.contract import TargetTable
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.identity import TargetIdentity
from pgsluice.spark.jobs.tasks import attempt
from pgsluice.spool import Spool, SpoolWriter
from pgsluice.subscription.base.work import TableWork, TaskResult
from pgsluice.subscription.batches.tasks.apply import shares_of
from pgsluice.wire import Insert, Truncate, TupleData, Update

FACTS = RelationFacts(
    OID, "public", "orders", "r", OID, "public", "orders", ("id",), ("id",), "d", 1,
    (ColumnFacts("id", 1, INT4, -1, not_null=True), ColumnFacts("note", 2, TEXT, -1)),
)  # fmt: skip


def inserted(maker: SpoolMaker, *ids: int) -> Lsn:
    relation, *rows = orders(*ids)
    assert relation is ORDERS
    return maker.segment([relation, FactsMessage(FACTS), *rows])  # type: ignore[list-item]


def copied(maker: SpoolMaker, lake: Path, copy_number: int = 1) -> None:
    """The target holds a copy of one row, at the spool's beginning."""
    schema = pa.schema([pa.field("id", pa.int32(), nullable=False), ("note", pa.string())])
    identity = TargetIdentity(maker.spool.identity.spool_id, OID, copy_number)
    table = TargetTable("public", "orders", schema, ("id",))
    rows = pa.RecordBatch.from_pydict({"id": [0], "note": ["copied"]}, schema=schema)
    TableWriter(make_sink(apply_tables(maker, lake).sink), table, identity).load([rows], Lsn(START))


def work(through: Lsn) -> TableWork:
    at = Lsn(START)
    return TableWork(OID, "public", "orders", at, through, at, 1, (OID,))


def ids(lake: Path) -> list[int]:
    return sorted(DeltaTable(str(lake)).to_pyarrow_table().column("id").to_pylist())


def test_work_is_done_once_and_a_repeat_says_where_the_target_is(
    maker: SpoolMaker, lake: Path
) -> None:
    copied(maker, lake)
    end = inserted(maker, 1)
    done = attempt(apply_tables(maker, lake).run, work(end))
    assert (done.committed, done.version) == (end, 1)
    # As after a crash between the target's commit and the record's.
    again = attempt(apply_tables(maker, lake).run, work(end))
    assert again.skipped
    assert (again.committed, again.version) == (end, 1)
    # Also where the batch's end is further than the commit.
    quiet = maker.segment([])
    again = attempt(apply_tables(maker, lake).run, work(quiet))
    assert again.skipped
    assert (again.committed, again.version) == (end, 1)
    assert ids(lake) == [0, 1]


def test_segments_that_overlap_are_applied_once(
    maker: SpoolMaker, lake: Path, tmp_path: Path
) -> None:
    """An old writer may write a segment that a new one has written, too."""
    copied(maker, lake)
    shutil.copytree(maker.path, tmp_path / "copy")
    first = inserted(maker, 1)
    writer = SpoolWriter(Spool.open(tmp_path / "copy"))
    relation, row = orders(1)
    both = [(relation, FactsMessage(FACTS), row), (Insert(OID, TupleData.of("2", "note 2")),)]
    with writer:
        info = writer.append(transactions(START, both))  # type: ignore[arg-type]
    (segment,) = maker.path.glob("segments/*/*")
    shutil.move(tmp_path / "copy" / info.name, segment.parent)
    result = attempt(apply_tables(maker, lake).run, work(info.end))
    assert result.changes == 2
    assert (info.start, info.end > first) == (START, True)
    assert ids(lake) == [0, 1, 2]


def test_a_table_waits_for_a_file_of_the_spool_that_is_to_be_restored(
    maker: SpoolMaker, lake: Path
) -> None:
    copied(maker, lake)
    end = inserted(maker, 1)
    (segment,) = maker.path.glob("segments/*/*")
    good = segment.read_bytes()
    segment.write_bytes(good[:-100])
    for _ in range(2):
        result = attempt(apply_tables(maker, lake).run, work(end))
        assert result.remedy is Remedy.WAIT
        assert "pgsluice cannot read the spool's file " in result.message
        assert segment.name in result.message
        assert "restore the file" in result.message
    segment.write_bytes(good)
    apply_tables(maker, lake).run(work(end))
    assert ids(lake) == [0, 1]


def test_rows_that_the_target_lacks_are_skipped_and_counted(maker: SpoolMaker, lake: Path) -> None:
    copied(maker, lake)
    relation, insert = orders(7)
    updates = [Update(OID, None, TupleData.of(id_, "new")) for id_ in ("0", "7", "9")]
    end = maker.segment([relation, FactsMessage(FACTS), insert, *updates])  # type: ignore[list-item]
    result = attempt(apply_tables(maker, lake).run, work(end))
    assert result.rows_skipped == 1
    rows = DeltaTable(str(lake)).to_pyarrow_table().to_pylist()
    assert {row["id"]: row["note"] for row in rows} == {0: "new", 7: "new"}


def test_a_table_whose_rules_are_not_known_waits_for_them(maker: SpoolMaker, lake: Path) -> None:
    """With publications of ours nothing passes without their rules."""
    copied(maker, lake)
    end = inserted(maker, 1)
    result = attempt(replace(apply_tables(maker, lake), rules={}).run, work(end))
    assert result.remedy is Remedy.LOOK
    assert ids(lake) == [0]


def test_a_target_that_is_gone_is_not_made_anew_from_changes(maker: SpoolMaker, lake: Path) -> None:
    copied(maker, lake)
    end = inserted(maker, 1)
    shutil.rmtree(lake)
    result = attempt(apply_tables(maker, lake).run, work(end))
    assert result.remedy is Remedy.PARK
    assert "the target of table public.orders no longer exists" in result.message
    assert not lake.exists()


def test_without_a_copy_the_changes_begin_the_target(maker: SpoolMaker, lake: Path) -> None:
    end = inserted(maker, 1)
    never = replace(work(end), committed=Lsn(0), copy_number=0)
    apply_tables(maker, lake).run(never)
    assert ids(lake) == [1]


def test_work_of_another_copy_is_not_taken_for_done(maker: SpoolMaker, lake: Path) -> None:
    copied(maker, lake, copy_number=2)
    end = inserted(maker, 1)
    result = attempt(apply_tables(maker, lake).run, work(end))
    assert result.remedy is Remedy.RETRY
    assert ids(lake) == [0]


def test_a_truncate_of_all_leaves_empties_the_table(maker: SpoolMaker, lake: Path) -> None:
    copied(maker, lake)
    leaves = OID + 1, OID + 2
    announced = [
        message
        for leaf in leaves
        for message in (
            replace(ORDERS, oid=leaf, name=f"leaf_{leaf}"),
            FactsMessage(replace(FACTS, oid=leaf, name=f"leaf_{leaf}")),
        )
    ]
    row = Insert(leaves[0], TupleData.of("1", "new"))
    end = maker.segment([*announced, Truncate(leaves, 0), row])  # type: ignore[list-item]
    truncated = replace(work(end), oids=leaves)

    def failure(**known: Any) -> Failure:
        outcome = attempt(apply_tables(maker, lake).run, replace(truncated, **known))
        assert isinstance(outcome, Failure)
        return outcome

    looks = failure(leaves=frozenset(leaves))
    assert (looks.remedy, looks.leaves) == (Remedy.LOOK, frozenset()), "a leaf may be new"
    some = failure(leaves=frozenset({*leaves, OID + 3}), looked_through=end)
    assert some.leaves == {*leaves}, "the bounds of the leaves are needed"
    assert failure(looked_through=end).leaves == {*leaves}
    assert ids(lake) == [0]
    attempt(
        apply_tables(maker, lake).run,
        replace(truncated, leaves=frozenset(leaves), looked_through=end),
    )
    assert ids(lake) == [1]


def test_tables_that_are_applied_at_once_share_their_time() -> None:
    failure = Failure(Remedy.RETRY, "why")
    done = TaskResult(Lsn(1), decode_s=0.1, merge_s=0.9)
    shared = shares_of(1.0, [done, failure, done])
    assert shared == [replace(done, decode_s=0.05, merge_s=0.45), failure, shared[0]]
    assert shares_of(3.0, [done, done]) == [done, done]  # neither waited for the other
    assert shares_of(1.0, [failure]) == [failure]


def test_tables_that_share_a_task_fail_one_by_one(maker: SpoolMaker, lake: Path) -> None:
    copied(maker, lake)
    end = inserted(maker, 1)
    gone = replace(work(end), relation_oid=OID + 1, name="gone", committed=Lsn(START))
    large = replace(gone, relation_oid=OID + 2, size_bytes=1 << 30)
    results = apply_tables(maker, lake).run_all([large, work(end), gone])
    remedies = [result.remedy if isinstance(result, Failure) else None for result in results]
    assert remedies == [Remedy.PARK, None, Remedy.PARK]
    assert ids(lake) == [0, 1]
    # The whole task is attempted again.
    again = apply_tables(maker, lake).run_all([work(end), large])
    assert isinstance(again[0], TaskResult)
    assert again[0].skipped
    assert ids(lake) == [0, 1]
