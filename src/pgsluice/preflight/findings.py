"""A finding: its severity, what was checked, the result, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How severe a finding is."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of ``pgsluice check``: the subject, in a word or two, the result, and what to do.

    What to do may be several lines; None: nothing.
    """

    level: Level
    subject: str
    what: str
    todo: str | None = None


def ok(subject: str, what: str) -> Finding:
    return Finding(Level.OK, subject, what)


def warning(subject: str, what: str, todo: str) -> Finding:
    return Finding(Level.WARNING, subject, what, todo)


def error(subject: str, what: str, todo: str | None) -> Finding:
    return Finding(Level.ERROR, subject, what, todo)
