"""Partitions that come and go with rows are replaced alone (ADR 0034, ADR 0038), while processes
are killed.

``PGSLUICE_PARTITION_ROWS`` says how many ids a partition takes (100,000); half of
them have a row. ``PGSLUICE_PARTITION_SECONDS`` says for how long partitions come and go (180).
With ``PGSLUICE_SOAK_ENGINE=local``, the tasks of the second test run in this process, and nothing
is killed.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple

import psycopg
import pytest
from tests.soak.chaos.late_leaves import LateLeaves
from tests.soak.chaos.partition_watch import PartitionWatch
from tests.soak.chaos.partitions import (
    PartitionSession,
    RowSession,
    finish_detaching,
    make_last_partitions,
    make_tables,
)
from tests.soak.chaos.sessions import Journal
from tests.soak.report import Report
from tests.support.databases import Database, MakeDatabase, Servers
from tests.support.every_mode import OTHER_MODES, assert_modes_equal, other_modes
from tests.support.pgbench import await_until, kill, start_again
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.settling import Settling, TablesDone
from tests.support.threads import beside
from tests.support.unseen_leaves import (
    COPIED,
    copied,
    pass_while_no_look_comes_through,
    pass_while_the_driver_is_down,
)
from tests.support.waiting import SOAK_HANGS_S

from pgsluice.embedded import EmbeddedServer
from pgsluice.errors import SpoolError
from pgsluice.schema_rules.known import SourceFingerprint
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
        return any(table.partitions.load for table in self.roots().values())

    def wait_until(self, what: str, attached: int) -> None:
        """Wait until roots are ``loading``, or all are ``active`` with so many partitions."""

        def is_so() -> bool:
            start_again(self.one)
            if what == "loading":
                return self.is_loading()
            roots = self.roots()
            return len(roots) == 3 and all(
                table.is_active and not table.partitions.load and self.knows(table, attached)
                for table in roots.values()
            )

        self.one.wait_until(is_so, timeout_s=SOAK_HANGS_S, why=f"{what} with {attached} partitions")

    def knows(self, table: TableRecord, attached: int) -> bool:
        """Whether the last look that counts for the table has seen all its partitions."""
        leaves = self.one.database.execute(
            f"SELECT inhrelid::bigint FROM pg_inherits WHERE inhparent = '{table.name}'::regclass"
        )
        assert len(leaves) == attached + 1
        known = SourceFingerprint.parse(table.source.fingerprint)
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


SECONDS = int(os.environ.get("PGSLUICE_PARTITION_SECONDS", "180"))
_EVERY_S = 15
"""Seconds from one kill to the next."""
_PAUSES_S = 0.3, 2.0
_WRITERS = 3
_IS_LOCAL = os.environ.get("PGSLUICE_SOAK_ENGINE") == "local"
_ALL_VICTIMS = ("driver", "jvm", "worker", "capture", "server", "worker")


class Setting(NamedTuple):
    """Who publishes the tables, and how the second subscription has them.

    Attributes:
        statements: make publications.
        publications: those that the configuration names; empty: pgsluice makes them.
        of_roots: what the second subscription's own publication sends under the names of roots.
    """

    statements: Sequence[str] = ()
    publications: Sequence[str] = ()
    of_roots: Sequence[str] = ("by_int", "two_levels")


_SETTINGS_OF = {
    "server": Setting(
        (
            (
                "CREATE PUBLICATION for_roots FOR TABLE by_int, by_text"
                " WITH (publish_via_partition_root)"
            ),
            "CREATE PUBLICATION for_leaves FOR TABLE by_date, two_levels",
        ),
        ("for_roots", "for_leaves"),
    ),
    "pgsluice": Setting(),
}
PUBLISHERS = {"server": "the server's", "pgsluice": "pgsluice's"}
_ALL_ROOTS = ("by_int", "by_date", "by_text", "two_levels")


def set_up(one: Pipeline, setting: Setting, others: str) -> None:
    """All tables for one subscription, merged on write; for another one, merged on read, some
    tables and the partitions of a third.

    Args:
        others: the configuration of further subscriptions.
    """
    one.database.execute(*setting.statements)
    (one.folder / "publications.sql").write_text(
        f"CREATE PUBLICATION our_roots FOR TABLE {', '.join(setting.of_roots)}"
        " WITH (publish_via_partition_root = true);"
        "CREATE PUBLICATION our_leaves FOR TABLE by_date"
        " WITH (publish_via_partition_root = false)"
    )
    path = "ours/{schema}/{table}"
    one.sink_options = ', merge = "on_write"'
    one.write(
        '[[subscription]]\nname = "ours"\npublications = ["our_roots", "our_leaves"]\n'
        f'sink = {{ type = "delta", path = "{path}", merge = "on_read" }}\n{others}\n'
        '[publications]\nfile = "publications.sql"'
    )
    if setting.publications:
        text = one.path.read_text()
        managed = f'publications = ["{one.database.name}"]\ncatalog'
        assert managed in text
        names = ", ".join(f'"{name}"' for name in setting.publications)
        one.path.write_text(text.replace(managed, f"publications = [{names}]\ncatalog"))


def is_copied(watch: PartitionWatch, setting: Setting) -> bool:
    """Whether the first copies have ended."""
    return not (watch.is_behind("lake", _ALL_ROOTS) or watch.is_behind("ours", setting.of_roots))


def kill_at_random(one: Pipeline, seconds: float, dice: random.Random) -> Counter[str]:
    """Kill a process, or crash the server, again and again, and start what has ended."""
    killed: Counter[str] = Counter()
    ends_at = time.monotonic() + seconds
    victims: list[str] = []
    while (left := ends_at - time.monotonic()) > 0:
        await_until(time.monotonic() + min(left, dice.uniform(0.5, 1.5) * _EVERY_S))
        start_again(one)
        victims = victims or dice.sample(_ALL_VICTIMS, len(_ALL_VICTIMS))
        victim = victims.pop()
        if victim == "server":
            one.database.server.restart("immediate")
            killed[victim] += 1
        else:
            killed[victim] += kill(one, victim, dice)
        start_again(one)
    return killed


def await_end(
    one: Pipeline, watch: PartitionWatch, setting: Setting, others: Sequence[str]
) -> list[str]:
    """Until everything is seen and applied.

    Args:
        others: further subscriptions, which have all tables.

    Returns:
        the partitions that are targets of their own.
    """
    finish_detaching(one.database)
    make_last_partitions(one.database, WIDTH)
    leaves = [
        name
        for (name,) in one.database.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits"
            " WHERE inhparent = 'by_date'::regclass ORDER BY 1"
        )
    ]
    behind, done = "", TablesDone()

    def is_seen() -> bool:
        nonlocal behind
        if not _IS_LOCAL:
            start_again(one)
        for subscription in watch.subscriptions:
            for table in watch.tables(subscription).values():
                done.look(subscription, table.title, is_waiting=table.is_to_copy)
        wanted = {name: [*_ALL_ROOTS] for name in ("lake", *others)}
        wanted["ours"] = [*setting.of_roots, *leaves]
        behind = next(filter(None, (watch.is_behind(*each) for each in wanted.items())), "")
        return not behind

    try:
        one.wait_until(
            is_seen,
            timeout_s=SOAK_HANGS_S,
            why="all partitions are seen",
            progress=lambda: done.count,
        )
    except pytest.fail.Exception as failure:
        pytest.fail(f"{behind}\n{failure}")
    Settling(one).await_settled()
    return leaves


@pytest.mark.parametrize(
    ("version", "publisher", "has_all_modes"),
    [
        (18, "server", False),
        (14, "server", False),
        (18, "pgsluice", False),
        (12, "pgsluice", False),
        (18, "server", True),
    ],
    ids="{}".format,
)
def test_partitions_come_and_go(
    version: int,
    publisher: str,
    has_all_modes: bool,
    pipeline: MakePipeline,
    request: pytest.FixtureRequest,
    seed: int,
    report: Report,
) -> None:
    setting = _SETTINGS_OF[publisher]
    what = f"partitions come and go, {PUBLISHERS[publisher]} publications, PostgreSQL {version}"
    what += ", in every mode" if has_all_modes else ""
    with (
        EmbeddedServer(version, settings=_SETTINGS) as server,
        report.row(what, seed) as row,
        ExitStack() as running,
    ):
        shop = Database(server, "postgres")
        make_tables(shop, WIDTH)
        one = pipeline(shop)
        set_up(one, setting, other_modes(one) if has_all_modes else "")
        dice, journal = random.Random(seed), Journal()
        others = tuple(OTHER_MODES) if has_all_modes else ()
        watch = PartitionWatch(one, ("lake", "ours", *others))
        running.enter_context(beside(watch.until))
        if _IS_LOCAL:
            request.getfixturevalue("local_spark")
            running.enter_context(one.live())
        else:
            one.start()
        one.wait_until(
            lambda: is_copied(watch, setting), timeout_s=SOAK_HANGS_S, why="all is copied"
        )
        ended = threading.Event()
        rows = [RowSession(shop, WIDTH, seed, number, ended) for number in range(_WRITERS)]
        partitions = PartitionSession(shop, WIDTH, seed, journal, ended, _PAUSES_S, watch)
        for session in (*rows, partitions):
            session.start()
        try:
            if _IS_LOCAL:
                await_until(time.monotonic() + SECONDS)
                killed = Counter[str]()
            else:
                killed = kill_at_random(one, SECONDS, dice)
        finally:
            ended.set()
            for session in (*rows, partitions):
                session.join()
        (one.folder / "journal.txt").write_text("\n".join(journal.entries))
        leaves = await_end(one, watch, setting, others)
        one.assert_equal(*_ALL_ROOTS)
        one.assert_equal(*setting.of_roots, *leaves, lake="ours")
        if has_all_modes:
            assert_modes_equal(one, _ALL_ROOTS)
        assert "bug in pgsluice" not in one.log()
        row["figures"] = (
            f"{SECONDS} s; {len(_ALL_ROOTS)} partitioned tables, {WIDTH:,} ids a partition;"
            f" {sum(session.transactions for session in rows):,} transactions;"
            f" partitions: {_counted(partitions.changes)}; SIGKILL to {_counted(killed) or 'none'}"
        )
        replaced, copied = (
            sum(count for (subscription, _), count in counts.items() if subscription not in others)
            for counts in (watch.replaced, watch.copied)
        )
        assert replaced > copied, f"alone: {watch.replaced}; {watch.copied}: {watch.reasons}"
        row["shown"] = (
            f"equal; rows of partitions alone were replaced {replaced}x, tables copied again"
            f" {copied}x, leaves that are tables of their own {watch.leaves_copied}x"
        )


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}x" for name, count in sorted(counts.items()))


@pytest.mark.parametrize(("version", "is_restarted"), [(18, True), (16, True), (12, False)])
@pytest.mark.usefixtures("local_spark")
def test_partitions_pass_while_the_driver_is_down(
    version: int,
    is_restarted: bool,
    database: MakeDatabase,
    servers: Servers,
    pipeline: MakePipeline,
) -> None:
    one = pipeline(database(servers(version)))
    pass_while_the_driver_is_down(one, is_restarted=is_restarted)
    assert version < 13 or copied(one) == COPIED


@pytest.mark.usefixtures("local_spark")
def test_partitions_pass_while_no_look_comes_through(
    database: MakeDatabase, servers: Servers, pipeline: MakePipeline
) -> None:
    pass_while_no_look_comes_through(pipeline(database(servers(16))))
