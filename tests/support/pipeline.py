"""The whole way of the data in tests: a database, a configuration, and runs of it.

``pipeline(database)`` makes a configuration in a folder of its own. :meth:`Pipeline.once` runs
it in this process, on the test session's Spark; :meth:`Pipeline.start` starts ``pgsluice run``
as a user would, as a process that can be killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from traceback import format_exception
from typing import Any

import psutil
import pytest
from deltalake import DeltaTable
from tests.support.databases import Database, MakeDatabase
from tests.support.forked_capture import ForkedCapture
from tests.support.object_stores import ObjectStore
from tests.support.oracle import assert_equal
from tests.support.threads import beside
from tests.support.waiting import HANGS_S

from pgsluice.cli.app import run_command
from pgsluice.config import Config, load_config
from pgsluice.errors import SpoolError
from pgsluice.spool import SpoolReader, SubscriptionRecord, TableRecord, find_record
from pgsluice.stores.spool_place import SpoolPlace
from pgsluice.subscription.base.waits import WAITS
from pgsluice.subscription.running.run import run
from pgsluice.verification import DeltaRows

MakePipeline = Callable[..., "Pipeline"]
BUCKET = "lake"
"""Of stores, where tests have tables."""


class Pipeline:
    """One configuration on one database.

    Attributes:
        publications: pgsluice's own, by name: what follows ``CREATE PUBLICATION name``. For the
            stories of tests/pipeline.
        sink_options: what every sink has besides its type and path, such as ``, merge = "auto"``.
        storage_options: of the object store that :meth:`have_store` put the targets into.
        reading_options: with which tests read there.
        reading_spool: with which options tests read a spool in a store.
        spark: settings of the runs' sessions.
        run_options: of every ``pgsluice run`` as a process.
        waits: how long the parts of runs in this process wait.
        elsewhere: kind of process -> finds those of it that are no children of a run.
    """

    sink_options = ""
    subscription_options = ""
    """Lines of every subscription, such as its mode."""

    def __init__(self, folder: Path, database: Database, extra: str = "", source: str = "") -> None:
        self.folder = folder
        self.database = database
        self.path = folder / "pgsluice.toml"
        self.lake = folder / "lake"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.errors: list[BaseException] = []
        self.publications: dict[str, str] = {}
        self.source = source
        self.lake_uri = "lake"
        self.spool_section = 'path = "spool"'
        self.storage_options: dict[str, str] = {}
        self.reading_options: dict[str, str] = {}
        self.reading_spool: dict[str, str] | None = None
        self.spark: dict[str, str] = {"spark.master": "local[2]"}
        self.run_options: tuple[str, ...] = ()
        self.waits = WAITS
        self.elsewhere: dict[str, Callable[[], list[psutil.Process]]] = {}
        self.write(extra)

    def have_store(self, store: ObjectStore, endpoint: str = "") -> None:
        """Have the targets in a store; the configuration is written again.

        Args:
            endpoint: of a proxy, by which pgsluice reaches it.
        """
        self.lake_uri = f"{store.scheme}://{BUCKET}/{uuid.uuid4()}"
        self.storage_options = store.at(endpoint) if endpoint else store.options
        self.reading_options = store.options
        self.write()

    def have_spool_in_store(self, store: ObjectStore, endpoint: str = "") -> None:
        """Have the spool in a store, too; the configuration is written again.

        Args:
            endpoint: of a proxy, by which pgsluice reaches it.
        """
        self.reading_spool = store.options
        options = store.at(endpoint) if endpoint else store.options
        text = ", ".join(f'{name} = "{value}"' for name, value in options.items())
        self.spool_section = (
            f'path = "{store.scheme}://{BUCKET}/{uuid.uuid4()}"\n'
            f'state = "state"\nstorage_options = {{ {text} }}'
        )
        self.write()

    def write(self, extra: str = "", spool: str = "") -> None:
        """Write the configuration; the slot's name is the database's, to be unique."""
        store = ", ".join(f'{name} = "{value}"' for name, value in self.storage_options.items())
        sink = (
            f"{self.sink_options}, storage_options = {{ {store} }}" if store else self.sink_options
        )
        spark = "\n".join(f'"{name}" = "{value}"' for name, value in self.spark.items())
        self.path.write_text(
            f"""
[source]
dsn = {json.dumps(self.database.dsn)}
slot = "{self.database.name}"
publications = ["{self.database.name}"]
catalog_poll_s = 1
{self.source}
[spool]
{self.spool_section}
{spool}
[[subscription]]
name = "lake"
sink = {{ type = "delta", path = "{self.lake_uri}/{{schema}}/{{table}}"{sink} }}
{self.subscription_options}
{extra}
[spark]
{spark}
"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""
        )

    @property
    def config(self) -> Config:
        return load_config(self.path)

    @property
    def spool(self) -> Path:
        return self.folder / "spool"

    def delta(self, table: str, schema: str = "public") -> DeltaTable:
        return DeltaTable(self.target(table, schema), storage_options=self.reading_options)

    def target(self, table: str, schema: str = "public") -> str:
        """Where a table's target lies."""
        lake = self.lake_uri if self.storage_options else str(self.lake)
        return f"{lake}/{schema}/{table}"

    def rows(self, table: str, schema: str = "public") -> DeltaRows:
        """The rows of a table's target."""
        return DeltaRows(self.target(table, schema), options=self.reading_options)

    def once(self, **options: Any) -> None:
        """``pgsluice run --once``, in this process."""
        run(self.config, once=True, waits=self.waits, **options)

    def live(self, **options: Any) -> AbstractContextManager[threading.Thread]:
        """``pgsluice run`` while the block runs, in a thread of this process."""
        return beside(
            lambda stop: run(self.config, stop=stop, waits=self.waits, **options), self.errors
        )

    def record(self, subscription: str = "lake") -> SubscriptionRecord:
        return find_record(self.spool_place(), subscription)

    def spool_place(self) -> SpoolPlace:
        """Where the spool is for the test, which no proxy disturbs."""
        place = self.config.spool.place
        if self.reading_spool is None:
            return place
        return replace(place, options=self.reading_spool)

    def table(self, name: str) -> TableRecord:
        """A table's record by its name."""
        return next(table for table in self.record().tables.values() if table.name == name)

    def assert_equal(self, *tables: str, lake: str | None = None) -> None:
        """Every table's rows are the source's rows, by the server's own word."""
        with self.database.connect() as connection:
            for table in tables:
                folder = self.folder / lake / "public" / table if lake else self.rows(table)
                assert_equal(connection, f"public.{table}", folder)

    def copy(self, table: str) -> None:
        """``pgsluice copy CONFIG TABLE``, in this process."""
        assert run_command(["copy", str(self.path), table]) == 0

    # As a process

    def command(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """A pgsluice command, to its end."""
        return subprocess.run(
            [sys.executable, "-m", "pgsluice", *arguments],
            capture_output=True,
            text=True,
            timeout=HANGS_S,
            check=False,
            **options,
        )

    def start(
        self, command: str = "run", *options: str, **environment: str
    ) -> subprocess.Popen[bytes]:
        """``pgsluice run``, as a process with a log beside the configuration."""
        if command == "run":
            options = (*self.run_options, *options)
        with (self.folder / "run.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "pgsluice", command, str(self.path), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
            )
        self.processes.append(process)
        return process

    def log(self) -> str:
        path = self.folder / "run.log"
        return path.read_text() if path.exists() else ""

    def status(self) -> dict[str, Any]:
        done = self.command("status", str(self.path), "--json")
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def wait_until(
        self,
        what: Callable[[], bool],
        *,
        timeout_s: float = HANGS_S,
        why: str | Callable[[], str] = "it came true",
        progress: Callable[[], object] = lambda: None,
    ) -> None:
        """Wait for a condition; what the run said is in the failure.

        Args:
            timeout_s: how long ``progress`` may stay the same; without it, the whole wait.
            why: what is awaited; a function is called when the wait fails.
        """
        deadline, before = 0.0, object()
        asked = time.monotonic()
        while not what():
            took = time.monotonic() - asked
            now = progress()
            if now != before:
                before, deadline = now, time.monotonic() + timeout_s
            alive = [p for p in self.processes if p.poll() is None]
            ended = bool(self.errors) or (bool(self.processes) and not alive)
            if ended or time.monotonic() > deadline:
                errors = "".join("".join(format_exception(error)) for error in self.errors)
                awaited = why if isinstance(why, str) else why()
                pytest.fail(f"never: {awaited}\n{errors}{self.log()[-4000:]}")
            time.sleep(max(0.05, 4 * took))  # asking may not be what the machine is busy with
            asked = time.monotonic()

    def wait_applied(
        self, timeout_s: float = HANGS_S, *, meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        """Wait until all tables are applied through the source's position of now.

        Args:
            meanwhile: called again and again.
        """
        ((now,),) = self.database.execute("SELECT pg_current_wal_flush_lsn()")
        target = _number(str(now))

        def reached() -> bool:
            meanwhile()
            with suppress(FileNotFoundError, SpoolError, StopIteration, KeyError):
                record = self.record()
                if record is None:  # it has not registered yet
                    return False
                tables, reader = record.tables.values(), SpoolReader(self.spool_place())
                if not tables or any(table.is_to_copy for table in tables):
                    return False
                # The file, which follows the segments: by then, catalog refreshes were there, too.
                if reader.spool.frontier_file() < target:
                    return False
                last = max(
                    (one.end for one in reader.all_segments() if one.end <= target), default=0
                )
                return all(table.applied_through >= last for table in tables if table.is_active)
            return False

        self.wait_until(reached, timeout_s=timeout_s, why=f"all applied through {now}")

    def stop(self) -> None:
        """Ask every process of ours to end, and wait for it."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(HANGS_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()


def _number(lsn: str) -> int:
    high, low = lsn.split("/")
    return (int(high, 16) << 32) | int(low, 16)


@pytest.fixture
def pipeline(
    tmp_path: Path, database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MakePipeline]:
    """``pipeline(database, extra="", source="")``: see :class:`Pipeline`.

    Captures of runs in this process are forked (:mod:`tests.support.forked_capture`).
    """
    monkeypatch.setattr("pgsluice.capture.child.start_child", ForkedCapture)
    made: list[Pipeline] = []

    def make(one: Database | None = None, *, extra: str = "", source: str = "") -> Pipeline:
        folder = tmp_path / f"pipeline{len(made)}"
        folder.mkdir()
        made.append(Pipeline(folder, one or database(), extra, source))
        return made[-1]

    yield make
    for one in made:
        one.stop()
