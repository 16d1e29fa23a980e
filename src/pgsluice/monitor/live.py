"""The live view: a table on a terminal, plain lines everywhere else.

A :class:`LiveView` is a metrics callback and a context manager. Events may come from any
thread. On a terminal it redraws one display: capture, each table, and progress bars of copies.
Elsewhere it prints lines for a log: each batch that applied rows, at most one line per second
and subscription; a copy's beginning and end; and each table that is parked or has to be copied.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import assert_never

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from pgsluice.events import (
    BatchFinished,
    CapturePhase,
    CaptureState,
    CopyProgress,
    MetricsEvent,
    TableApplied,
    TableStateChanged,
)
from pgsluice.lsn import Lsn
from pgsluice.monitor.display import Display
from pgsluice.monitor.wording import (
    STATES,
    format_bytes,
    format_count,
    format_seconds,
    state_words,
)

_LINE_EVERY_S = 1.0

TableName = tuple[str, str, str]
"""Subscription, schema, table."""


@dataclass(slots=True)
class _Row:
    """The latest values of one table."""

    state: str = ""
    rows: int = 0
    position: Lsn | None = None
    seconds: float | None = None
    error: str | None = None
    incomplete: tuple[str, ...] = ()


@dataclass(slots=True)
class _Pending:
    """A subscription's batches since its last line."""

    batches: int = 0
    rows: int = 0
    seconds: float = 0.0
    last_line: float = field(default=float("-inf"))
    latest: BatchFinished | None = None


class LiveView(Display):
    """Displays the events of a run.

    Args:
        console: the output; plain lines if it is not a terminal.
        clock: monotonic seconds, which limit how often lines are printed.
    """

    def __init__(
        self, console: Console | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(console or Console())
        self._clock = clock
        self._lock = threading.RLock()
        self._capture: CaptureState | None = None
        self._rows: dict[TableName, _Row] = {}
        self._batches: dict[str, BatchFinished] = {}
        self._pending: dict[str, _Pending] = {}
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[shown]}"),
            console=self._console,
        )
        self._bar_of: dict[TableName, TaskID] = {}
        self._copying: set[TableName] = set()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        with self._lock:
            for name in self._pending:
                self._flush(name)

    def __call__(self, event: MetricsEvent) -> None:
        """Process one event; safe from any thread."""
        with self._lock:
            match event:
                case CaptureState():
                    self._on_capture(event)
                case BatchFinished():
                    self._on_batch(event)
                case TableApplied():
                    self._on_applied(event)
                case TableStateChanged():
                    self._on_state(event)
                case CopyProgress():
                    self._on_copy(event)
                case _:
                    assert_never(event)

    # Event handlers, called with the lock held

    def _on_capture(self, event: CaptureState) -> None:
        previous = self._capture
        self._capture = event
        if event.phase is CapturePhase.STOPPED and event.message is None:
            return  # a clean end is not worth a line
        if previous is None or (previous.phase, previous.message) != (event.phase, event.message):
            reason = f": {event.message}" if event.message else ""
            self._line(f"capture {event.phase}{reason}")

    def _on_batch(self, event: BatchFinished) -> None:
        self._batches[event.subscription] = event
        if self.is_drawn or not event.rows:
            return
        pending = self._pending.setdefault(event.subscription, _Pending())
        pending.batches += 1
        pending.rows += event.rows
        pending.seconds += event.seconds
        pending.latest = event
        if self._clock() - pending.last_line >= _LINE_EVERY_S:
            self._flush(event.subscription)

    def _flush(self, name: str) -> None:
        """Print one line for a subscription's batches since the last line."""
        pending = self._pending[name]
        if pending.latest is None:
            return
        batches = "1 batch" if pending.batches == 1 else f"{pending.batches} batches"
        self._line(
            f"{name}: {_rows(pending.rows)} in {batches}, "
            f"{format_seconds(pending.seconds)}, "
            f"at {pending.latest.position}, {_lag(pending.latest)}"
        )
        self._pending[name] = _Pending(last_line=self._clock())

    def _on_applied(self, event: TableApplied) -> None:
        row = self._row(event)
        row.rows += event.rows
        row.position = event.applied_through
        row.seconds = event.seconds
        if event.rows_skipped:
            self._line(
                f"{event.subscription}: {event.schema}.{event.table} skipped updates and deletes "
                f"of {_rows(event.rows_skipped)} that the target lacks"
            )

    def _on_state(self, event: TableStateChanged) -> None:
        row = self._row(event)
        changed = (row.state, row.error) != (event.state, event.error)
        is_new = event.incomplete != row.incomplete
        row.state, row.error, row.incomplete = event.state, event.error, event.incomplete
        # A copy prints its own lines about the states that it goes through.
        if changed and (event.error or event.state in ("i", "p")):
            title = f"{event.schema}.{event.table}: "
            reason = f": {event.error.removeprefix(title)}" if event.error else ""
            word = STATES.get(event.state, event.state)
            self._line(f"{event.subscription}: {event.schema}.{event.table} {word}{reason}")
        for why in event.incomplete if is_new else ():
            name = f"{event.schema}.{event.table}"
            state = "stands still" if event.state == "u" else "is incomplete"
            self._line(f"{event.subscription}: {name} {state}: {why}")

    def _on_copy(self, event: CopyProgress) -> None:
        name = (event.subscription, event.schema, event.table)
        shown = _rows(event.rows)
        if not self.is_drawn:
            if event.is_done:
                self._copying.discard(name)
                self._line(f"{name[0]}: {name[1]}.{name[2]} copied, {shown}")
            elif name not in self._copying:
                self._copying.add(name)
                about = f", about {event.expected_rows:,} rows" if event.expected_rows else ""
                self._line(f"{name[0]}: {name[1]}.{name[2]} is being copied{about}")
            return
        if name not in self._bar_of:
            self._bar_of[name] = self._bars.add_task(f"copy {name[1]}.{name[2]}", shown=shown)
        # The estimate may be too small, but a bar must not be full before the copy has ended.
        total = event.rows if event.is_done else event.expected_rows
        if total is not None and not event.is_done:
            total = max(total, event.rows + 1)
        self._bars.update(
            self._bar_of[name],
            completed=max(event.rows, 1) if event.is_done else event.rows,
            total=max(total, 1) if total is not None else None,
            shown=f"{shown}, done" if event.is_done else shown,
        )

    def _row(self, event: TableApplied | TableStateChanged) -> _Row:
        return self._rows.setdefault((event.subscription, event.schema, event.table), _Row())

    def _line(self, text: str) -> None:
        if not self.is_drawn:
            self.note(text)

    # The display, also called by rich's thread

    def render(self) -> RenderableType:
        """What a terminal shows."""
        with self._lock:
            parts: list[RenderableType] = []
            if self._capture is not None:
                parts.append(_capture_line(self._capture))
            if self._rows or self._batches:
                parts.append(self._table())
            parts += (
                Text(f"  {key[1]}.{key[2]}: {row.error}", style="red")
                for key, row in self._rows.items()
                if row.error
            )
            parts += (
                Text(f"  {key[1]}.{key[2]}: {why}", style="yellow")
                for key, row in self._rows.items()
                for why in row.incomplete
            )
            if self._bar_of:
                parts.append(self._bars.get_renderable())
            return Group(*parts)

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False)
        table.add_column("table")
        table.add_column("state")
        for title in ("rows", "position", "lag", "batch"):
            table.add_column(title, justify="right")
        for name, batch in self._batches.items():
            table.add_row(
                Text(name, style="bold"),
                "",
                format_count(batch.rows),
                str(batch.position),
                _lag(batch),
                format_seconds(batch.seconds),
            )
            self._table_rows(table, name)
        for name in sorted({key[0] for key in self._rows} - set(self._batches)):
            table.add_row(Text(name, style="bold"), "", "", "", "", "")
            self._table_rows(table, name)
        return table

    def _table_rows(self, table: Table, subscription: str) -> None:
        for key in sorted(key for key in self._rows if key[0] == subscription):
            row = self._rows[key]
            table.add_row(
                Text(f"  {key[1]}.{key[2]}"),
                Text(
                    state_words(row.state, is_incomplete=bool(row.incomplete)),
                    style="red" if row.state == "p" else "yellow" if row.incomplete else "",
                ),
                format_count(row.rows),
                "-" if row.position is None else str(row.position),
                "",
                format_seconds(row.seconds),
            )


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{format_count(count)} rows"


def _lag(batch: BatchFinished) -> str:
    if not batch.lag_bytes:
        return "no lag"
    return f"{format_bytes(batch.lag_bytes)}, {format_seconds(batch.lag_s)} behind"


def _capture_line(state: CaptureState) -> Text:
    ok = state.phase is CapturePhase.STREAMING
    text = Text(f"capture {state.phase}", style="green" if ok else "yellow")
    if state.frontier is not None:
        text.append(f"  at {state.frontier}", style="default")
    if state.lag_bytes is not None:
        text.append(f"  {format_bytes(state.lag_bytes)} behind", style="default")
    if state.spool_bytes is not None:
        text.append(f"  spool {format_bytes(state.spool_bytes)}", style="default")
    if state.message:
        text.append(f"  {state.message}", style="yellow")
    return text
