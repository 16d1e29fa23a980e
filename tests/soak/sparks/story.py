"""One story of a run, on any Spark: copies, changes, a kill, changes, and what ``verify`` says."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.support.databases import Database
from tests.support.waiting import await_that

from pgsluice.config import load_config
from pgsluice.lsn import Lsn
from pgsluice.spool import TableState, find_record

_TABLES = (
    (
        "CREATE TABLE orders (id bigint PRIMARY KEY, customer int, total numeric(12,2),"
        " placed timestamptz DEFAULT now(), doc jsonb, note text)"
    ),
    "ALTER TABLE orders ALTER note SET STORAGE EXTERNAL",
    "CREATE TABLE lines (a text, b int, amount double precision, tags text[], PRIMARY KEY (a, b))",
    "CREATE TABLE facts (day date NOT NULL, n int, PRIMARY KEY (day, n)) PARTITION BY RANGE (day)",
    "CREATE TABLE facts_1 PARTITION OF facts FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')",
    "CREATE TABLE facts_2 PARTITION OF facts FOR VALUES FROM ('2026-02-01') TO ('2026-03-01')",
    "CREATE TABLE whole (id int PRIMARY KEY, v text)",
    "ALTER TABLE whole REPLICA IDENTITY FULL",
)
_ROWS = (
    (
        "INSERT INTO orders SELECT n, n % 97, n / 100.0, now(), jsonb_build_object('n', n),"
        " repeat('x', 20 + CASE WHEN n % 500 = 0 THEN 5000 ELSE 0 END)"
        " FROM generate_series(1, 20000) n"
    ),
    (
        "INSERT INTO lines SELECT 'k' || n % 50, n, n / 7.0, ARRAY['a', NULL]"
        " FROM generate_series(1, 5000) n"
    ),
    "INSERT INTO facts SELECT date '2026-01-01' + n % 58, n FROM generate_series(1, 5000) n",
    "INSERT INTO whole SELECT n, 'v' FROM generate_series(1, 1000) n",
)
LARGE = (
    "INSERT INTO orders SELECT n, n % 7, n, now(), '{{}}', repeat('y', 60)"
    " FROM generate_series({first}, {last}) n"
)
_PROGRAM_S = 900


def some_changes(shop: Database, first: int, *, rounds: int = 20, large: int = 20_000) -> None:
    """Changes of each kind on each table, with a large transaction among them.

    Args:
        first: the first of the new ids.
        rounds: how often.
        large: the rows of the large transaction.
    """
    for number in range(first, first + rounds):
        shop.execute(
            f"UPDATE orders SET total = total + 1, doc = NULL WHERE id % 40 = {number % 40}"
            f" AND id < 4000",
            f"DELETE FROM orders WHERE id = {number % 20000 + 1}",
            f"UPDATE lines SET amount = -amount, b = b + 100000 WHERE a = 'k{number % 50}'"
            " AND b < 100000",
            f"UPDATE facts SET day = day + 3 WHERE n = {number % 5000} AND day < '2026-02-24'",
            f"UPDATE whole SET v = v || 'w' WHERE id % 40 = {number % 40}",
        )
    shop.execute(LARGE.format(first=first, last=first + large - 1))
    shop.execute("DELETE FROM whole WHERE id % 9 = 0", "UPDATE whole SET id = -id WHERE id % 7 = 0")


@dataclass
class SparkStory:
    """A run of some environment's Spark on a database.

    Attributes:
        python: of the environment, which has pgsluice and PySpark.
        folder: for the configuration, the spool and the targets.
        spark: settings of the session.
        spool, sink: keys of these sections.
    """

    python: Path
    folder: Path
    shop: Database
    spark: Mapping[str, str]
    spool: Mapping[str, Any] = field(default_factory=lambda: {"path": "spool"})
    sink: Mapping[str, Any] = field(default_factory=lambda: {"path": "lake/{schema}/{table}"})
    _run: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.config = self.folder / "shop.toml"
        self.config.write_text(
            f"[source]\ndsn = {json.dumps(self.shop.dsn)}\nslot = {json.dumps(self.shop.name)}\n"
            f"[spool]\n{_lines(self.spool)}\n"
            f'[[subscription]]\nname = "lake"\n'
            f'[subscription.sink]\ntype = "delta"\n{_lines(self.sink)}\n'
            f"[spark]\n{_lines(self.spark)}\n"
        )
        self._place = load_config(self.config).spool.place

    def fill(self) -> None:
        """Make the tables."""
        self.shop.execute(*_TABLES, *_ROWS)

    def tell(self) -> None:
        """The whole story."""
        self.fill()
        with self.running():
            self.await_copies()
            some_changes(self.shop, 100_000)
            self.await_position(self.flushed())
            some_changes(self.shop, 200_000, rounds=5)  # the kill comes at some point of them
        some_changes(self.shop, 300_000, rounds=5, large=100)
        self.call("run", "--once")
        self.call("verify")

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """``pgsluice run``, which is killed at the end."""
        log = self.folder / "run.log"
        with log.open("ab") as out:
            run = subprocess.Popen(
                self._command("run", *arguments), env=self._environment(), stdout=out, stderr=out
            )
        try:
            self._run = run
            yield run
            self._is_running()
        finally:
            self._run = None
            run.kill()
            run.wait()

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """``pgsluice capture`` as a program of its own."""
        with (self.folder / "capture.log").open("ab") as out:
            capture = subprocess.Popen(
                self._command("capture"), env=self._environment(), stdout=out, stderr=out
            )
        try:
            yield
        finally:
            capture.terminate()
            capture.wait()

    def call(self, command: str, *arguments: str, fails: bool = False) -> str:
        """Call a command, and return what it printed."""
        done = subprocess.run(
            self._command(command, *arguments),
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_PROGRAM_S,
            check=False,
        )
        if (done.returncode != 0) is not fails:
            pytest.fail(f"{command} ended with {done.returncode}: {done.stdout[-3000:]}")
        return done.stdout

    def await_copies(self) -> None:
        """Wait until all tables are copied."""
        await_that(
            lambda: self._is_running() and self._states() == {TableState.READY},
            "all tables are copied",
        )

    def await_position(self, position: Lsn) -> None:
        """Wait until the subscription has reached a position."""

        def has_it() -> bool:
            record = find_record(self._place, "lake")
            return self._is_running() and record is not None and record.position >= position

        await_that(has_it, f"the run reaches {position}")

    def flushed(self) -> Lsn:
        """The server's position."""
        ((lsn,),) = self.shop.execute("SELECT pg_current_wal_flush_lsn()")
        return Lsn.parse(lsn)

    def _is_running(self) -> bool:
        """Whether the run is active; a test fails if it has ended."""
        if self._run is not None and self._run.poll() is not None:
            pytest.fail(f"run has ended: {(self.folder / 'run.log').read_text()[-3000:]}")
        return True

    def _states(self) -> set[TableState]:
        record = find_record(self._place, "lake")
        time.sleep(0.1)  # the file is read again and again
        return set() if record is None else {table.state for table in record.tables.values()}

    def _command(self, command: str, *arguments: str) -> list[str]:
        return [str(self.python), "-m", "pgsluice", command, str(self.config), *arguments]

    def _environment(self) -> dict[str, str]:
        return environment(self.python)


def _lines(keys: Mapping[str, Any]) -> str:
    """Keys of a section."""

    def text(value: Any) -> str:
        if isinstance(value, Mapping):
            return "{ " + ", ".join(f"{json.dumps(k)} = {text(v)}" for k, v in value.items()) + " }"
        return json.dumps(value)

    return "\n".join(f"{json.dumps(key)} = {text(value)}" for key, value in keys.items())


def environment(python: Path) -> dict[str, str]:
    """The variables for programs of another environment."""
    variables = {**os.environ, "PYSPARK_PYTHON": str(python), "PYTHONNOUSERSITE": "1"}
    # The tests' archive of classes is of their own Spark.
    variables.pop("SPARK_SUBMIT_OPTS", None)
    variables.pop("PYTHONPATH", None)
    return variables
