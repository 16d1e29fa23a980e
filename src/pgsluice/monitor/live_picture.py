"""Draws the live view on a terminal: a pure function of the latest values, the time and the size.

Problems come first, even if there are more tables than lines. Then come the tables that are not
ready and those that changed last; the others are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pgsluice.events import (
    BatchFinished,
    CapturePhase,
    CaptureState,
    CopiesProgress,
    CopyAmount,
    CopyProgress,
)
from pgsluice.lsn import Lsn
from pgsluice.monitor.wording import (
    counted,
    format_amount,
    format_bytes,
    format_count,
    format_seconds,
    state_words,
)
from pgsluice.shown import shown, shown_lines, without_table

_FEWEST_LINES = 12
_BAR_WIDTH, _LEAST_BAR_WIDTH = 30, 8
_LEAST_NAME_WIDTH = 12
_BAR_AND_TIME_WIDTH = 36
"""The width of a short bar with the remaining time; longer titles are truncated."""
_COLUMNS = {"rows": 0, "position": 90, "lag": 50, "batch": 100}
"""The columns with values of a batch, and the minimum width of the terminal for each."""

TableName = tuple[str, str, str]
"""The columns for subscription, schema and table."""


@dataclass(slots=True)
class TableView:
    """The latest values of one table.

    Attributes:
        rows: the number of copied rows, and of changes applied since.
        copy: the progress of the running copy; None if there is none.
        changed: a counter of events over all tables, at the table's last event.
        copy_words: see :class:`pgsluice.events.TableStateChanged`.
        is_behind: it lacks changes from before the subscription's position.
    """

    state: str = ""
    rows: int = 0
    position: Lsn | None = None
    seconds: float | None = None
    error: str | None = None
    incomplete: tuple[str, ...] = ()
    copy: CopyProgress | None = None
    changed: int = 0
    copy_words: str = ""
    is_behind: bool = False


@dataclass(slots=True)
class RunView:
    """The latest values of a run.

    Attributes:
        step: the run's step before changes are applied, or what it waits for; may be empty.
        copies: the progress of all copies of a subscription that copies tables.
    """

    capture: CaptureState | None = None
    step: str = ""
    batches: dict[str, BatchFinished] = field(default_factory=dict)
    tables: dict[TableName, TableView] = field(default_factory=dict)
    copies: dict[str, CopiesProgress] = field(default_factory=dict)


def picture(view: RunView, console: Console, at: datetime) -> RenderableType:
    """The whole picture, at most as high as the console."""
    height = max(console.height, _FEWEST_LINES) - 1
    parts: list[RenderableType] = []
    if view.capture is not None:
        parts.append(_capture_line(view.capture, at))
    if view.step:
        parts.append(Text(f"{shown(view.step)} …", style="yellow"))
    parts += _fitting(list(_problems(view)), console, height // 3)
    parts += _fitting(list(_copies(view, console.width)), console, height // 4)
    if view.tables or view.batches:
        parts.append(_table(view, console.width, height - _lines(parts, console) - 1))
    return Group(*parts)


def _lines(parts: Sequence[RenderableType], console: Console) -> int:
    return sum(len(console.render_lines(part, pad=False)) for part in parts)


def _fitting(parts: list[RenderableType], console: Console, limit: int) -> list[RenderableType]:
    """The first parts that fit into so many lines, and the number of the remaining ones."""
    fitting: list[RenderableType] = []
    left = max(limit, 2)
    for number, part in enumerate(parts):
        lines = _lines([part], console)
        is_last = number == len(parts) - 1
        if lines > left - (0 if is_last else 1) and fitting:
            return [*fitting, Text(f"  … and {len(parts) - number} more")]
        fitting.append(part)
        left -= lines
    return fitting


def _problems(view: RunView) -> Iterator[RenderableType]:
    """Why tables are parked, then the changes that targets do not get."""
    for key, table in view.tables.items():
        if table.error:
            yield _reason(key, table.error, "red")
    for key, table in view.tables.items():
        for why in table.incomplete:
            yield _reason(key, why, "yellow")


def _reason(key: TableName, why: str, style: str) -> RenderableType:
    title = shown(f"{key[1]}.{key[2]}")
    why = without_table(why, title)
    return Padding(Text(shown_lines(f"{title}: {why}"), style=style), (0, 0, 0, 2))


def _copies(view: RunView, width: int) -> Iterator[RenderableType]:
    """A bar for all copies of a subscription, and one for each running copy."""
    for name, copies in view.copies.items():
        if copies.all_tables:
            tables = counted(copies.all_tables, "table", copies.tables)
            yield _bar(f"{name}: {tables}", copies.amount, width)
        for waits_for in copies.waits_for:
            yield Text(shown(f"  tables wait for {waits_for}"), style="yellow")
    for key, table in view.tables.items():
        if table.copy is not None:
            yield _bar(f"  {key[1]}.{key[2]}", table.copy.amount, width)


def _bar(title: str, amount: CopyAmount, width: int) -> Table:
    """A bar in one line, with as many figures as fit into the width of the terminal."""
    text = Text(shown(title), overflow="ellipsis", no_wrap=True)
    text.truncate(max(width - _BAR_AND_TIME_WIDTH, width // 3), overflow="ellipsis")
    room = width - text.cell_len - len("  ")
    words = format_amount(amount)
    bar_width = min(max(room - len(words), _LEAST_BAR_WIDTH), _BAR_WIDTH)
    line = Table.grid(padding=(0, 1))
    # A bar must not be full before the copy has ended.
    bar = ProgressBar(max(amount.all_bytes, amount.bytes + 1), amount.bytes, width=bar_width)
    line.add_row(text, bar, Text(format_amount(amount, room - bar_width), no_wrap=True))
    return line


def _table(view: RunView, width: int, limit: int) -> Table:
    """The subscriptions and their tables, with at most so many lines below the header."""
    table = Table(box=None, pad_edge=False)
    table.add_column("table", min_width=_LEAST_NAME_WIDTH)  # longer names are cut off
    table.add_column("state", no_wrap=True)
    columns = [name for name, least_width in _COLUMNS.items() if width >= least_width]
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)

    def add(name: str, style: str = "", state: Text | str = "", **values: str) -> None:
        title = Text(shown(name), style=style, no_wrap=True, overflow="ellipsis")
        table.add_row(title, state, *(values.get(column, "") for column in columns))

    names = [*view.batches, *sorted({key[0] for key in view.tables} - set(view.batches))]
    room = max(limit - len(names), len(names))
    for number, name in enumerate(names):
        values = {}
        if (batch := view.batches.get(name)) is not None:
            values = {
                "rows": format_count(batch.rows),
                "position": str(batch.position),
                "lag": lag_of(batch).removesuffix(" behind"),
                "batch": format_seconds(batch.seconds),
            }
        add(name, "bold", **values)
        room -= _add_tables(add, view, name, room // (len(names) - number))
    return table


def _add_tables(add: Callable[..., None], view: RunView, subscription: str, limit: int) -> int:
    """Add a subscription's tables; returns the number of their lines."""
    mine = [(key, row) for key, row in view.tables.items() if key[0] == subscription]
    chosen = mine
    if len(mine) > limit:
        chosen = sorted(mine, key=_interest)[: max(limit - 1, 0)]
    for key, row in sorted(chosen, key=lambda entry: entry[0]):
        style = "red" if row.state == "p" else "yellow" if row.incomplete else ""
        add(
            f"  {key[1]}.{key[2]}",
            state=Text(_words(row), style=style),
            rows=format_count(row.rows),
            position="-" if row.position is None else str(row.position),
            batch=format_seconds(row.seconds),
        )
    if len(chosen) == len(mine):
        return len(mine)
    shown_keys = {key for key, _ in chosen}
    counts = Counter(_words(row) for key, row in mine if key not in shown_keys)
    others = ", ".join(f"{count} {words}" for words, count in sorted(counts.items()))
    add(f"  … and {others}")
    return len(chosen) + 1


def _interest(entry: tuple[TableName, TableView]) -> tuple[bool, bool, int]:
    """A sort key: parked tables, then those that are not ready, then the last changed ones."""
    row = entry[1]
    return row.state != "p", _state(row) == "r" and not row.incomplete, -row.changed


def _words(row: TableView) -> str:
    return state_words(_state(row), row.incomplete)


def _state(row: TableView) -> str:
    """A table's state, as :meth:`~pgsluice.monitor.status.SubscriptionStatus.state_of` has it."""
    if row.copy is not None:  # which a run does not report as a state
        return "d"
    return "f" if row.state == "r" and (row.is_behind or row.error) else row.state


def _capture_line(state: CaptureState, at: datetime) -> Text:
    ok = state.phase is CapturePhase.STREAMING
    text = Text(f"{at:%H:%M:%S}  ", style="default")
    text.append(f"capture {state.phase}", style="green" if ok else "yellow")
    if state.frontier is not None:
        text.append(f"  at {state.frontier}", style="default")
    if state.lag_bytes is not None:
        text.append(f"  {format_bytes(state.lag_bytes)} behind", style="default")
    if state.spool_bytes is not None:
        text.append(f"  spool {format_bytes(state.spool_bytes)}", style="default")
    if state.times > 1:
        text.append(f"  {state.times} times in a row:", style="yellow")
    if state.message:
        text.append(shown_lines(f"  {state.message}"), style="yellow")
    return text


def lag_of(batch: BatchFinished) -> str:
    """Text of how far a subscription is behind after a batch: bytes of WAL and time."""
    if not batch.lag_bytes:
        return "no lag"
    return f"{format_bytes(batch.lag_bytes)}, {format_seconds(batch.lag_s)} behind"
