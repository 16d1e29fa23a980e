"""Copies of one table to Delta, against as many connections' COPY to nowhere, and Spark JDBC.

With 1, 2 and 4 workers, for rows of a hundred bytes, of 200 columns, and with values of 10 kB; and
with one and two workers of a standalone Spark cluster. A rate counts from the decision to copy to
the Delta commit. Each is the best of some rounds. Larger tables show what a copy costs that does
not depend on its rows.

Spark JDBC writes Parquet. It needs PostgreSQL's driver: ``PGSLUICE_JDBC_JAR`` names the file, or it
lies where Debian's ``libpostgresql-jdbc-java`` puts it. Without it these lines are left out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from psycopg.conninfo import conninfo_to_dict

from bench.positions import commits_of
from bench.report import Line, rate, ratio
from bench.stage import Shop, Stage, wait_for
from pgsluice.config import Config
from pgsluice.spark.session.session import build_session, forget_session
from pgsluice.spool import TableState, find_record
from pgsluice.subscription.running.run import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = 2
WORKERS = (1, 2, 4)
DRIVER = Path(os.environ.get("PGSLUICE_JDBC_JAR", "/usr/share/java/postgresql.jar"))
_TIMES = "four times as many rows"
_WIDE_COLUMNS = 199
_LARGE_BYTES = 10_000
_FETCH_ROWS = 10_000
"""Spark's JDBC source would otherwise read a whole table into memory."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table that is copied; it is called ``orders``, and its key is ``id``.

    Attributes:
        what: it in words.
        workers: with how many workers it is copied.
        is_for_jdbc: Spark's JDBC source reads it, too. Large tables would take it minutes.
    """

    what: str
    rows: int
    workers: tuple[int, ...]
    make: Callable[[Shop, int], None]
    is_for_jdbc: bool = True

    def mb(self, shop: Shop) -> float:
        """The size of the table and its TOAST table."""
        ((size,),) = shop.execute("SELECT pg_table_size('orders')")
        assert isinstance(size, int)
        return size / 1e6


def measure(stage: Stage, *, all_of_it: bool) -> Iterator[Line]:
    """The lines of each table, and then those of a cluster.

    Args:
        all_of_it: otherwise only those of a cluster.
    """
    tables = (
        Table("7 columns", 4 * stage.rows, WORKERS, _make_orders),
        Table(f"7 columns, {_TIMES}", 16 * stage.rows, WORKERS, _make_orders, is_for_jdbc=False),
        Table("200 columns", stage.rows // 10, (2,), _make_wide),
        Table(f"200 columns, {_TIMES}", 2 * stage.rows // 5, (2,), _make_wide, is_for_jdbc=False),
        Table("values of 10 kB", stage.rows // 20, (2,), _make_large),
        Table(f"values of 10 kB, {_TIMES}", stage.rows // 5, (2,), _make_large, is_for_jdbc=False),
    )
    if all_of_it and not DRIVER.exists():
        print(f"Spark JDBC is left out: there is no {DRIVER} (PGSLUICE_JDBC_JAR)", flush=True)
    with _compiled_modules(stage.folder):
        for table in tables if all_of_it else ():
            with stage.shop() as shop:
                table.make(shop, table.rows)
                yield from _measure_table(stage, shop, table)
        with stage.shop() as shop:
            _make_orders(shop, 4 * stage.rows)
            yield from _measure_cluster(stage, shop, tables[0])


@contextmanager
def _compiled_modules(folder: Path) -> Iterator[None]:
    """Have Python compile modules once, as in an installation: a keeper and workers load them."""
    settings = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _measure_table(stage: Stage, shop: Shop, table: Table) -> Iterator[Line]:
    mb = table.mb(shop)

    def figure(rows_per_s: float) -> str:
        return f"{rate(rows_per_s)}, {mb * rows_per_s / table.rows:.0f} MB/s"

    for workers in table.workers:
        with _session(stage, f"local[{workers}]"):
            plain = copied = 0.0
            for number in range(ROUNDS):
                plain = max(plain, copy_to_nowhere(stage, shop, table.rows, workers))
                name = f"copy{workers}_{number}"
                copied = max(copied, copy_to_delta(stage, shop, table.rows, name, workers))
        connections = "1 connection" if workers == 1 else f"{workers} connections"
        yield Line(
            ratio(copied, plain),
            "≥ 0.6 x",
            f"copy of {table.what} to Delta, {connections}",
            figure(copied),
            f"as many COPY to /dev/null {figure(plain)}",
        )
        if DRIVER.exists() and table.is_for_jdbc:
            jdbc = spark_jdbc(stage, shop, table.rows, workers)
            yield Line(
                ratio(copied, jdbc),
                "≥ 3 x",
                f"copy of {table.what} to Delta, {connections}",
                figure(copied),
                f"Spark JDBC to Parquet {figure(jdbc)}",
            )


def copy_to_nowhere(stage: Stage, shop: Shop, rows: int, connections: int) -> float:
    """Rows a second of ``COPY ... TO STDOUT`` over TCP, written to /dev/null.

    Each connection reads as many pages of the table.
    """
    ((pages,),) = shop.execute(
        "SELECT pg_relation_size('orders') / current_setting('block_size')::int"
    )
    assert isinstance(pages, int)
    starts = [pages * number // connections for number in range(connections)]
    began = time.time()
    programs = []
    for start, end in zip(starts, [*starts[1:], 2**32 - 2], strict=True):
        where = f"ctid >= '({start},0)' AND ctid < '({end},0)'"
        copy = f"COPY (SELECT * FROM orders WHERE {where}) TO STDOUT"
        programs.append(stage.program("psql", "-XAtqc", copy, shop.dsn))
    return rows / (max(map(stage.finish, programs)) - began)


def copy_to_delta(stage: Stage, shop: Shop, rows: int, name: str, workers: int) -> float:
    """Rows a second from the decision to copy to the Delta commit, Spark's jobs included."""
    config = stage.config(shop, name, options=f"copy_workers = {workers}")
    began: list[float] = []
    given_up = threading.Event()

    def copies() -> bool:
        record = find_record(config.spool.path, "lake")
        return given_up.is_set() or (
            record is not None
            and any(one.state is not TableState.INITIALISE for one in record.tables.values())
        )

    watcher = threading.Thread(
        target=lambda: began.append(wait_for(copies, "the copy begins", 0.005))
    )
    watcher.start()
    try:
        run(config, once=True)
    finally:
        given_up.set()
        watcher.join()
    target = stage.lake(config, "orders")
    (_, visible), *_ = commits_of(target)
    shutil.rmtree(target)
    _release(shop, config)
    return rows / (visible - began[0])


def spark_jdbc(stage: Stage, shop: Shop, rows: int, connections: int) -> float:
    """Rows a second of a table read by Spark's JDBC source and written as Parquet."""
    server = conninfo_to_dict(shop.dsn)
    url = f"jdbc:postgresql://{server['host']}:{server['port']}/{server['dbname']}"
    target = stage.folder / "jdbc"
    best = 0.0
    with _session(
        stage, f"local[{connections}]", {"spark.driver.extraClassPath": str(DRIVER)}
    ) as spark:
        reader = (
            spark.read.format("jdbc")
            .option("url", url)
            .option("user", server["user"])
            .option("dbtable", "orders")
            .option("fetchsize", _FETCH_ROWS)
        )
        if connections > 1:
            reader = (
                reader.option("partitionColumn", "id")
                .option("lowerBound", 1)
                .option("upperBound", rows + 1)
                .option("numPartitions", connections)
            )
        reader.load().limit(1000).write.mode("overwrite").parquet(str(target))  # warm
        for _ in range(ROUNDS):
            began = time.time()
            reader.load().write.mode("overwrite").parquet(str(target))
            best = max(best, rows / (time.time() - began))
        shutil.rmtree(target)
    return best


def _measure_cluster(stage: Stage, shop: Shop, table: Table) -> Iterator[Line]:
    """A standalone cluster of two workers with a core each, against one."""
    rates = {}
    for workers in (1, 2):
        with _cluster(stage, workers) as master, _session(stage, master):
            name = f"cluster{workers}"
            rates[workers] = max(
                copy_to_delta(stage, shop, table.rows, f"{name}_{number}", 4)
                for number in range(ROUNDS)
            )
    yield Line(
        ratio(rates[2], rates[1]),
        "> 1 x",
        "copy with a Spark cluster of two workers, a core each",
        rate(rates[2]),
        f"one worker {rate(rates[1])}",
    )


@contextmanager
def _cluster(stage: Stage, workers: int) -> Iterator[str]:
    """The URL of a standalone cluster on this machine."""
    import pyspark

    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    deploy = "org.apache.spark.deploy"
    log = stage.folder / f"cluster{workers}.log"
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with log.open("wb") as output:

        def start(*arguments: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [str(program), *arguments],
                stdout=output,
                stderr=output,
                env=environment,
                cwd=stage.folder,
            )

        processes = [start(f"{deploy}.master.Master", "--host", "127.0.0.1", "--webui-port", "0")]
        try:
            url = "spark://127.0.0.1:7077"
            wait_for(lambda: b"I have been elected leader" in log.read_bytes(), "a master", 0.1)
            worker = (f"{deploy}.worker.Worker", "--cores", "1", "--webui-port", "0", url)
            processes += [start(*worker) for _ in range(workers)]
            wait_for(
                lambda: log.read_bytes().count(b"Successfully registered with master") == workers,
                "the cluster's workers",
                0.1,
            )
            yield url
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait()


@contextmanager
def _session(
    stage: Stage, master: str, settings: dict[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session that has copied a table before."""
    spark = build_session(
        {
            "spark.master": master,
            # `pgsluice run` starts its session with the same daemon.
            "spark.python.daemon.module": "pgsluice.subscription.running.daemon",
            **(settings or {}),
        },
        "bench",
    )
    try:
        if settings is None:
            with stage.shop() as shop:
                shop.make_table("orders", 1000)
                copy_to_delta(stage, shop, 1000, "warm", 4)
        yield spark
    finally:
        spark.stop()
        forget_session()  # with its JVM, whose class path is that of its first session


def _release(shop: Shop, config: Config) -> None:
    """Drop a slot, which would keep the WAL of the next tables."""
    shop.execute(f"SELECT pg_drop_replication_slot('{config.source.slot}')")


def _make_orders(shop: Shop, rows: int) -> None:
    shop.make_table("orders", rows)


def _make_wide(shop: Shop, rows: int) -> None:
    """Numbers and short texts, half of each."""
    names = [f"c{number}" for number in range(_WIDE_COLUMNS)]
    columns = ", ".join(
        f"{name} {('int', 'text')[number % 2]}" for number, name in enumerate(names)
    )
    values = ", ".join(
        f"i + {number}" if number % 2 == 0 else f"'value ' || i % {number + 1}"
        for number in range(_WIDE_COLUMNS)
    )
    shop.execute(
        f"CREATE TABLE orders (id bigint PRIMARY KEY, {columns})",
        f"INSERT INTO orders SELECT i, {values} FROM generate_series(1, {rows}) AS i",
        "ANALYZE orders",
    )


def _make_large(shop: Shop, rows: int) -> None:
    """Values that PostgreSQL does not compress, in TOAST tables."""
    shop.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, document text)",
        "ALTER TABLE orders ALTER document SET STORAGE EXTERNAL",
        f"""INSERT INTO orders SELECT i, repeat(md5(i::text), {_LARGE_BYTES // 32})
            FROM generate_series(1, {rows}) AS i""",
        "ANALYZE orders",
    )
