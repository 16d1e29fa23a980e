"""How a batch's tables are divided among tasks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from tests.support.local_spark import LocalSession

from pgsluice.lsn import Lsn
from pgsluice.subscription.base.work import TableWork
from pgsluice.subscription.batches.work import divide, run_works

SMALL = TableWork(1, "public", "t", Lsn(1), Lsn(2), Lsn(1), 1, (1,), size_bytes=100)


def works(*sizes: int, merge_s: float = 0.0) -> list[TableWork]:
    return [
        replace(SMALL, relation_oid=number, size_bytes=size, merge_s=merge_s)
        for number, size in enumerate(sizes)
    ]


def test_tables_are_divided_among_tasks_that_take_about_the_same_time() -> None:
    assert [len(group) for group in divide(works(*[100] * 200), 2)] == [100, 100]
    large, *others = divide(works(50_000_000, *[100] * 30), 3)
    assert [work.relation_oid for work in large] == [0]
    assert [len(group) for group in others] == [15, 15]
    slow, *others = divide([*works(1, merge_s=9.0), *works(1, 1, 1)], 2)
    assert [work.merge_s for work in slow] == [9.0]


def test_little_work_is_one_task() -> None:
    assert [len(group) for group in divide(works(1), 8)] == [1]
    assert [len(group) for group in divide(works(1, 2, 3), 8)] == [3]
    assert [len(group) for group in divide(works(9_000_000, 9_000_000), 8)] == [1, 1]


class Task:
    """Does nothing."""

    large_bytes = 2**40

    def run_all(self, group: list[TableWork]) -> list[str]:
        return ["done"] * len(group)


def test_a_job_is_described_by_its_tables_and_the_range_of_their_changes() -> None:
    spark = cast("Any", LocalSession())
    tables = [replace(SMALL, name=f"t{n}", after=Lsn(n), through=Lsn(16)) for n in range(1, 8)]
    for works_ in (tables[:2], tables):
        run_works(lambda: spark, cast("Any", Task()), works_)
    names = "public.t1, public.t2, public.t3, public.t4, public.t5"
    assert spark.descriptions == [
        "pgsluice: apply public.t1, public.t2 in (0/1, 0/10]",
        None,
        f"pgsluice: apply {names} and 2 more in (0/1, 0/10]",
        None,
    ]
