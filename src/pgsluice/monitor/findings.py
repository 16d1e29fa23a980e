"""What a check says: a level, what is so, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How a finding is to be taken."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of ``check``.

    Attributes:
        subject: what was looked at, in a word or two.
        what: what is so.
        todo: what to do; None where there is nothing to do. May have several lines.
    """

    level: Level
    subject: str
    what: str
    todo: str | None = None


def ok(subject: str, what: str) -> Finding:
    return Finding(Level.OK, subject, what)


def warning(subject: str, what: str, todo: str) -> Finding:
    return Finding(Level.WARNING, subject, what, todo)


def error(subject: str, what: str, todo: str) -> Finding:
    return Finding(Level.ERROR, subject, what, todo)
