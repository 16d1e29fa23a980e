r"""Lines of logs: for a terminal, for readers of a log, and for programs.

A line of a log begins with its time (UTC), its level and the room that it is about. As JSON it is
one object in one line. Every text is rendered safely (:mod:`pgsluice.shown`): a table's name cannot
make a line that looks like one of ours.

The environment variable :data:`VARIABLE` chooses the format, because the processes that a run
starts write to the same log.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TextIO

from pgsluice.shown import shown_lines

VARIABLE = "PGSLUICE_LOG_FORMAT"
_REMEDY = "\n  → "


class LogFormat(StrEnum):
    """What a log has."""

    TEXT = "text"
    JSON = "json"


class Level(StrEnum):
    """How much a line matters."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class LogLine:
    """What a line says.

    Attributes:
        room: what it is about.
        text: a sentence with its subject, then perhaps lines with what to do.
        event: a word for programs, which decide by it.
        table: ``schema.table``.
        facts: more for programs.
    """

    level: Level
    room: str
    text: str
    event: str = "message"
    subscription: str | None = None
    table: str | None = None
    lsn: str | None = None
    cause: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def choose_format(chosen: LogFormat | None) -> None:
    """Choose the format for this process, and for those that it starts; None: leave it."""
    if chosen is not None:
        os.environ[VARIABLE] = chosen.value


def chosen_format() -> LogFormat:
    """The format; text if the environment says nothing, or nothing that is known."""
    return LogFormat.JSON if os.environ.get(VARIABLE) == LogFormat.JSON else LogFormat.TEXT


def format_line(line: LogLine, *, is_terminal: bool = False, at: datetime | None = None) -> str:
    """A line in the chosen format.

    Args:
        is_terminal: somebody reads it as it comes: it only has the time of the day.
        at: when it happened; None: now.
    """
    at = at or datetime.now(UTC)
    if chosen_format() is LogFormat.JSON:
        return _as_json(line, at)
    if is_terminal:
        return shown_lines(f"{at.astimezone():%H:%M:%S} {line.text}")
    return shown_lines(f"{_utc(at)} {line.level:<7} {line.room:<12} {line.text}")


def _as_json(line: LogLine, at: datetime) -> str:
    text, _, remedy = line.text.partition(_REMEDY)
    cause = None if line.cause is None else line.cause.partition(_REMEDY)[0]
    known = {
        "time": _utc(at),
        "level": line.level.value,
        "event": line.event,
        "room": line.room,
        "subscription": line.subscription,
        "table": line.table,
        "lsn": line.lsn,
        "message": text,
        "cause": cause,
        "remedy": remedy or None,
        **line.facts,
    }
    # Only ASCII: what a terminal or a reader of lines would take for something else is escaped.
    return json.dumps({key: value for key, value in known.items() if value is not None})


def _utc(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Prints what Python's logging gets, as lines of a log, on what is stderr at the moment: a live
    view puts lines above what it draws."""

    def __init__(self, finish: Callable[[str], str]) -> None:
        super().__init__()
        self._finish = finish

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        package, _, module = record.name.partition(".")
        room = module.partition(".")[0] if package == "pgsluice" else package
        level = Level.ERROR if record.levelno >= logging.ERROR else Level(record.levelname.lower())
        line = LogLine(level, room or package, self._finish(super().format(record)))
        at = datetime.fromtimestamp(record.created, UTC)
        return format_line(line, is_terminal=sys.stderr.isatty(), at=at)


def log_to_stderr(finish: Callable[[str], str]) -> None:
    """Print what this process logs, from warnings on, on stderr: called once by a program.

    Args:
        finish: puts into each text what only the program knows.
    """
    logging.getLogger().addHandler(_StderrHandler(finish))
