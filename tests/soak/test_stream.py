"""A stream that begins with the rows of its table, while its processes are killed.

``PGSLUICE_STREAM_ROWS`` says how many rows the table has (2,000,000), and ``PGSLUICE_STREAM_KILLS``
how many kinds of process are killed while the rows are written and while they are delivered (6).
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.soak.report import ROOT, Report
from tests.support.databases import Database
from tests.support.pgbench import await_until, kill
from tests.support.threads import beside

from pgsluice.embedded import EmbeddedServer

pytestmark = pytest.mark.soak

ROWS = int(os.environ.get("PGSLUICE_STREAM_ROWS", "2000000"))
KILLS = int(os.environ.get("PGSLUICE_STREAM_KILLS", "6"))
_SETTINGS = {"fsync": "off", "max_wal_size": "8GB", "checkpoint_timeout": "30s"}
_WHILE_WRITTEN = ("driver", "jvm", "worker", "snapshot", "capture", "server")
"""What is killed while tasks write the rows to the spool."""
_WHILE_DELIVERED = ("jvm", "worker", "driver", "server")
_LAST_ID = -1
_POLL_S = 0.05
_CHANGE = ("_commit_version", "_ordinal", "_change_type")
_END_SNAPSHOT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = 'pgsluice snapshot of a stream'
"""


class Query:
    """The program, which is started again when it has ended."""

    def __init__(self, shop: Database, folder: Path) -> None:
        (folder / "batches").mkdir()
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.shop = shop
        self.counted = 0
        self._counts: dict[tuple[Path, int], int] = {}
        self._options = {
            "dsn": shop.dsn,
            "slot": "stream",
            "spool": str(folder / "spool"),
            "subscription": "q",
            "table": "public.orders",
            "starting_position": "snapshot",
            "copy_workers": "2",
            "max_rows_per_batch": "20000",
        }

    def keep_running(self) -> None:
        if all(process.poll() is not None for process in self.processes):
            program = ("-m", "tests.soak.stream_program", str(self.folder))
            with (self.folder / "query.log").open("ab") as log:
                process = subprocess.Popen(
                    [sys.executable, *program, json.dumps(self._options)],
                    cwd=ROOT,
                    env={**os.environ, "PYSPARK_PYTHON": sys.executable},
                    stdout=log,
                    stderr=log,
                )
            self.processes.append(process)

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def wait_until(self, what: str, timeout_s: float = 180) -> None:
        """Wait for a condition of this class, and keep the program running."""
        deadline = time.monotonic() + timeout_s
        while not getattr(self, what)():
            self.keep_running()
            if time.monotonic() > deadline:
                log = (self.folder / "query.log").read_text()[-4000:]
                pytest.fail(f"never: {what}\n{log}")
            time.sleep(_POLL_S)

    # Conditions

    def is_writing_rows(self) -> bool:
        """Some rows are in the spool; without it, all are: it is too late."""
        snapshot = self.folder / "spool" / "subscriptions" / "q" / "snapshot"
        return any(snapshot.glob("*")) or self.has_delivered()

    def has_delivered(self) -> bool:
        """Some of the first rows are delivered, perhaps all of them."""
        return self.count() > 0

    def has_delivered_more(self) -> bool:
        """More than was counted."""
        return self.count() > self.counted

    def is_complete(self) -> bool:
        """The last change is delivered."""
        return bool(pc.any(pc.equal(self.rows(["id"])["id"], _LAST_ID)).as_py())

    # Rows

    def rows(self, columns: list[str]) -> pa.Table:
        """Those that are delivered."""
        return ds.dataset([str(file) for file in self._files()]).to_table(columns=columns)

    def count(self) -> int:
        """How many rows are delivered."""
        return sum(map(self._count, self._files()))

    def _count(self, file: Path) -> int:
        known = file, file.stat().st_mtime_ns
        if known not in self._counts:
            self._counts[known] = pq.read_metadata(file).num_rows
        return self._counts[known]

    def _files(self) -> list[Path]:
        """Of the batches that are whole."""
        whole = [done.parent for done in (self.folder / "batches").glob("*/_SUCCESS")]
        return [file for batch in whole for file in batch.glob("*.parquet")]

    def kill(self, what: str, dice: random.Random) -> bool:
        if what == "server":
            self.shop.server.restart("immediate")
            return True
        if what == "snapshot":
            with suppress(psycopg.OperationalError):
                return bool(self.shop.execute(_END_SNAPSHOT))
            return False
        return kill(self, what, dice)


def write(shop: Database, seed: int, ended: threading.Event) -> int:
    """Change rows; returns how many transactions."""
    dice, count, new = random.Random(seed), 0, ROWS
    while not ended.is_set():
        with suppress(psycopg.OperationalError), shop.connect() as connection:
            while not ended.is_set():
                low, new = dice.randrange(ROWS), new + 1
                where = f"WHERE id BETWEEN {low} AND {low + 5}"
                statements = (
                    f"UPDATE orders SET n = n + 1 {where}",
                    f"DELETE FROM orders {where}",
                    f"INSERT INTO orders VALUES ({new}, 0, 'new')",
                )
                connection.execute(dice.choice(statements).encode())
                count += 1
    return count


@pytest.mark.parametrize("version", [18, 14], ids="pg{}".format)
def test_kills_while_a_stream_begins_with_rows(
    version: int, tmp_path: Path, seed: int, report: Report
) -> None:
    with (
        EmbeddedServer(version, settings=_SETTINGS) as server,
        report.row(f"kills while a stream begins with rows, PostgreSQL {version}", seed) as row,
    ):
        shop = Database(server, "postgres")
        shop.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, n int, v text)",
            "INSERT INTO orders SELECT i, 0, repeat(md5(i::text), 4)"
            f" FROM generate_series(1, {ROWS}) i",
            "CHECKPOINT",
        )
        query, dice, written = Query(shop, tmp_path), random.Random(seed), list[int]()
        try:
            with beside(lambda ended: written.append(write(shop, seed, ended))):
                early = kill_while(query, "is_writing_rows", _WHILE_WRITTEN, dice)
                query.wait_until("has_delivered")
                late = kill_while(query, "has_delivered_more", _WHILE_DELIVERED, dice)
            shop.execute(f"INSERT INTO orders VALUES ({_LAST_ID}, 0, 'last')")
            query.wait_until("is_complete")
        finally:
            query.stop()
        row["figures"] = (
            f"{ROWS:,} rows; {sum(written):,} transactions; SIGKILL or end of"
            f" {', '.join(early)} while rows went to the spool, of {', '.join(late)} while they"
            f" were delivered; the program was started {len(query.processes)} times"
        )
        expected = min(KILLS, len(_WHILE_WRITTEN))
        assert len(early) == expected, f"the rows were written after {early}: take more rows"
        row["shown"] = check(query)


def kill_while(
    query: Query, condition: str, victims: tuple[str, ...], dice: random.Random
) -> list[str]:
    """Kill each of these when the condition holds; returns who was killed in time."""
    killed = []
    for victim in dice.sample(victims, min(KILLS, len(victims))):
        done = False
        while not done:
            query.counted = query.count()
            query.wait_until(condition)
            await_until(time.monotonic() + dice.uniform(0, 0.5))
            if condition == "is_writing_rows" and query.has_delivered():
                return killed
            done = query.kill(victim, dice)
            query.keep_running()
        killed.append(victim)
    return killed


def check(query: Query) -> str:
    """Each row and each change came once, and together they are the table."""
    rows = query.rows(["id", "n", *_CHANGE, "_xid"])
    is_first = pc.is_null(rows["_xid"])
    first = rows.filter(is_first)
    assert len(pc.unique(first["_commit_version"])) == 1
    assert len(pc.unique(first["id"])) == len(first), "a row came twice"
    changes = rows.filter(pc.invert(is_first)).group_by(list(_CHANGE)).aggregate([("id", "count")])
    assert pc.max(changes["id_count"]).as_py() == 1, "a change came twice"
    last = rows.sort_by([("_commit_version", "ascending"), ("_ordinal", "ascending")])
    last = last.group_by("id", use_threads=False).aggregate(
        [("n", "last"), ("_change_type", "last")]
    )
    last = last.filter(pc.not_equal(last["_change_type_last"], "delete")).sort_by("id")
    source = query.shop.execute("SELECT id, n FROM orders ORDER BY id")
    assert list(zip(last["id"].to_pylist(), last["n_last"].to_pylist(), strict=True)) == source
    return (
        f"{len(first):,} rows and {len(changes):,} changes, each once; together they equal the"
        f" table's {len(source):,} rows"
    )
