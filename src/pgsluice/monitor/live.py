"""The live view: a table on a terminal, lines of a log everywhere else.

A :class:`LiveView` is a metrics callback and a context manager. Events may come from any
thread. On a terminal it redraws one display (:mod:`pgsluice.monitor.live_picture`). Elsewhere it
prints lines for a log (:mod:`pgsluice.log_lines`): what a run does at its start; what batches
applied, one line a minute and subscription, or one for each batch with ``debug``; a copy's
beginning and end, and every ten seconds how far it is; and each change of state, for the worse and
back: of capture, of batches, and of tables.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import assert_never

from rich.console import Console, RenderableType

from pgsluice.events import (
    INSERTS_ONLY,
    BatchFailed,
    BatchFinished,
    CapturePhase,
    CaptureState,
    CopiesProgress,
    CopyProgress,
    MetricsEvent,
    RunStep,
    TableApplied,
    TableStateChanged,
)
from pgsluice.hints import with_config
from pgsluice.log_lines import Level, LogLine
from pgsluice.lsn import Lsn
from pgsluice.monitor.display import Display
from pgsluice.monitor.live_picture import RunView, TableName, TableView, lag_of, picture
from pgsluice.monitor.wording import (
    STATES,
    WAITS,
    as_word,
    counted,
    format_amount,
    format_bytes,
    format_seconds,
)
from pgsluice.shown import shown, shown_lines

_LINE_EVERY_S = 60.0
_PROGRESS_EVERY_S = 10.0
"""How often to print the progress of a copy, in seconds."""
_SAID_TIMES = tuple(10**power for power in range(1, 10))


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
        formatted: makes the text of a line.
        debug: print a line for each batch.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        formatted: Callable[[LogLine], str] = lambda line: shown_lines(line.text),
        debug: bool = False,
    ) -> None:
        super().__init__(console)
        self._clock = clock
        self._formatted = formatted
        self._line_every_s = 0.0 if debug else _LINE_EVERY_S
        self._batch_level = Level.DEBUG if debug else Level.INFO
        self._failing: set[str] = set()
        """The subscriptions whose last batch failed."""
        self._lock = threading.RLock()
        self._view = RunView()
        self._pending: dict[str, _Pending] = {}
        self._events = 0
        self._said: tuple[CapturePhase, str | None, int] | None = None
        """The subject of the last line about capture."""
        self._trouble: CaptureState | None = None
        self._progress_at: dict[str, float] = {}
        """When the last line about the progress of a copy, or of all, was printed."""

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        with self._lock:
            for name in self._pending:
                self._flush(name)

    def __call__(self, event: MetricsEvent) -> None:
        """Process one event; thread-safe."""
        with self._lock:
            self._events += 1
            match event:
                case CaptureState():
                    self._on_capture(event)
                case RunStep():
                    self._view.step = event.doing
                    if event.doing:
                        self._line(LogLine(Level.INFO, event.room, event.doing, "step"))
                case BatchFinished():
                    self._on_batch(event)
                case BatchFailed():
                    self._failing.add(event.subscription)  # the log says why
                case TableApplied():
                    self._on_applied(event)
                case TableStateChanged():
                    self._on_state(event)
                case CopyProgress():
                    self._on_copy(event)
                case CopiesProgress():
                    self._on_copies(event)
                case _:
                    assert_never(event)

    def render(self) -> RenderableType:
        """The content of a terminal; also called by rich's thread."""
        with self._lock:
            return picture(self._view, self._console, datetime.now().astimezone())

    # Event handlers, called with the lock held

    def _on_capture(self, event: CaptureState) -> None:
        self._view.capture = event
        for name in self._pending:
            self._flush_if_due(name)
        if event.phase is CapturePhase.STOPPED and event.message is None:
            return  # a clean end is not worth a line
        now = (event.phase, event.message, event.times)
        if now == self._said or self._is_repetition(event):
            return
        self._said = now
        reason = f": {event.message}" if event.message else ""
        often = f", {event.times} times in a row" if event.times > 1 else ""
        text = f"capture {event.phase}{often}{reason}"
        level = Level.INFO if event.phase is CapturePhase.STREAMING else Level.WARNING
        frontier = None if event.frontier is None else str(event.frontier)
        word = event.phase.name.lower()
        self._line(LogLine(level, "capture", text, word, lsn=frontier, cause=event.message))

    def _is_repetition(self, event: CaptureState) -> bool:
        """Whether this event only repeats a reported problem, or is a moment between two
        repetitions.

        A problem is reported the first, the tenth, the hundredth time and so on.
        """
        if event.phase is CapturePhase.RECONNECTING:
            self._trouble = event
            return event.times > 1 and event.times not in _SAID_TIMES
        trouble = self._trouble
        if trouble is None or trouble.times == 1:
            return False
        return (event.frontier or Lsn(0)) <= (trouble.frontier or Lsn(0))

    def _on_batch(self, event: BatchFinished) -> None:
        self._view.batches[event.subscription] = event
        for (subscription, *name), row in self._view.tables.items():
            if subscription == event.subscription:
                row.is_behind = tuple(name) in event.behind
        if event.subscription in self._failing:
            self._failing.discard(event.subscription)
            text = f"{shown(event.subscription)}: batches are applied again"
            self._line(LogLine(Level.INFO, "batches", text, "recovered", event.subscription))
        if self.is_drawn or not event.rows:
            return
        pending = self._pending.setdefault(event.subscription, _Pending())
        pending.batches += 1
        pending.rows += event.rows
        pending.seconds += event.seconds
        pending.latest = event
        self._flush_if_due(event.subscription)

    def _flush_if_due(self, name: str) -> None:
        if self._clock() - self._pending[name].last_line >= self._line_every_s:
            self._flush(name)

    def _flush(self, name: str) -> None:
        """Print one line for a subscription's batches since the last line."""
        pending = self._pending[name]
        if pending.latest is None:
            return
        batches = "1 batch" if pending.batches == 1 else f"{pending.batches} batches"
        text = (
            f"{shown(name)}: {counted(pending.rows, 'row')} in {batches}, "
            f"{format_seconds(pending.seconds)}, "
            f"at {pending.latest.position}, {lag_of(pending.latest)}"
        )
        facts = {
            "batches": pending.batches,
            "rows": pending.rows,
            "seconds": round(pending.seconds, 3),
            "lag_bytes": pending.latest.lag_bytes,
            "lag_s": round(pending.latest.lag_s, 3),
        }
        lsn = str(pending.latest.position)
        self._line(
            LogLine(self._batch_level, "batches", text, "batches", name, lsn=lsn, facts=facts)
        )
        self._pending[name] = _Pending(last_line=self._clock())

    def _on_applied(self, event: TableApplied) -> None:
        row = self._row(event)
        row.rows += event.rows
        row.position, row.seconds = event.applied_through, event.seconds
        if event.rows_skipped:
            text = (
                f"{_title(event)} skipped updates and deletes "
                f"of {counted(event.rows_skipped, 'row')} that the target lacks"
            )
            self._of_table(event, Level.WARNING, text, "skipped_rows")

    def _on_state(self, event: TableStateChanged) -> None:
        row = self._row(event)
        error = None if event.error is None else with_config(event.error)
        incomplete = tuple(with_config(why) for why in event.incomplete)
        changed = (row.state, row.error) != (event.state, error)
        is_back = row.error is not None and error is None and event.state in ("f", "r")
        is_new = incomplete != row.incomplete
        is_again = bool(event.copy_words) and event.copy_words != row.copy_words
        row.copy_words = event.copy_words
        row.state, row.error, row.incomplete = event.state, error, incomplete
        if event.state != "d":
            row.copy = None
        title = _title(event)
        if is_again:
            self._of_table(event, Level.INFO, f"{title}: {event.copy_words}", "copy_again")
        if is_back:
            self._of_table(event, Level.INFO, f"{title} is applied again", "recovered")
        # A copy prints its own lines about the states that it goes through.
        if changed and (error or event.state == "p" or (event.state == "i" and not is_again)):
            name = shown(f"{event.schema}.{event.table}: ")
            reason = f": {error.removeprefix(name)}" if error else ""
            words = WAITS if event.state in ("f", "r") else STATES.get(event.state, event.state)
            level = Level.WARNING if error else Level.INFO
            self._of_table(event, level, f"{title} {words}{reason}", as_word(words), error)
        for why in incomplete if is_new else ():
            is_gap = not why.startswith(INSERTS_ONLY)
            state = "unpublished:" if event.state == "u" else "incomplete:" if is_gap else "gets"
            self._of_table(event, Level.WARNING, f"{title} {state} {why}", "incomplete", why)

    def _on_copy(self, event: CopyProgress) -> None:
        row, amount = self._row(event), event.amount
        title = _title(event)
        if event.is_done:
            row.rows, row.copy = amount.rows, None
            self._progress_at.pop(title, None)
            text = f"{title} copied, {counted(amount.rows, 'row')}"
            self._of_table(event, Level.INFO, text, "copied")
            return
        if row.copy is None:
            size = f"{format_bytes(amount.all_bytes)} in {counted(amount.all_ranges, 'range')}"
            self._of_table(event, Level.INFO, f"{title} is being copied, {size}", "copying")
            self._progress_at[title] = self._clock()
        elif self._is_progress_due(title):
            text = f"{title}: {format_amount(amount)}"
            self._of_table(event, Level.INFO, text, "copy_progress")
        row.copy = event

    def _on_copies(self, event: CopiesProgress) -> None:
        name = event.subscription
        if event.tables >= event.all_tables and not event.waits_for:
            self._view.copies.pop(name, None)
            self._progress_at.pop(name, None)
            return
        if name not in self._view.copies:
            self._progress_at[name] = self._clock()
        elif self._is_progress_due(name):
            if event.all_tables:
                tables = counted(event.all_tables, "table", event.tables)
                text = f"{shown(name)}: copies, {tables}, {format_amount(event.amount)}"
                self._line(LogLine(Level.INFO, "copies", text, "copies", subscription=name))
            for waits_for in event.waits_for:
                text = f"{shown(name)}: tables wait for {waits_for}"
                self._line(LogLine(Level.INFO, "copies", text, "waiting", subscription=name))
        self._view.copies[name] = event

    def _is_progress_due(self, title: str) -> bool:
        now = self._clock()
        is_due = now >= self._progress_at.get(title, now) + _PROGRESS_EVERY_S
        if is_due:
            self._progress_at[title] = now
        return is_due

    def _row(self, event: TableApplied | TableStateChanged | CopyProgress) -> TableView:
        name: TableName = (event.subscription, event.schema, event.table)
        row = self._view.tables.setdefault(name, TableView())
        row.changed = self._events
        return row

    def _of_table(
        self,
        event: TableApplied | TableStateChanged | CopyProgress,
        level: Level,
        text: str,
        word: str,
        cause: str | None = None,
    ) -> None:
        """Print a line about a table."""
        room = "copies" if isinstance(event, CopyProgress) else "tables"
        lsn = str(event.applied_through) if isinstance(event, TableApplied) else None
        name = f"{event.schema}.{event.table}"
        self._line(LogLine(level, room, text, word, event.subscription, name, lsn, cause))

    def _line(self, line: LogLine) -> None:
        if not self.is_drawn:
            cause = None if line.cause is None else with_config(line.cause)
            line = replace(line, text=with_config(line.text), cause=cause)
            self.print_line(self._formatted(line))


def _title(event: TableApplied | TableStateChanged | CopyProgress) -> str:
    return shown(f"{event.subscription}: {event.schema}.{event.table}")
