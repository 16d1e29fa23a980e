"""Runs the steps of the demo, displays their progress, and compares the tables at the end.

On a terminal one table is redrawn: the shop's changes so far, and the state, changes, position
and lag of each table, read as ``pgsluice status`` reads them. Elsewhere plain lines are
printed every few seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pgsluice.config import Config
from pgsluice.demo.shop import TABLES, Workload
from pgsluice.demo.stage import Stage
from pgsluice.errors import PgsluiceError
from pgsluice.lsn import Lsn
from pgsluice.monitor.display import Display
from pgsluice.monitor.status import Status, read_status
from pgsluice.monitor.wording import STATES, format_bytes, format_count, format_seconds
from pgsluice.shown import shown, shown_lines
from pgsluice.spool import TableRecord, TableState
from pgsluice.verification import Comparison, compare, one_snapshot

_SHOWN_HASH = 8
"""The table has to fit into 80 columns; the whole hashes are compared."""
_POLL_S = 0.5
_LINE_EVERY_S = 3.0
_TIMEOUT_S = 300.0
_UNCOPIED = (TableState.INITIALISE, TableState.DATA_COPY)


class Show(Display):
    """Runs the steps of the demo."""

    def __init__(self, stage: Stage, console: Console) -> None:
        super().__init__(console)
        self._stage = stage
        self._step = ""
        self._step_begun = time.monotonic()
        self._last_line = float("-inf")
        self._line_before = ""
        self._status: Status | None = None
        self._workload: Workload | None = None
        self._config: Config | None = None
        self._is_busy = False

    # Steps

    def start_store(self) -> None:
        """Start the object store."""
        with self._step_named("an object store starts; its first start installs it"):
            self._stage.start_store()
        self._say("an object store runs, S3 in memory")

    def open_shop(self) -> None:
        """Start PostgreSQL, create the shop's tables, and fill them."""
        with self._step_named("PostgreSQL starts"):
            self._workload = self._stage.start_server()
            self._workload.create()
            rows = self._workload.seed_rows()
        version = self._stage.server_version
        self._say(f"PostgreSQL {version} runs, with {len(TABLES)} tables, {rows:,} rows")

    def start_replication(self) -> None:
        """Start ``pgsluice run``, and wait until every table has been copied."""
        self._config = self._stage.write_config()
        with self._step_named("pgsluice run starts: capture, Spark, the initial copy"):
            self._stage.start_run()
            self._wait(self._is_copied, "some tables are not copied to Delta yet")
        self._say(f"every table is copied to Delta, {self._took()} after the start")

    def send_first_change(self) -> None:
        """Make one change and wait for it, so that streaming has begun before many follow."""
        assert self._workload is not None
        with self._step_named("a first change travels from PostgreSQL to Delta"):
            self._workload.do_one()
            self._wait_for(self._flush_lsn(), "the first change is not in Delta yet")
        self._say(f"a first change has arrived after {self._took()}, with the start of the query")

    def be_busy(self, seconds: float) -> None:
        """Run the workload while its changes are replicated."""
        workload = self._workload
        assert workload is not None
        stop = threading.Event()
        with (
            self._step_named(f"the shop is busy for about {seconds:g} s"),
            ThreadPoolExecutor(1) as pool,
        ):
            working = pool.submit(workload.run, seconds, stop)
            self._is_busy = True
            try:
                while not working.done():
                    self._stage.check_run()
                    self._poll()
                    time.sleep(_POLL_S)
            finally:
                self._is_busy = False
                stop.set()
        self._say(f"the shop has closed: {_counts(working.result())}")

    def catch_up(self) -> Lsn:
        """Wait until everything in the source is in the lake, and return the position."""
        target = self._flush_lsn()
        with self._step_named(f"the lake catches up to {target}"):
            self._wait_for(target, f"the Delta tables have not reached position {target} yet")
        self._say(f"the lake has caught up to {target} in {self._took()}")
        return target

    def end_replication(self) -> None:
        """End ``pgsluice run`` by SIGTERM, as a service manager would."""
        with self._step_named("pgsluice run ends on SIGTERM"):
            code = self._stage.stop_run()
        self._say(f"pgsluice run has ended on SIGTERM with exit code {code}")

    def parked_tables(self) -> list[str]:
        """A line for each parked table, with the reason."""
        tables = _tables_of(self._status)
        return [f"{table.title} is parked: {table.error}" for table in tables if table.is_parked]

    # Waiting

    def _flush_lsn(self) -> Lsn:
        with psycopg.connect(self._stage.dsn, autocommit=True) as connection:
            row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        return Lsn.parse(row[0])

    def _wait(self, condition: Callable[[Status], bool], problem: str) -> None:
        """Read the status until the condition holds; an error if it does not in time."""
        while not condition(self._poll()):
            self._stage.check_run()
            if time.monotonic() - self._step_begun > _TIMEOUT_S:
                raise PgsluiceError(
                    f"the demo has waited for {_TIMEOUT_S:.0f} s: {problem}",
                    hint="resolve what the end of the log of `pgsluice run` says:\n"
                    f"{self._stage.log_tail()}",
                )
            time.sleep(_POLL_S)

    def _wait_for(self, target: Lsn, problem: str) -> None:
        """Wait until everything up to the target was received, and applied to every table."""
        self._wait(lambda status: self._is_caught_up(status, target), problem)

    def _poll(self) -> Status:
        assert self._config is not None
        self._status = read_status(self._config)
        if not self.is_drawn and time.monotonic() - self._last_line >= _LINE_EVERY_S:
            self._last_line = time.monotonic()
            for line in self._lines():
                if line != self._line_before:
                    self.note(line)
                self._line_before = line
        return self._status

    def _is_copied(self, status: Status) -> bool:
        tables = _tables_of(status)
        return len(tables) >= len(TABLES) and not any(table.state in _UNCOPIED for table in tables)

    def _is_caught_up(self, status: Status, target: Lsn) -> bool:
        frontier, position = status.spool.frontier, status.spool.position
        if frontier is None or position is None or frontier < target:
            return False
        return all(
            table.applied_through >= position or table.is_parked for table in _tables_of(status)
        )

    # Printing

    @contextmanager
    def _step_named(self, name: str) -> Iterator[None]:
        self._step, self._step_begun = name, time.monotonic()
        if not self.is_drawn:
            self._say(f"{name} …")
        yield

    def _say(self, text: str) -> None:
        self._last_line = time.monotonic()
        self.note(text)

    def _took(self) -> str:
        return format_seconds(time.monotonic() - self._step_begun)

    def _lines(self) -> Iterator[str]:
        """The lines that are printed every few seconds without a terminal."""
        counts = self._workload.counts if self._workload is not None else {}
        if counts and self._is_busy:
            yield f"  shop: {_counts(counts)}"
        tables = _tables_of(self._status)
        if self._status is None or not tables:
            return
        subscription = self._status.subscriptions[0]
        copied = sum(table.state not in _UNCOPIED for table in tables)
        if copied < len(TABLES):
            yield f"  lake: {copied} of {len(TABLES)} tables copied"
        else:
            changes = sum(table.rows for table in tables)
            yield (
                f"  lake: {format_count(changes)} changes applied, at {subscription.position}, "
                f"{format_bytes(subscription.lag_bytes)} behind"
            )

    # The table on a terminal; rendered by rich's thread

    def render(self) -> RenderableType:
        """What a terminal shows."""
        parts: list[RenderableType] = [Text(f"{self._step}  ({self._took()})", style="bold")]
        counts = self._workload.counts if self._workload is not None else {}
        if counts:
            parts.append(Text(f"shop: {_counts(counts)}", style="cyan"))
        if (status := self._status) is not None and _tables_of(status):
            parts.append(_table(status))
        return Group(*parts)


def _table(status: Status) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("table")
    table.add_column("state")
    for title in ("changes applied", "position", "lag", "last merge"):
        table.add_column(title, justify="right")
    for row in _tables_of(status):
        table.add_row(
            Text(row.title),
            Text(STATES.get(row.state, row.state), style="red" if row.is_parked else ""),
            format_count(row.rows),
            str(row.applied_through),
            _lag(status, row),
            format_seconds(row.merge_s or None),
        )
    return table


def _lag(status: Status, table: TableRecord) -> str:
    """The server's flush LSN minus the table's position; ``-`` if everything is applied."""
    position, flush = status.spool.position, status.source.flush_lsn
    if position is not None and table.applied_through >= position:
        return "-"
    return format_bytes(None if flush is None else max(flush - table.applied_through, 0))


def _tables_of(status: Status | None) -> tuple[TableRecord, ...]:
    """The tables of the demo's only subscription."""
    return status.subscriptions[0].tables if status is not None and status.subscriptions else ()


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {format_count(count)}" for name, count in sorted(counts.items()))


def prove(stage: Stage) -> list[Comparison]:
    """Compare every table with its Delta table; nothing may change the source meanwhile.

    PostgreSQL hashes the source's tables, all in one snapshot. The targets are hashed by code that
    shares nothing with the code that wrote them (:mod:`pgsluice.verification`).
    """
    with psycopg.connect(stage.dsn, autocommit=True) as connection, one_snapshot(connection):
        return [compare(connection, title, stage.rows(title)) for title in TABLES]


def show_proof(
    comparisons: Sequence[Comparison], position: Lsn, server_version: str, console: Console
) -> None:
    """Print the comparisons as a table, and the differences below it."""
    table = Table(
        title=f"PostgreSQL {server_version} and Delta at {position}",
        box=box.SIMPLE,
        pad_edge=False,
    )
    table.add_column("table", no_wrap=True)
    for title in ("rows", "in Delta"):
        table.add_column(title, justify="right", no_wrap=True)
    for title in ("hash", "of Delta", ""):
        table.add_column(title, no_wrap=True)
    for comparison in comparisons:
        table.add_row(
            Text(shown(comparison.table)),
            format_count(comparison.source.rows),
            format_count(comparison.target.rows),
            comparison.source.content_hash[:_SHOWN_HASH],
            comparison.target.content_hash[:_SHOWN_HASH],
            Text("equal", style="green") if comparison.equal else Text("DIFFERS", style="bold red"),
        )
    console.print(table)
    for comparison in comparisons:
        if not comparison.equal:
            console.print(Text(shown_lines(str(comparison)), style="red"), soft_wrap=True)
    equal = sum(comparison.equal for comparison in comparisons)
    if equal == len(comparisons):
        console.print(f"All {equal} tables are equal.", style="green", highlight=False)
    else:
        console.print(f"{equal} of {len(comparisons)} tables are equal.", style="bold red")
