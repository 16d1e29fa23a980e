r"""How text from outside is shown: nothing that a server or a file says reaches a terminal raw.

A table can have any name: escape sequences that clear a terminal, a newline and then a line that
looks like one of ours, marks that turn the direction of reading. Every character that cannot be
seen is shown as Python writes it (``\x1b``, ``\n``, ``\u202e``). Applying a function of this module
twice changes nothing.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable
from typing import Any, TextIO

_INDENT = "  "
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def shown(text: str) -> str:
    """A name or text of others inside a sentence: one line of characters that can be seen."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def shown_lines(text: str) -> str:
    """A whole message: as :func:`shown`, but its own newlines stay.

    Lines after the first are indented, so that none of them looks like another message.
    """
    first, *others = text.split("\n")
    indent = "" if all(line.startswith(_INDENT) or not line for line in others) else _INDENT
    return "\n".join([shown(first), *(f"{indent}{shown(line)}" for line in others)])


def one_line(text: str) -> str:
    """A message of another library as one line, without its line breaks and colours."""
    return shown(" ".join(_COLOUR.sub("", text).split()))


def shown_json(value: Any, *, indent: int | None = None) -> str:
    r"""A value as JSON, with characters that cannot be seen as ``\u`` escapes."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text
    )


class _ShownFormatter(logging.Formatter):
    """Formats a record as :func:`shown_lines` does."""

    def __init__(self, finish: Callable[[str], str]) -> None:
        super().__init__()
        self._finish = finish

    def format(self, record: logging.LogRecord) -> str:
        return shown_lines(self._finish(super().format(record)))


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Prints on what is stderr at the moment: a live view puts lines above what it draws."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def log_to_stderr(finish: Callable[[str], str]) -> None:
    """Print what this process logs, from warnings on, on stderr: called once by a program.

    Args:
        finish: puts into each text what only the program knows.
    """
    handler = _StderrHandler()
    handler.setFormatter(_ShownFormatter(finish))
    logging.getLogger().addHandler(handler)
