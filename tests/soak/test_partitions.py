"""Partitions that come with rows are loaded alone (ADR 0034), while processes are killed.

``PGSLUICE_PARTITION_ROWS`` says how many ids a partition takes (100,000); half of
them have a row.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from contextlib import suppress

import psycopg
import pytest
from tests.soak.report import Report
from tests.support.chaos.late_leaves import LateLeaves
from tests.support.databases import Database
from tests.support.pgbench import await_until, kill, start_again
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.threads import beside

from pgsluice.embedded import EmbeddedServer
from pgsluice.errors import SpoolError
from pgsluice.schema_rules import SourceFingerprint
from pgsluice.spool import TableRecord

pytestmark = pytest.mark.soak

WIDTH = int(os.environ.get("PGSLUICE_PARTITION_ROWS", "100000"))
_SETTINGS = {"fsync": "off", "max_wal_size": "4GB", "checkpoint_timeout": "30s"}
_ROOTS = ("via_root", "by_leaf")
_PUBLICATIONS = (
    "CREATE PUBLICATION for_root FOR TABLE via_root WITH (publish_via_partition_root = true)",
    "CREATE PUBLICATION for_leaves FOR TABLE by_leaf WITH (publish_via_partition_root = false)",
)
_OURS = """
CREATE PUBLICATION our_root FOR TABLE via_root WITH (publish_via_partition_root = true);
CREATE PUBLICATION our_leaves FOR TABLE by_leaf WITH (publish_via_partition_root = false)
"""
_SUBSCRIPTION = """
[[subscription]]
name = "ours"
publications = ["our_root", "our_leaves"]
sink = { type = "delta", path = "ours/{schema}/{table}" }
[publications]
file = "publications.sql"
"""
_VICTIMS = ("driver", "jvm", "worker", "worker", "jvm", "driver")


def make(shop: Database) -> list[LateLeaves]:
    """Two partitioned tables with one partition each."""
    for root in _ROOTS:
        shop.execute(
            f"CREATE TABLE {root} (id int PRIMARY KEY, n int, v text) PARTITION BY RANGE (id)",
            f"CREATE TABLE {root}_first PARTITION OF {root} FOR VALUES FROM (0) TO ({WIDTH})",
            f"INSERT INTO {root} SELECT i, 0, 'first' FROM generate_series(0, {WIDTH - 1}, 2) i",
        )
    shop.execute(*_PUBLICATIONS)
    return [LateLeaves(shop, root, WIDTH, WIDTH, early=0, late=0) for root in _ROOTS]


def configure(one: Pipeline, publications: str) -> None:
    """A subscription without publications of its own, and one that has some."""
    (one.folder / "publications.sql").write_text(_OURS)
    one.write(_SUBSCRIPTION)
    own = f'publications = ["{one.database.name}"]\ncatalog'
    text = one.path.read_text()
    assert own in text
    one.path.write_text(text.replace(own, f"publications = {publications}\ncatalog"))


def write(shop: Database, leaves: list[LateLeaves], seed: int, ended: threading.Event) -> None:
    """Change rows of all partitions; some move to another one."""
    dice = random.Random(seed)
    with shop.connect() as connection:
        while not ended.wait(0.002):
            late = dice.choice(leaves)
            low, to = dice.randrange(late.top), dice.randrange(late.top)
            is_free = f"NOT EXISTS (SELECT 1 FROM {late.table} WHERE id = {to})"
            statements = (
                f"UPDATE {late.table} SET n = n + 1 WHERE id BETWEEN {low} AND {low + 20}",
                f"DELETE FROM {late.table} WHERE id BETWEEN {low} AND {low + 4}",
                f"INSERT INTO {late.table} VALUES ({low}, 7, 'new') ON CONFLICT DO NOTHING",
                f"UPDATE {late.table} SET id = {to} WHERE id = {low} AND {is_free}",
            )
            with suppress(psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure):
                connection.execute(dice.choice(statements).encode())


class Run:
    """A run that is started again when it was killed, and what its records say."""

    def __init__(self, one: Pipeline) -> None:
        self.one = one

    def roots(self) -> dict[tuple[str, str], TableRecord]:
        """The records of the roots that are one target, by subscription and name."""
        found = {}
        for name in ("lake", "ours"):
            with suppress(SpoolError, FileNotFoundError, AttributeError):
                for table in self.one.record(name).tables.values():
                    if table.name in _ROOTS:
                        found[name, table.name] = table
        return found

    def is_loading(self) -> bool:
        return any(table.load_leaves for table in self.roots().values())

    def wait_until(self, what: str, attached: int) -> None:
        """Wait until roots are ``loading``, or all are ``active`` with so many partitions."""

        def is_so() -> bool:
            start_again(self.one)
            if what == "loading":
                return self.is_loading()
            roots = self.roots()
            return len(roots) == 3 and all(
                table.is_active and not table.load_leaves and self.knows(table, attached)
                for table in roots.values()
            )

        self.one.wait_until(is_so, timeout_s=240, why=f"{what} with {attached} partitions")

    def knows(self, table: TableRecord, attached: int) -> bool:
        """Whether the last look that counts for the table has seen all its partitions."""
        leaves = self.one.database.execute(
            f"SELECT inhrelid::bigint FROM pg_inherits WHERE inhparent = '{table.name}'::regclass"
        )
        assert len(leaves) == attached + 1
        known = SourceFingerprint.parse(table.fingerprint)
        return known is not None and known.filenodes.keys() >= {oid for (oid,) in leaves}


@pytest.mark.parametrize("version", [18, 14], ids="pg{}".format)
def test_kills_while_partitions_are_loaded(
    version: int, pipeline: MakePipeline, seed: int, report: Report
) -> None:
    with (
        EmbeddedServer(version, settings=_SETTINGS) as server,
        report.row(f"kills while partitions are loaded, PostgreSQL {version}", seed) as row,
    ):
        shop = Database(server, "postgres")
        leaves = make(shop)
        one = pipeline(shop)
        configure(one, '["for_root", "for_leaves"]')
        run, dice, killed = Run(one), random.Random(seed), Counter[str]()
        one.start()
        run.wait_until("active", 0)
        first = {name: table.copy_number for name, table in run.roots().items()}
        with beside(lambda ended: write(shop, leaves, seed, ended)):
            for number, victim in enumerate(dice.sample(_VICTIMS, len(_VICTIMS)), 1):
                for late in leaves:
                    late.attach()
                run.wait_until("loading", number)
                await_until(time.monotonic() + dice.uniform(0, 1))
                is_in_time = run.is_loading()
                if kill(one, victim, dice):
                    killed[victim] += is_in_time
                run.wait_until("active", number)
        start_again(one)
        one.wait_applied()
        copies = {name: table.copy_number for name, table in run.roots().items()}
        one.assert_equal(*_ROOTS)
        one.assert_equal("via_root", lake="ours")
        one.assert_equal(
            "by_leaf_first", *(f"by_leaf_{WIDTH * n}" for n in range(1, 7)), lake="ours"
        )
        row["figures"] = (
            f"{len(_VICTIMS)} partitions of {WIDTH // 2:,} rows attached to each of 2 tables, while"
            f" rows are written and moved; SIGKILL during a load to "
            + ", ".join(f"{name} {count}x" for name, count in sorted(killed.items()))
        )
        assert copies == first, "a table was copied again"
        row["shown"] = (
            "equal, and loaded alone: by publications of the server via root and not, and by one of"
            " pgsluice via root; by one that is not, each partition is a target of its own"
        )
