"""What all benchmarks use: a server, databases, tables of orders, and configurations.

Rules:

- Everything runs on the same cores: the server, capture, Spark, and the other programs.
- Connections use TCP. The server and the spool stay durable; only autovacuum and timed checkpoints
  are off, so that no run has one by chance.
- Rates count from the moment when the slot is in use (START_REPLICATION), for pg_recvlogical and
  for capture: the start of a process does not count.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psycopg

from pgsluice.config import Config, load_config
from pgsluice.embedded import EmbeddedServer
from pgsluice.lsn import Lsn
from pgsluice.spark.session.session import build_session
from pgsluice.subscription.running.run import run

TIMEOUT_S = 900.0
PUBLICATION = "bench"

_TABLE = """
CREATE TABLE {name} (
    id bigint PRIMARY KEY, quantity int, price numeric(12,2), customer text, is_paid bool,
    day date, changed_at timestamptz
)
"""
_ROWS = """
INSERT INTO {name}
SELECT i, i % 1000, i % 100000 / 100.0, 'customer number ' || i, i % 3 > 0,
       DATE '2024-01-01' + (i % 366)::int,
       TIMESTAMPTZ '2024-05-01 12:00+00' + i * INTERVAL '1.000001 s'
FROM generate_series({first}::bigint, {last}) AS i
"""


def wait_for(condition: Callable[[], bool], description: str, pause_s: float = 0.01) -> float:
    """Wait until a condition is true.

    Returns:
        when it was, as ``time.time()`` has it.

    Raises:
        TimeoutError: it never was.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited in vain for: {description}")
        time.sleep(pause_s)
    return time.time()


class Shop:
    """A database with tables of orders; each has seven typed columns."""

    def __init__(self, server: EmbeddedServer, name: str) -> None:
        self.server = server
        self.name = name
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        self.dsn = server.dsn(name)
        self.connection = psycopg.connect(self.dsn, autocommit=True)

    def execute(self, *statements: str) -> list[tuple[object, ...]]:
        """Run statements, and return the rows of the last one."""
        for statement in statements:
            cursor = self.connection.execute(statement)
        return cursor.fetchall() if cursor.description else []

    def make_table(self, name: str, rows: int = 0) -> None:
        """Create a table of orders with ids from 1 to ``rows``."""
        self.execute(_TABLE.format(name=name))
        if rows:
            self.execute(_ROWS.format(name=name, first=1, last=rows), f"ANALYZE {name}")

    def insert(self, name: str, rows: int) -> None:
        """Insert all rows in one transaction."""
        self.execute(_ROWS.format(name=name, first=1, last=rows))

    def insert_in_transactions(self, name: str, rows: int, size: int) -> None:
        """Insert the same rows, ``size`` in each transaction; do not flush each commit."""
        insert = _ROWS.format(name=name, first="f", last=f"least(f + {size - 1}, {rows})")
        self.execute(
            "SET synchronous_commit = off",
            f"DO $$ BEGIN FOR f IN 1..{rows} BY {size} LOOP {insert}; COMMIT; END LOOP; END $$",
            "SET synchronous_commit = on",
        )

    def end(self) -> Lsn:
        """Flush the WAL, and return where it ends."""
        self.execute("SET synchronous_commit = on", "SELECT pg_logical_emit_message(true, '', '')")
        ((lsn,),) = self.execute("SELECT pg_current_wal_flush_lsn()::text")
        return Lsn.parse(str(lsn))

    def wait_active(self, slot: str) -> float:
        """Wait until the slot is in use, and return when that was."""
        query = f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{slot}'"
        return wait_for(
            lambda: any(pid for (pid,) in self.execute(query)), f"slot {slot} in use", 0.005
        )

    def close(self) -> None:
        """Drop the database and its slots, which would keep WAL."""
        wait_for(
            lambda: not self.execute("SELECT 1 FROM pg_replication_slots WHERE active"),
            "no slot is in use",
        )
        self.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            "WHERE database = current_database()"
        )
        self.connection.close()
        with psycopg.connect(self.server.dsn(), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {self.name} WITH (FORCE)")


class Bucket(NamedTuple):
    """Of an object store that keeps its objects as files on this machine.

    Attributes:
        url: of the bucket.
        options: the ``storage_options`` of a sink.
        folder: where the files are.
        has_spool: spools lie there, too.
    """

    url: str
    options: Mapping[str, str]
    folder: Path
    has_spool: bool = False


class Stage:
    """A server and a folder, for all benchmarks."""

    def __init__(self, rows: int, seconds: int) -> None:
        self.rows = rows
        self.seconds = seconds
        self.folder = Path(tempfile.mkdtemp(prefix="pgsluice-bench-"))
        self.server = EmbeddedServer(
            18,
            settings={
                "autovacuum": "off",
                "checkpoint_timeout": "1h",
                "max_wal_size": "16GB",
                "shared_buffers": "256MB",
            },
        )
        self._names = 0

    def __enter__(self) -> Stage:
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def shop(self) -> Iterator[Shop]:
        """A new database."""
        self._names += 1
        shop = Shop(self.server, f"shop{self._names}")
        try:
            yield shop
        finally:
            shop.close()

    def config(
        self,
        shop: Shop,
        slot: str,
        row_filter: str | None = None,
        options: str = "",
        bucket: Bucket | None = None,
    ) -> Config:
        """A configuration with its own slot and folder; its file is ``config.path``.

        Args:
            row_filter: of a publication of pgsluice's own for ``orders``; None: without one.
            options: more lines of the subscription.
            bucket: where the targets lie; None: on the disk.
        """
        own, names = "", ""
        if row_filter is not None:
            statement = f"CREATE PUBLICATION ours FOR TABLE orders WHERE ({row_filter})"
            own, names = f"[publications]\nsql = {json.dumps(statement)}", 'publications = ["ours"]'
        slot = f"{shop.name}_{slot}"
        folder = self.folder / slot
        folder.mkdir()
        lake, storage, spool = "lake", "", 'path = "spool"'
        if bucket is not None:
            lake = f"{bucket.url}/{slot}"
            given = ", ".join(f'{name} = "{value}"' for name, value in bucket.options.items())
            options_there = f"storage_options = {{ {given} }}"
            storage = f", {options_there}"
            if bucket.has_spool:
                spool = f'path = "{bucket.url}/{slot}_spool"\nstate = "state"\n{options_there}'
            (folder / "lake").symlink_to(bucket.folder / slot)
        path = folder / "pgsluice.toml"
        path.write_text(
            f"""
[source]
dsn = {json.dumps(shop.dsn)}
slot = "{slot}"
publications = ["{PUBLICATION}"]
[spool]
{spool}
retention = "1h"    # the commit times are read from the spool afterwards
{own}
[[subscription]]
name = "lake"
{names}
sink = {{ type = "delta", path = "{lake}/{{schema}}/{{table}}"{storage} }}
{options}
"""
        )
        return load_config(path)

    def lake(self, config: Config, table: str) -> Path:
        """The folder of a table's target."""
        assert config.path is not None
        return config.path.parent / "lake" / "public" / table

    def program(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a program of PostgreSQL; its errors go to a log, its output is dropped."""
        with (self.folder / "programs.log").open("ab") as log:
            return subprocess.Popen(
                [str(self.server.program(name)), *arguments], stdout=subprocess.DEVNULL, stderr=log
            )

    def finish(self, program: subprocess.Popen[bytes]) -> float:
        """Wait until a program has ended, and return when that was.

        Raises:
            RuntimeError: it failed; the message has the end of the log.
        """
        if program.wait(TIMEOUT_S) != 0:
            log = (self.folder / "programs.log").read_text()
            raise RuntimeError(f"{program.args!r} failed: {log[-1000:]}")
        return time.time()

    @contextmanager
    def warm_session(self) -> Iterator[None]:
        """A Spark session that has copied and merged before, for the runs in the block."""
        # `pgsluice run` starts its session with the same daemon.
        daemon = {"spark.python.daemon.module": "pgsluice.subscription.running.daemon"}
        spark = build_session(daemon, "bench")
        try:
            with self.shop() as shop:
                shop.make_table("orders", 1000)
                config = self.config(shop, "warm")
                run(config, once=True)
                shop.execute("UPDATE orders SET quantity = 1", "DELETE FROM orders WHERE id < 10")
                run(config, once=True)
            yield
        finally:
            spark.stop()
