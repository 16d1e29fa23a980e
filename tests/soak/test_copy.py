"""Copies under fire: large and small tables are copied, again and again, while others are changed.

Sessions write to the ten kinds of table, tables are asked to be copied, and driver, JVM, workers,
capture and the keeper of the snapshot get SIGKILL, from the first moment on. Then every table is
compared. ``PGSLUICE_COPY_ROWS`` says how many rows the large tables have (2,000,000).
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from contextlib import suppress

import psutil
import pytest
from tests.soak.report import Report
from tests.support.chaos.fire import fight, make_tables
from tests.support.chaos.modes import MODES
from tests.support.databases import Database
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.threads import beside

from pgsluice.embedded import EmbeddedServer
from pgsluice.errors import SpoolError
from pgsluice.spool import find_record
from pgsluice.spool.layout import COPY_SNAPSHOT
from pgsluice.subscription.requests import request_copy

pytestmark = pytest.mark.soak

ROWS = int(os.environ.get("PGSLUICE_COPY_ROWS", "2000000"))
SECONDS = int(os.environ.get("PGSLUICE_COPY_SECONDS", "120"))
KILLS = SECONDS // 12
_ASK_S = 3.0
"""Between two tables that are asked to be copied; every tenth time, a keeper is killed as well."""
_SETTINGS = {"fsync": "off", "max_prepared_transactions": "20", "max_wal_size": "8GB"}


def make_large_tables(shop: Database) -> None:
    """One in several portions, one partitioned, one with large values, one empty."""
    columns = "(id int PRIMARY KEY, n int, v text)"
    shop.execute(
        f"CREATE TABLE large {columns}",
        f"INSERT INTO large SELECT i, 0, repeat(md5(i::text), 4) FROM generate_series(1, {ROWS}) i",
        f"CREATE TABLE daily {columns} PARTITION BY RANGE (id)",
        *(
            f"CREATE TABLE daily_{n} PARTITION OF daily FOR VALUES FROM ({n} * {ROWS})"
            f" TO ({n + 1} * {ROWS})"
            for n in range(4)
        ),
        f"INSERT INTO daily SELECT i * 4, 0, md5(i::text) FROM generate_series(1, {ROWS // 2}) i",
        f"CREATE TABLE values_of_10_kb {columns}",
        "ALTER TABLE values_of_10_kb ALTER v SET STORAGE EXTERNAL",
        "INSERT INTO values_of_10_kb SELECT i, 0, repeat(md5(i::text), 320)"
        f" FROM generate_series(1, {ROWS // 200}) i",
        f"CREATE TABLE empty {columns}",
    )


def change_large_tables(shop: Database, dice: random.Random, ended: threading.Event) -> None:
    """Rows anywhere, so that every portion has some."""
    ends_at = time.monotonic() + SECONDS
    with shop.connect() as connection:
        while time.monotonic() < ends_at and not ended.wait(0.01):
            table = dice.choice(["large", "daily", "values_of_10_kb", "empty"])
            low = dice.randrange(ROWS)
            where = f"WHERE id BETWEEN {low} AND {low + 20}"
            ids = f"generate_series({low}, {low + 5}) i"
            statements = (
                f"UPDATE {table} SET n = n + 1 {where}",
                f"DELETE FROM {table} {where}",
                f"INSERT INTO {table} SELECT i, 7, 'new' FROM {ids} ON CONFLICT DO NOTHING",
            )
            connection.execute(dice.choice(statements).encode())


def ask_for_copies(one: Pipeline, dice: random.Random, ended: threading.Event) -> None:
    folder = one.spool / "subscriptions" / "lake"
    asked, ends_at = 0, time.monotonic() + SECONDS
    while time.monotonic() < ends_at and not ended.wait(_ASK_S):
        with suppress(SpoolError, FileNotFoundError):
            record = find_record(one.spool, "lake")
            if record is not None and record.tables:
                request_copy(folder, dice.choice(sorted(record.tables)))
                asked += 1
        if asked % 10 == 9:
            with suppress(OSError, ValueError, KeyError, psutil.Error):
                psutil.Process(json.loads((folder / COPY_SNAPSHOT).read_text())["pid"]).kill()


@pytest.mark.parametrize("version", [18, 16], ids="pg{}".format)
def test_copies_under_fire(version: int, pipeline: MakePipeline, seed: int, report: Report) -> None:
    with (
        EmbeddedServer(version, settings=_SETTINGS) as server,
        report.row(f"copies under fire, PostgreSQL {version}", seed) as row,
    ):
        shop = Database(server, "postgres")
        make_tables(shop)
        make_large_tables(shop)
        one = pipeline(shop, source="two_phase = true")
        dice = random.Random(seed)
        with (
            MODES["data"].prepare(one),
            beside(lambda ended: change_large_tables(shop, dice, ended)),
            beside(lambda ended: ask_for_copies(one, dice, ended)),
        ):
            fought = fight(one, seconds=SECONDS, kills=KILLS, seed=seed, mode=MODES["data"])
        copies = sum(table.copy_number for table in one.record().tables.values())
        one.stop()
        goes_on = one.log().count("its copy goes on")
        row["figures"] = (
            f"{SECONDS} s; {ROWS} and {ROWS // 2} rows, {ROWS // 200} of 10 kB, and ten small"
            f" tables; {fought.transactions} transactions; {len(fought.killed)} SIGKILLs;"
            f" {copies} copies begun, {goes_on} went on after a kill"
        )
        assert not fought.wrong, fought.complaint(seed)
        row["shown"] = f"{fought.tables} tables equal row for row"
