"""Looks at the catalog of many tables: CPU time of this process, and of the server's session."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from bench.report import Line
from bench.stage import PUBLICATION, Shop, Stage
from pgsluice.catalog.changes import CatalogChanges
from pgsluice.published.discovery import source_tables
from pgsluice.replication import connect_sql

TABLES = 5_000
_A_TRANSACTION = 500
_REPEATS = 5
_TICKS = os.sysconf("SC_CLK_TCK")


def measure(stage: Stage) -> list[Line]:
    """A poll that finds nothing, and a look that reads all."""
    shop = Shop(stage.server, "looks")
    _make_tables(shop)
    changes = CatalogChanges()
    with connect_sql(shop.dsn) as connection:
        asked = _used(connection, lambda: changes.have_come(connection))
        looked = _used(connection, lambda: source_tables(connection, [PUBLICATION]))
    shop.close()
    return [
        _line("a poll of the catalog, nothing changed", asked),
        _line("a look that reads the whole catalog", looked),
    ]


def _make_tables(shop: Shop) -> None:
    for first in range(0, TABLES, _A_TRANSACTION):
        shop.execute("BEGIN")
        for number in range(first, first + _A_TRANSACTION):
            shop.make_table(f"t{number}")
        shop.execute("COMMIT")
    shop.execute(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES", "VACUUM ANALYZE")


def _used(connection: psycopg.Connection[Any], work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of CPU for each time: ours and the server's."""
    work()
    session = Path(f"/proc/{connection.info.backend_pid}/stat")
    ours, theirs = time.process_time(), _session_s(session)
    for _ in range(_REPEATS):
        work()
    return (
        (time.process_time() - ours) / _REPEATS,
        (_session_s(session) - theirs) / _REPEATS,
    )


def _session_s(stat: Path) -> float:
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _line(what: str, used: tuple[float, float]) -> Line:
    ours, theirs = used
    return Line(
        f"{1000 * ours:.0f} ms",
        "",
        f"{what}, {TABLES:,} tables",
        "CPU of pgsluice",
        f"the server's: {1000 * theirs:.0f} ms",
    )
