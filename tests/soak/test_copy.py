"""Copies under fire: kills during the first copies, and copies that are asked for again and again.

``PGSLUICE_COPY_ROWS`` says how many rows the largest table has (5,000,000), ``PGSLUICE_COPY_KILLS``
how many processes are killed while tables are copied (10), besides one crash of the server.
``PGSLUICE_COPY_SECONDS`` is how long the other test asks for copies (120).
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress

import psutil
import psycopg
import pytest
from tests.soak.chaos.copies import LOGGING, CopyWatch
from tests.soak.chaos.fire import fight, make_tables
from tests.soak.chaos.late_leaves import LateLeaves
from tests.soak.chaos.modes import MODES
from tests.soak.report import Report
from tests.support.databases import Database
from tests.support.pgbench import await_until, kill, start_again
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.threads import beside
from tests.support.waiting import SOAK_HANGS_S

from pgsluice.embedded import EmbeddedServer
from pgsluice.errors import SpoolError
from pgsluice.spool import find_record
from pgsluice.subscription.base.requests import request_copy
from pgsluice.verification import DeltaRows, compare

pytestmark = pytest.mark.soak

ROWS = int(os.environ.get("PGSLUICE_COPY_ROWS", "5000000"))
KILLS = int(os.environ.get("PGSLUICE_COPY_KILLS", "10"))
SECONDS = int(os.environ.get("PGSLUICE_COPY_SECONDS", "120"))
WRITERS = 4
_LATE_LEAVES = 8
WORKERS = 4
STREAMING_S = 15
_ROWS_ASKED = min(ROWS, 2_000_000)
_ASK_S = 3.0
"""Between two tables that are asked to be copied; every tenth time, a keeper is killed as well."""
_ASKED = ("large", "daily", "values_of_10_kb")
_DISTURB_S = 6.0
"""At most this long, copies are left alone by statements."""
_OF_COPIES = "FROM pg_stat_activity WHERE application_name LIKE 'pgsluice copy %'"
_END_SESSIONS = (
    f"SELECT pg_terminate_backend(pid) {_OF_COPIES}",
    f"SELECT pg_cancel_backend(pid) {_OF_COPIES}",
    f"SELECT pg_terminate_backend(pid) {_OF_COPIES.replace('copy %', 'snapshot of a copy')}",
)
_DISTURBANCES = (
    *_END_SESSIONS,
    "VACUUM FULL large",
    "VACUUM FULL daily_1",
    "CLUSTER values_of_10_kb USING values_of_10_kb_pkey",
    "TRUNCATE daily_2",
    (
        "INSERT INTO daily SELECT i, 0, 'again' FROM generate_series({low}, {low} + 9999) i"
        " ON CONFLICT DO NOTHING"
    ),
    "ALTER TABLE {t} ALTER n TYPE bigint",
    "ALTER TABLE {t} ALTER n TYPE int",
    "ALTER TABLE {t} ADD added int DEFAULT {low}",
    "ALTER TABLE {t} DROP added",
    "BEGIN; LOCK TABLE {t}; SELECT pg_sleep(2); COMMIT",
)
_PAUSE_S = 4.0
"""At most this long, a copy reads undisturbed between two kills; less if a range was staged, or
fast copies would end before the last kill."""
_LOOK_S = 0.05
_SETTINGS = {
    "fsync": "off",
    "max_prepared_transactions": "20",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30s",  # what a crashed server replays
    **LOGGING,
}
_VICTIMS = ("driver", "jvm", "worker", "capture", "keeper")
_IS_READING = """
SELECT 1 FROM pg_stat_activity WHERE application_name LIKE 'pgsluice copy %' AND query LIKE 'COPY%'
AND state = 'active'
"""

# Of each table: columns, first rows of i, how many, what an INSERT of i sets; {id} is its key.
_KEYED = "(id int PRIMARY KEY, n int, v text)"
_TABLES = {
    "large": (_KEYED, "i, 0, md5(i::text)", 1.0),
    "daily": ("(id int PRIMARY KEY, n int, v text) PARTITION BY RANGE (id)", "i, 0, 'd' || i", 0.2),
    "empty": (_KEYED, "i, 0, ''", 0.0),
    "log": ("(id int, n int, v text)", "i, 0, 'logged ' || i", 0.05),
    "values_of_10_kb": (_KEYED, "i, 0, repeat(md5(i::text), 320)", 0.001),
    "two_columns": ("(id int, k int DEFAULT 1, n int, v text, PRIMARY KEY (k, id))",
        "i, i % 3, 0, 'x'", 0.02),
    "texts": ("(id int, k text PRIMARY KEY, n int, v text)", "i, 'key ' || i, 0, NULL", 0.02),
    "whole_rows": (_KEYED, "i, 0, 'w'", 0.02),
    "documents": ("(id int PRIMARY KEY, n int, v text, d jsonb)",
        "i, 0, NULL, jsonb_build_object('id', i, 'of', ARRAY[i, i + 1])", 0.02),
    "small": (_KEYED, "i, 0, 's'", 0.0001),
}  # fmt: skip
_NEW_ROWS = {
    "two_columns": "(id, k, n, v) SELECT i, i % 3, 7, 'new'",
    "texts": "(id, k, n, v) SELECT i, 'key ' || i, 7, 'new'",
    "values_of_10_kb": "(id, n, v) SELECT i, 7, repeat(md5(random()::text), 320)",
}


def make_kinds(shop: Database) -> None:
    """One large, one partitioned, one empty, one without a key, one with large values, others."""
    for table, (columns, values, share) in _TABLES.items():
        shop.execute(f"CREATE TABLE {table} {columns}")
        if table == "daily":
            part = ROWS // 2
            for n in range(4):
                shop.execute(
                    f"CREATE TABLE daily_{n} PARTITION OF daily"
                    f" FOR VALUES FROM ({n * part}) TO ({(n + 1) * part})"
                )
        if table == "values_of_10_kb":
            shop.execute(f"ALTER TABLE {table} ALTER v SET STORAGE EXTERNAL")
        if table == "whole_rows":
            shop.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        step = 7 if table == "daily" else 1
        shop.execute(
            f"INSERT INTO {table} SELECT {values}"
            f" FROM generate_series(1, {step} * {int(ROWS * share)}, {step}) i"
        )
    shop.execute("ANALYZE", "CHECKPOINT")


def write(shop: Database, leaves: LateLeaves, seed: int, ended: threading.Event) -> int:
    """Change rows anywhere in any table, as fast as it goes; returns how many transactions."""
    dice, count = random.Random(seed), 0
    while not ended.is_set():
        with suppress(psycopg.OperationalError), shop.connect() as connection:  # it may crash
            while not ended.is_set():
                table = dice.choice(list(_TABLES))
                _, _, share = _TABLES[table]
                top = leaves.top - 21 if table == leaves.table else int(ROWS * share)
                low = dice.randrange(max(100, top))
                where = f"WHERE id BETWEEN {low} AND {low + 20}"
                new = _NEW_ROWS.get(table, "(id, n, v) SELECT i, 7, 'new'")
                insert = f"INSERT INTO {table} {new} FROM generate_series({low}, {low + 5}) i"
                statements = (
                    f"UPDATE {table} SET n = n + 1 {where}",
                    f"DELETE FROM {table} {where}",
                    f"{insert} ON CONFLICT DO NOTHING",
                )
                try:
                    statement = insert if table == "log" else dice.choice(statements)
                    connection.execute(statement.encode())
                    count += 1
                except psycopg.errors.DeadlockDetected:
                    continue
    return count


def kill_one(one: Pipeline, what: str, dice: random.Random) -> bool:
    """SIGKILL to a process of a kind; False when there is none."""
    if what != "keeper":
        return kill(one, what, dice)
    paths = sorted((one.spool / "subscriptions" / "lake").glob("copies*.snapshot"))
    with suppress(OSError, ValueError, KeyError, IndexError, psutil.Error):
        psutil.Process(json.loads(dice.choice(paths).read_text())["pid"]).kill()
        return True
    return False


def kill_while_copying(one: Pipeline, watch: CopyWatch, dice: random.Random) -> Counter[str]:
    """Kill each kind of process while rows are read; once, crash the server."""
    victims = [_VICTIMS[number % len(_VICTIMS)] for number in range(KILLS)]
    dice.shuffle(victims)
    victims.insert(KILLS // 2, "server")
    killed: Counter[str] = Counter()

    def is_reading() -> bool:
        start_again(one)
        with suppress(psycopg.OperationalError):
            return bool(one.database.execute(_IS_READING))
        return False

    for victim in victims:
        done = False
        while not done:
            one.wait_until(
                lambda: is_reading() or watch.is_over(_TABLES),
                timeout_s=SOAK_HANGS_S,
                why="rows are read",
            )
            if watch.is_over(_TABLES):
                return killed
            ends_at, staged = time.monotonic() + dice.uniform(0, _PAUSE_S), len(watch.staged)
            while time.monotonic() < ends_at and len(watch.staged) == staged:
                time.sleep(_LOOK_S)
            if victim == "server":
                one.database.server.restart("immediate")
                done = True
            else:
                done = kill_one(one, victim, dice)
        killed[victim] += 1
        start_again(one)
    return killed


@pytest.mark.parametrize("version", [18, 16], ids="pg{}".format)
def test_kills_during_the_first_copies(
    version: int, pipeline: MakePipeline, seed: int, report: Report
) -> None:
    with (
        EmbeddedServer(version, settings=_SETTINGS) as server,
        report.row(f"kills during the first copies, PostgreSQL {version}", seed) as row,
    ):
        shop = Database(server, "postgres")
        make_kinds(shop)
        shop.execute(
            "CREATE ROLE lake SUPERUSER LOGIN", "ALTER ROLE lake SET log_statement = 'all'"
        )
        one = pipeline(shop)
        one.write(f"copy_workers = {WORKERS}\ncopy_cores = {WORKERS}", 'max_bytes = "8 GiB"')
        text = one.path.read_text()
        one.path.write_text(text.replace("user=postgres", "user=lake"))
        watch, dice = CopyWatch(one), random.Random(seed)
        leaves = LateLeaves(
            shop, "daily", 2 * ROWS, ROWS // 50, early=_LATE_LEAVES // 4, late=_LATE_LEAVES
        )
        written: list[int] = []
        began = time.monotonic()
        with beside(watch.until):
            with ExitStack() as writers:
                for number in range(WRITERS):
                    writers.enter_context(
                        beside(
                            lambda ended, n=number: written.append(
                                write(shop, leaves, seed + n, ended)
                            )
                        )
                    )
                writers.enter_context(
                    beside(lambda ended: leaves.until(ended, lambda: "daily" in watch.finished))
                )
                one.start()
                killed = kill_while_copying(one, watch, dice)
                await_copied(one, watch)
                copied_s = time.monotonic() - began
                await_until(time.monotonic() + STREAMING_S)
            await_applied(one)
            assert_equal(one)
        one.stop()
        total = sum(killed.values())
        loads = one.log().count("public.daily copied") - 1
        row["figures"] = (
            f"{len(_TABLES)} tables, the largest of {ROWS:,} rows, {WORKERS} workers; {WRITERS}"
            f" writers, {sum(written):,} transactions; SIGKILL to "
            + ", ".join(f"{name} {count}x" for name, count in sorted(killed.items()))
            + f"; copied within {copied_s:.0f} s; {len(watch.staged)} ranges staged,"
            f" {watch.count_reads()} read; {leaves.count} partitions attached with rows;"
            f" rows of partitions alone were loaded {loads}x"
        )
        assert not watch.again, f"finished tables were copied again: {watch.again}"
        assert loads > 0, "no partition was loaded alone"
        assert not watch.read_twice()
        assert total == KILLS + 1, f"the copies ended after {total} kills: take more rows"
        row["shown"] = (
            f"{len(_TABLES)} tables equal; no finished table copied twice, no staged range of a"
            " living snapshot read twice"
        )


def await_copied(one: Pipeline, watch: CopyWatch) -> None:
    def is_copied() -> bool:
        start_again(one)
        return watch.is_over(_TABLES)

    one.wait_until(is_copied, timeout_s=SOAK_HANGS_S, why="all tables are copied")


def await_applied(one: Pipeline) -> None:
    """Until everything that was written is applied; a run that has ended is started again."""
    ((now,),) = one.database.execute("SELECT pg_current_wal_flush_lsn()::text")
    one.database.execute("INSERT INTO small VALUES (-1, 0, 'last')")

    def is_applied() -> bool:
        start_again(one)
        with suppress(SpoolError, FileNotFoundError, ValueError, KeyError):
            one.wait_applied(timeout_s=SOAK_HANGS_S)
            return True
        return False

    one.wait_until(is_applied, timeout_s=SOAK_HANGS_S, why=f"all applied through {now}")


def assert_equal(one: Pipeline) -> None:
    """Row for row; the largest by counts and hashes."""
    one.assert_equal(*(table for table in _TABLES if table not in ("large", "daily")))
    with one.database.connect() as connection:
        for table in ("large", "daily"):
            rows = DeltaRows(one.lake / "public" / table)
            found = compare(connection, f"public.{table}", rows)
            assert found.equal, str(found)


def ask_for_copies(
    one: Pipeline,
    dice: random.Random,
    asked: dict[tuple[str, int], int],
    ended: threading.Event,
) -> None:
    """Ask for a copy of one table after the other, in any subscription.

    Args:
        asked: gets the subscription and the table's OID, and its copy number before it was first
            asked for.
    """
    names = [subscription.name for subscription in one.config.subscriptions]
    count, ends_at = 0, time.monotonic() + SECONDS
    while time.monotonic() < ends_at and not ended.wait(_ASK_S):
        with suppress(SpoolError, FileNotFoundError):
            record = find_record(one.spool, name := dice.choice(names))
            if record is not None and record.tables:
                oid = dice.choice(sorted(record.tables))
                asked.setdefault((name, oid), record.tables[oid].copy_number)
                request_copy(one.spool / "subscriptions" / name, oid)
                count += 1
        if count % 10 == 9:
            kill_one(one, "keeper", dice)


def make_large_tables(shop: Database) -> None:
    """One in several portions, one partitioned, one with large values, one empty."""
    columns = "(id int PRIMARY KEY, n int, v text)"
    rows = _ROWS_ASKED
    shop.execute(
        f"CREATE TABLE large {columns}",
        f"INSERT INTO large SELECT i, 0, repeat(md5(i::text), 4) FROM generate_series(1, {rows}) i",
        f"CREATE TABLE daily {columns} PARTITION BY RANGE (id)",
        *(
            f"CREATE TABLE daily_{n} PARTITION OF daily FOR VALUES FROM ({n} * {rows})"
            f" TO ({n + 1} * {rows})"
            for n in range(4)
        ),
        f"INSERT INTO daily SELECT i * 4, 0, md5(i::text) FROM generate_series(1, {rows // 2}) i",
        f"CREATE TABLE values_of_10_kb {columns}",
        "ALTER TABLE values_of_10_kb ALTER v SET STORAGE EXTERNAL",
        "INSERT INTO values_of_10_kb SELECT i, 0, repeat(md5(i::text), 320)"
        f" FROM generate_series(1, {rows // 200}) i",
        f"CREATE TABLE empty {columns}",
    )


def change_large_tables(shop: Database, dice: random.Random, ended: threading.Event) -> None:
    """Rows anywhere, so that every portion has some."""
    ends_at = time.monotonic() + SECONDS
    with shop.connect() as connection:
        while time.monotonic() < ends_at and not ended.wait(0.01):
            table = dice.choice([*_ASKED, "empty"])
            low = dice.randrange(_ROWS_ASKED)
            where = f"WHERE id BETWEEN {low} AND {low + 20}"
            ids = f"generate_series({low}, {low + 5}) i"
            statements = (
                f"UPDATE {table} SET n = n + 1 {where}",
                f"DELETE FROM {table} {where}",
                f"INSERT INTO {table} SELECT i, 7, 'new' FROM {ids} ON CONFLICT DO NOTHING",
            )
            with suppress(psycopg.errors.DeadlockDetected):
                connection.execute(dice.choice(statements).encode())


def disturb(
    shop: Database, dice: random.Random, done: Counter[str], ended: threading.Event
) -> None:
    """End sessions of copies, and rewrite, alter, truncate and lock the tables that they read.

    Args:
        done: gets how often each statement had something to do.
    """
    ends_at = time.monotonic() + SECONDS
    while time.monotonic() < ends_at and not ended.wait(dice.uniform(0, _DISTURB_S)):
        template = dice.choice(_DISTURBANCES)
        statement = template.format(t=dice.choice(_ASKED), low=dice.randrange(_ROWS_ASKED))
        with suppress(psycopg.Error), shop.connect() as connection:  # such as a deadlock
            connection.execute("SET lock_timeout = '10s'")
            result = connection.execute(statement.encode())
            done[template] += result.rowcount if template in _END_SESSIONS else 1


@pytest.mark.parametrize(
    ("version", "kind"), [(18, "data"), (16, "data"), (18, "every_mode")], ids="{}".format
)
def test_copies_asked_for_under_fire(
    version: int, kind: str, pipeline: MakePipeline, seed: int, report: Report
) -> None:
    mode = MODES[kind]
    what = f"copies asked for under fire, PostgreSQL {version}"
    what += ", in every mode" if mode.has_all_modes else ""
    with (
        EmbeddedServer(version, settings=_SETTINGS) as server,
        report.row(what, seed) as row,
    ):
        shop = Database(server, "postgres")
        make_tables(shop)
        make_large_tables(shop)
        one = pipeline(shop, source="two_phase = true")
        dice, disturbed = random.Random(seed), Counter[str]()
        asked: dict[tuple[str, int], int] = {}
        with mode.prepare(one):
            one.start()
            one.wait_applied(SOAK_HANGS_S)  # a copy that is asked for before is the first one
            with (
                beside(lambda ended: disturb(shop, random.Random(seed + 1), disturbed, ended)),
                beside(lambda ended: change_large_tables(shop, dice, ended)),
                beside(lambda ended: ask_for_copies(one, dice, asked, ended)),
            ):
                fought = fight(one, seconds=SECONDS, kills=SECONDS // 12, seed=seed, mode=mode)
        tables = {
            (subscription.name, oid): table
            for subscription in one.config.subscriptions
            for oid, table in one.record(subscription.name).tables.items()
        }
        copies = sum(table.copy_number - 1 for table in tables.values())
        one.stop()
        goes_on = one.log().count("its copy resumes")
        ended = sum(disturbed[statement] for statement in _END_SESSIONS)
        others = disturbed.total() - ended
        row["figures"] = (
            f"{SECONDS} s; {_ROWS_ASKED} and {_ROWS_ASKED // 2} rows, {_ROWS_ASKED // 200} of"
            f" 10 kB, and ten small tables; {fought.transactions} transactions;"
            f" {len(fought.killed)} SIGKILLs; {ended} sessions of copies ended, {others} times"
            " their tables rewritten, altered, truncated or locked;"
            f" {len(asked)} tables asked for, {copies} copies begun again, {goes_on} went on"
            " after a kill"
        )
        assert not fought.wrong, fought.complaint(seed)
        assert asked
        assert not [each for each, before in asked.items() if tables[each].copy_number <= before]
        row["shown"] = f"{fought.tables} tables equal row for row"
