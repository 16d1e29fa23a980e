"""The live view: plain lines without a terminal, one display on it."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console

from pgsluice.events import (
    BatchFailed,
    BatchFinished,
    CapturePhase,
    CaptureState,
    CopiesProgress,
    CopyAmount,
    CopyProgress,
    MetricsEvent,
    RunStep,
    TableApplied,
    TableStateChanged,
)
from pgsluice.log_lines import VARIABLE, format_line, log_to_stderr
from pgsluice.lsn import Lsn
from pgsluice.monitor.live import LiveView
from pgsluice.spool import Copied, Partitions, TableRecord, TableState
from pgsluice.system.processes import Part, say_it_ended

_AT = Lsn.parse("0/1A0")


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lines(clock: Clock) -> Callable[..., list[str]]:
    """``lines(*events)``: what a view without a terminal prints; a number moves the clock."""

    def show(*events: MetricsEvent | float) -> list[str]:
        file = io.StringIO()
        with LiveView(Console(file=file, width=40), clock=clock) as view:
            for event in events:
                if isinstance(event, int | float):
                    clock.now += event
                else:
                    view(event)
        return file.getvalue().splitlines()

    return show


Lines = Callable[..., list[str]]


def _batch(rows: int, lag_bytes: int = 0, lag_s: float = 0.0) -> BatchFinished:
    return BatchFinished("lake", _AT, rows, 0.25, 1, lag_bytes, lag_s)


def test_a_batch_prints_a_line(lines: Lines) -> None:
    assert lines(_batch(1234)) == ["lake: 1,234 rows in 1 batch, 0.25 s, at 0/1A0, no lag"]


def test_lag_is_shown_in_bytes_and_seconds(lines: Lines) -> None:
    assert lines(_batch(1, 2048, 1.5)) == [
        "lake: 1 row in 1 batch, 0.25 s, at 0/1A0, 2.0 KiB, 1.50 s behind"
    ]


def test_batches_within_a_minute_share_a_line_and_none_is_lost(
    lines: Lines,
) -> None:
    assert lines(_batch(1), _batch(2), _batch(3), 60.0, _batch(4), _batch(5)) == [
        "lake: 1 row in 1 batch, 0.25 s, at 0/1A0, no lag",
        "lake: 9 rows in 3 batches, 0.75 s, at 0/1A0, no lag",
        "lake: 5 rows in 1 batch, 0.25 s, at 0/1A0, no lag",
    ]


def test_a_summary_does_not_wait_for_another_batch(lines: Lines) -> None:
    streaming = CaptureState(CapturePhase.STREAMING, _AT, _AT)
    assert lines(streaming, _batch(1), _batch(2), 59.0, streaming, 1.0, streaming)[1:] == [
        "lake: 1 row in 1 batch, 0.25 s, at 0/1A0, no lag",
        "lake: 2 rows in 1 batch, 0.25 s, at 0/1A0, no lag",
    ]


def test_to_find_errors_each_batch_prints_a_line() -> None:
    file = io.StringIO()
    with LiveView(Console(file=file, width=40), clock=Clock(), debug=True) as view:
        for rows in (1, 2, 3):
            view(_batch(rows))
    assert [line.split(" in ")[0] for line in file.getvalue().splitlines()] == [
        "lake: 1 row", "lake: 2 rows", "lake: 3 rows",
    ]  # fmt: skip


def test_batches_that_failed_say_when_they_are_applied_again(lines: Lines) -> None:
    failed = BatchFailed("lake", "Spark has no memory")
    assert lines(failed, failed, _batch(0), _batch(0)) == ["lake: batches are applied again"]


def test_a_store_that_is_away_prints_a_line_and_another_one_when_it_is_back(lines: Lines) -> None:
    away = TableStateChanged("lake", "public", "t", "r", "the store does not answer")
    assert lines(away, away, TableStateChanged("lake", "public", "t", "r")) == [
        "lake: public.t cannot be applied: the store does not answer",
        "lake: public.t is applied again",
    ]


def test_lines_of_a_log_have_time_level_and_room(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    file = io.StringIO()
    with LiveView(Console(file=file, width=40), clock=clock, formatted=format_line) as view:
        view(CaptureState(CapturePhase.STREAMING, _AT, _AT))
        view(TableStateChanged("lake", "public", "t", "p", "no key\n  → give it one"))
    first, second, third = file.getvalue().splitlines()
    assert re.fullmatch(r"[-\d]{10}T[:\d]{8}\.\d{3}Z info    capture      capture streaming", first)
    assert second.endswith("Z warning tables       lake: public.t parked: no key")
    assert third == "  → give it one"


def test_lines_of_json_have_what_a_program_needs(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setenv(VARIABLE, "json")
    file, odd = io.StringIO(), 'a\n\x1b[2J\u202e"'
    with LiveView(Console(file=file, width=40), clock=clock, formatted=format_line) as view:
        view(TableStateChanged("lake", "public", odd, "p", "no key\n  → pgsluice copy CONFIG t"))
        view(_batch(7, 2048, 1.5))
    parked, batch = map(json.loads, file.getvalue().splitlines())
    assert file.getvalue().isascii()
    assert parked.pop("time").endswith("Z")
    assert "parked: no key" in parked.pop("message")
    assert parked == {
        "level": "warning", "event": "parked", "room": "tables", "subscription": "lake",
        "table": f"public.{odd}", "cause": "no key", "remedy": "pgsluice copy CONFIG t",
    }  # fmt: skip
    assert (batch["event"], batch["subscription"], batch["lsn"]) == ("batches", "lake", "0/1A0")
    assert (batch["rows"], batch["lag_bytes"], batch["lag_s"]) == (7, 2048, 1.5)


def test_a_batch_without_rows_prints_nothing(lines: Lines) -> None:
    assert lines(_batch(0), TableApplied("lake", "public", "t", _AT, 0, 0.1)) == []


def test_skipped_rows_print_a_line_with_their_count(lines: Lines) -> None:
    assert lines(TableApplied("lake", "public", "t", _AT, 9, 0.1, 3)) == [
        "lake: public.t skipped updates and deletes of 3 rows that the target lacks"
    ]


def test_capture_prints_its_state_when_it_changes(lines: Lines) -> None:
    streaming = CaptureState(CapturePhase.STREAMING, _AT, _AT, 0, 10)
    gone = CaptureState(CapturePhase.RECONNECTING, message="the server is away")
    assert lines(streaming, streaming, gone, streaming) == [
        "capture streaming",
        "capture reconnecting: the server is away",
        "capture streaming",
    ]


def test_a_trouble_that_repeats_is_said_once_and_then_counted(lines: Lines) -> None:
    streaming = CaptureState(CapturePhase.STREAMING, _AT, _AT)
    troubles = [
        CaptureState(CapturePhase.RECONNECTING, _AT, _AT, message="no", times=times)
        for times in range(1, 12)
    ]
    further = CaptureState(CapturePhase.STREAMING, _AT, Lsn(_AT + 8))
    both = [event for trouble in troubles for event in (trouble, streaming)]
    assert lines(streaming, *both, further) == [
        "capture streaming",
        "capture reconnecting: no",
        "capture streaming",
        "capture reconnecting, 10 times in a row: no",
        "capture streaming",
    ]


def test_a_clean_end_of_capture_prints_nothing(lines: Lines) -> None:
    """``--once`` ends capture this way; "stopped" would read like a failure."""
    full = CaptureState(CapturePhase.STOPPED, message="no room is left on the disk")
    assert lines(CaptureState(CapturePhase.STOPPED, _AT, _AT, 0, 10)) == []
    assert lines(full) == ["capture stopped: no room is left on the disk"]


def _amount(ranges: int, rows: int, rate: float = 0.0) -> CopyAmount:
    return CopyAmount(ranges, 4, rows, ranges << 20, 4 << 20, rows / 10, rate)


def test_a_copy_prints_its_beginning_and_its_end(lines: Lines) -> None:
    assert lines(
        TableStateChanged("lake", "public", "t", "d"),
        CopyProgress("lake", "public", "t", _amount(1, 1000)),
        CopyProgress("lake", "public", "t", _amount(2, 2500)),
        CopyProgress("lake", "public", "t", _amount(4, 5010), is_done=True),
        TableStateChanged("lake", "public", "t", "f"),
    ) == [
        "lake: public.t is being copied, 4.0 MiB in 4 ranges",
        "lake: public.t copied, 5,010 rows",
    ]


def test_lines_say_every_ten_seconds_how_far_copies_are(lines: Lines) -> None:
    of_table = CopyProgress("lake", "public", "t", _amount(2, 2500, 2**18))
    of_all = CopiesProgress("lake", 1, 3, _amount(3, 2600, 2**19), ("its snapshot",))
    table_far = "2 of 4 ranges, 2,500 rows, 2.0 MiB of 4.0 MiB, 256.0 KiB/s, 250 rows/s"
    all_far = "3 of 4 ranges, 2,600 rows, 3.0 MiB of 4.0 MiB, 512.0 KiB/s, 260 rows/s"
    assert lines(of_table, of_all, 9.9, of_table, of_all, 0.1, of_table, of_all, of_all)[1:] == [
        f"lake: public.t: {table_far}, about 8.00 s left",
        f"lake: copies, 1 of 3 tables, {all_far}, about 2.00 s left",
        "lake: tables wait for its snapshot",
    ]


def test_of_copies_that_are_not_planned_only_what_they_wait_for_is_said(lines: Lines) -> None:
    waiting = CopiesProgress("lake", 0, 0, CopyAmount(), ("its snapshot",))
    assert lines(waiting, 10, waiting) == ["lake: tables wait for its snapshot"]
    drawn = _drawn(waiting)
    assert "tables wait for its snapshot" in drawn
    assert "0 of 0" not in drawn


def test_the_reason_of_a_parked_table_is_printed_once(lines: Lines) -> None:
    parked = TableStateChanged("lake", "public", "t", "p", "no [key] here")
    assert lines(parked, parked) == ["lake: public.t parked: no [key] here"]


def test_why_a_table_is_copied_again_is_printed_once(lines: Lines) -> None:
    why = "table public.t has another key"
    table = TableRecord("public", "t", TableState.INITIALISE, copied=Copied(reason=why))
    again, loaded = (
        table.copy_words,
        replace(table, state=TableState.DATA_COPY, copying=Partitions((7,))),
    )
    assert lines(
        TableStateChanged("lake", "public", "t", "i", copy_words=again),
        TableStateChanged("lake", "public", "t", "d", copy_words=again),
        TableStateChanged("lake", "public", "t", "f"),
        TableStateChanged("lake", "public", "t", "d", copy_words=loaded.copy_words),
    ) == [
        "lake: public.t: pgsluice copies it again: the table has another key",
        "lake: public.t: pgsluice replaces rows of partitions: the table has another key",
    ]
    assert replace(table, state=TableState.READY).copy_words == ""
    assert replace(table, copied=Copied()).copy_words == ""


def test_the_display_on_a_terminal() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=120, color_system=None)
    with LiveView(console) as view:
        view(CaptureState(CapturePhase.STREAMING, _AT, _AT, 4096, 2**20))
        view(CopyProgress("lake", "public", "big", _amount(1, 10)))
        view(CopyProgress("lake", "public", "done", _amount(4, 7), is_done=True))
        view(CopyProgress("lake", "public", "empty", CopyAmount(1, 1), is_done=True))
        view(CopiesProgress("lake", 2, 3, _amount(3, 17, 2**19)))
        view(CopiesProgress("pond", 1, 1, _amount(4, 17)))
        view(TableStateChanged("lake", "public", "again", "r"))
        view(CopyProgress("lake", "public", "again", _amount(1, 10)))
        view(TableStateChanged("lake", "public", "t", "r"))
        view(TableApplied("lake", "public", "t", _AT, 1000, 0.5))
        view(TableApplied("lake", "public", "t", _AT, 234, 0.5))
        view(TableStateChanged("lake", "public", "odd", "p", "why"))
        view(_batch(1234))
        shown = io.StringIO()
        Console(file=shown, width=120).print(view.render())
    text = shown.getvalue()
    line = "capture streaming  at 0/1A0  4.0 KiB behind  spool 1.0 MiB"
    assert re.search(rf"(?m)^\d\d:\d\d:\d\d  {line}", text), "the time says that it is alive"
    assert "public.t" in text
    assert "ready" in text
    assert "1,234" in text
    assert "parked" in text
    assert "public.odd: why" in text
    assert re.search(r"public\.big .* 1 of 4 ranges", text)
    assert re.search(r"lake: 2 of 3 tables .* 3 of 4 ranges", text)
    assert re.search(r"public\.again +copying ", text), "it was ready before"
    assert re.search(r"public\.big +copying ", text)
    assert "pond" not in text
    assert not re.search(r"public\.done .* ranges", text), "a bar goes when the copy has ended"
    assert re.search(r"public\.done +7 ", text), "and the rows that it copied are shown"


@pytest.mark.parametrize("width", [120, 100, 80, 60, 40])
def test_each_copy_and_each_table_has_one_line(width: int) -> None:
    """With the largest figures that are likely; what matters least is left out."""
    name = "orders_with_a_name_that_is_too_long_for_most"
    large = CopyAmount(10, 450, 12_345_678, 300 << 30, 4500 << 30, 123_456, 142 << 20)
    at = Lsn.parse("1A/D0E1A0F8")
    text = _drawn(
        CopyProgress("lake", "public", name, large),
        CopiesProgress("lake", 17, 200, large),
        TableStateChanged("lake", "public", "t", "r", incomplete=("no deletes",)),
        TableApplied("lake", "public", "t", at, 12_345_678, 75.5),
        BatchFinished("lake", at, 12_345_678, 75.5, 1, 300 << 20, 75.5),
        width=width,
    )
    begins = (
        "  public.t: no deletes",
        "lake: 17 of ",
        "  public.",
        "table ",
        "lake ",
        "  public.",
        "  public.t ",
    )
    lines = text.splitlines()
    for line, begin in zip(lines, begins, strict=True):
        assert line.startswith(begin)
        assert len(line.rstrip()) <= width
    assert ("about 8 h 24 min left" in lines[1]) == (width >= 60)
    assert ("300.0 GiB of 4.4 TiB" in lines[1]) == (width >= 80)


def test_what_a_run_does_at_its_start_is_shown_until_it_is_done(lines: Lines) -> None:
    assert lines(RunStep("starting Spark"), RunStep("")) == ["starting Spark"]
    assert "starting Spark …" in _drawn(RunStep("starting Spark"))
    assert "Spark" not in _drawn(RunStep("starting Spark"), RunStep(""))


def test_problems_are_seen_even_with_more_tables_than_lines() -> None:
    ready = [TableStateChanged("lake", "public", f"t{n}", "r") for n in range(100)]
    parked = TableStateChanged("lake", "public", "zz", "p", "no key\n  → give it one")
    text = _drawn(*ready, parked, TableApplied("lake", "public", "t57", _AT, 1, 0.1), height=24)
    assert len(text.splitlines()) < 24
    assert "public.zz: no key" in text
    assert "→ give it one" in text
    assert "public.t57" in text, "what changed last is shown"
    assert re.search(r"… and \d\d ready", text)


def test_many_problems_are_counted() -> None:
    parked = [TableStateChanged("lake", "public", f"t{n}", "p", "why") for n in range(100)]
    text = _drawn(*parked, height=24)
    assert len(text.splitlines()) < 24
    assert re.search(r"… and \d\d more", text)
    assert re.search(r"… and \d\d parked", text)


def _drawn(*events: MetricsEvent, height: int = 50, width: int = 100) -> str:
    """What a terminal of this size shows after the events."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=height)
    with LiveView(console) as view:
        for event in events:
            view(event)
        file = io.StringIO()
        Console(file=file, width=width).print(view.render())
    return file.getvalue()


@pytest.mark.parametrize("is_terminal", [True, False], ids=["a terminal", "a file"])
def test_what_is_logged_is_a_line_above_the_picture(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    """Where stderr is a file, it gets the line."""
    stderr, drawn = io.StringIO(), io.StringIO()
    monkeypatch.setattr(stderr, "isatty", lambda: is_terminal)
    monkeypatch.setattr("sys.stderr", stderr)
    root = logging.getLogger()
    before = root.handlers[:]
    log_to_stderr(str)
    try:
        with LiveView(Console(file=drawn, force_terminal=True, width=80)) as view:
            view(_batch(1))
            say_it_ended(Part.CAPTURE, 12, -9)
    finally:
        root.handlers[:] = before
    line = "capture (process 12) has ended by SIGKILL: pgsluice restarts it\n"
    gets_it, other = (drawn, stderr) if is_terminal else (stderr, drawn)
    assert line in gets_it.getvalue()
    assert line not in other.getvalue()
