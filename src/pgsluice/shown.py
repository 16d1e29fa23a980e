r"""Makes foreign text safe to print: no control character of it reaches a terminal or a log.

A table's name may contain escape sequences that clear a terminal, a newline with a forged log line,
or marks that reverse the reading direction. Invisible characters are printed as Python's escapes
(``\x1b``, ``\n``, ``\u202e``). Applying a function of this module twice changes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

_INDENT = "  "
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def shown(text: str) -> str:
    """Make a foreign name or text safe inside a sentence: one line of visible characters."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def shown_lines(text: str) -> str:
    """Make a whole message safe, as :func:`shown` does, but keep its own newlines.

    Lines after the first are indented, so that none of them looks like another message.
    """
    first, *others = text.split("\n")
    indent = "" if all(line.startswith(_INDENT) or not line for line in others) else _INDENT
    return "\n".join([shown(first), *(f"{indent}{shown(line)}" for line in others)])


def without_table(text: str, title: str) -> str:
    """Shorten a text about a table for a line that begins with the table's name.

    ``table t: …`` becomes ``…``, and ``table t has …`` becomes ``the table has …``. Records of
    earlier versions have texts that begin with ``t: …``.
    """
    start, rest = f"table {title}", text.removeprefix(f"table {title}")
    for before in (f"{start}: ", f"{title}: "):
        if text.startswith(before):
            return text.removeprefix(before)
    return f"the table{rest}" if text.startswith(f"{start} ") else text


def first_names(names: Sequence[str], most: int = 5) -> str:
    """The first names, with commas between them, and the number of the others."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def one_line(text: str) -> str:
    """Turn a message of another library into one line, without line breaks and colours."""
    return shown(" ".join(_COLOUR.sub("", text).split()))


def shown_json(value: Any, *, indent: int | None = None) -> str:
    r"""Format a value as JSON, with ``\u`` escapes for invisible characters."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text
    )
