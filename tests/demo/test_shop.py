"""The shop's workload makes every kind of change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from pgsluice.demo.shop import TABLES, Workload
from pgsluice.embedded import EmbeddedServer

OPERATIONS = {
    "inserts", "updates", "deletes", "upserts", "key changes", "key swaps", "rolled back",
    "savepoints", "truncates", "large transactions", "moves between partitions",
}  # fmt: skip


def test_a_short_run_makes_every_kind_of_change(
    pg18: EmbeddedServer, database: Callable[..., Any]
) -> None:
    shop = database(pg18)
    workload = Workload(shop.dsn, seed=7, large_rows=2_000)
    workload.create()
    assert workload.seed_rows(customers=200, orders=200, page_views=200) == sum(
        workload.rows().values()
    )
    assert workload.rows().keys() == set(TABLES)
    before = workload.rows()
    assert all(before.values())
    counts: Counter[str] = Counter()
    for seed in range(30):  # each runs a second; a slow machine needs several
        counts.update(Workload(shop.dsn, seed=seed, large_rows=2_000).run(1.0))
        if (+counts).keys() >= OPERATIONS - {"upserts"}:
            break
    assert (+counts).keys() >= OPERATIONS - {"upserts"}
    assert workload.rows()["public.order_lines"] > before["public.order_lines"] + 1_000


def test_big_values_are_toasted(pg18: EmbeddedServer, database: Callable[..., Any]) -> None:
    shop = database(pg18)
    workload = Workload(shop.dsn)
    workload.create()
    workload.seed_rows(customers=10, orders=10, page_views=10)
    chunks = """
        SELECT pg_relation_size(reltoastrelid) > 100 * 2000
        FROM pg_class WHERE oid = 'products'::regclass"""
    assert shop.execute(chunks) == [(True,)]
