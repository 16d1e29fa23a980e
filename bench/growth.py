"""How costs grow: with the tables that change at once, with a table's rows, with a transaction's.

Each curve is a picture in ``docs/``.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench.live import running
from bench.memory import watched
from bench.merge import Copied, cost_of_batches
from bench.picture import Curve, picture
from bench.report import PAGE, Line
from bench.stage import Shop, Stage, wait_for
from bench.tables import median_s
from pgsluice.config import Config
from pgsluice.spool import find_record

TABLES = (1, 10, 100, 200, 1000)
TABLE_ROWS = (10_000, 100_000, 1_000_000)
CHANGED_KEYS = 500
TRANSACTION_ROWS = (1_000, 10_000, 100_000, 1_000_000)
_REPEATS = 3


def measure(stage: Stage, *, draw: bool) -> Iterator[Line]:
    """All growth curves.

    Args:
        draw: put the pictures into the docs.
    """
    for name, growth in (
        ("table-size", _table_sizes),
        ("transactions", partial(_transactions, stage)),
        ("tables", partial(_tables, stage)),
    ):
        (title, x_title, y_title), curves = growth()
        for curve in curves:
            figures = (f"{x:,.0f}: {y:.2g}" for x, y in curve.points)
            yield Line("", "", f"{title}, {curve.name}", "; ".join(figures), y_title)
        if draw:
            path = PAGE.with_name(f"growth-{name}.svg")
            path.write_text(picture(title, x_title, y_title, curves))


_Measured = tuple[tuple[str, str, str], list[Curve]]
"""The titles of the picture and of its axes, and the curves."""


def _tables(stage: Stage) -> _Measured:
    """A transaction that changes a row in each of some tables."""
    with running(stage, tables=max(TABLES)) as (shop, config, _):
        seconds = [
            median_s(stage, shop, config, changed=changed, repeats=_REPEATS) for changed in TABLES
        ]
    titles = ("One transaction changes a row in each of n tables", "tables", "s to visible")
    return titles, [Curve(f"of {max(TABLES):,}", list(zip(TABLES, seconds, strict=True)))]


def _table_sizes() -> _Measured:
    """CPU of a batch of random keys into tables of growing size."""
    curves = []
    for way in ("on_read", "on_write"):
        points = []
        for rows in TABLE_ROWS:
            folder = Path(tempfile.mkdtemp())
            try:
                copied = Copied(folder / "copied", rows)
                (cost,) = cost_of_batches(folder, way, copied, [CHANGED_KEYS])
            finally:
                shutil.rmtree(folder)
            points.append((rows, cost.cpu_s))
        curves.append(Curve(way, points))
    titles = (f"A batch of {CHANGED_KEYS} random keys", "rows of the table", "s of CPU")
    return titles, curves


def _transactions(stage: Stage) -> _Measured:
    """One transaction of inserts, and one that updates the same rows."""
    inserts, updates = [], []
    with running(stage, tables=1) as (shop, config, process), watched(process.pid) as peaks:
        first = stage.rows + 1
        _visible_s(shop, config, "UPDATE orders1 SET quantity = 1 WHERE id = 1")  # does not count
        for rows in TRANSACTION_ROWS:
            insert = (
                f"INSERT INTO orders1 SELECT i, 1, 9.99, 'customer number ' || i, false, "
                f"current_date, now() FROM generate_series({first}, {first + rows - 1}) AS i"
            )
            inserts.append((rows, _visible_s(shop, config, insert)))
            update = f"UPDATE orders1 SET quantity = 2 WHERE id >= {first}"
            updates.append((rows, _visible_s(shop, config, update)))
            first += rows
    titles = (
        f"One transaction of n rows (a worker had up to {peaks.get('worker', 0) / 1e6:,.0f} MB)",
        "rows",
        "s from its commit to visible",
    )
    return titles, [Curve("inserts", inserts), Curve("updates", updates)]


def _visible_s(shop: Shop, config: Config, statement: str) -> float:
    """From the commit of a statement until all of it is applied."""
    shop.execute(statement)
    committed_at, end = time.time(), shop.end()
    shop.execute("UPDATE orders1 SET quantity = 0 WHERE id = 1")  # a commit past the end

    def is_applied() -> bool:
        record = find_record(config.spool.path, "lake")
        assert record is not None
        return all(table.applied_through >= end for table in record.tables.values())

    return wait_for(is_applied, "the rows are visible") - committed_at
