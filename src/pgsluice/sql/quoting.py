"""Names, literals and expressions, written as SQL text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pgsluice.sql.lexer import keywords, tokenize


def quote_identifier(name: str) -> str:
    """A name, quoted unless it is plain and not a reserved keyword.

    Invisible characters are written as escapes, so that a statement with any name can be printed
    and pasted.
    """
    plain = re.fullmatch(r"[a-z_][a-z0-9_]*", name)
    if plain and keywords().get(name, "U") == "U":
        return name
    quoted = name.replace('"', '""')
    if name.isprintable():
        return f'"{quoted}"'
    escaped = (
        char if char.isprintable() else _escape(char) for char in quoted.replace("\\", r"\\")
    )
    return f'U&"{"".join(escaped)}"'


def _escape(char: str) -> str:
    return f"\\{ord(char):04X}" if ord(char) < 0x10000 else f"\\+{ord(char):06X}"


def quote_title(title: str) -> str:
    """A name as ``schema.table``, split at its first dot, with both parts quoted."""
    return ".".join(map(quote_identifier, title.split(".", 1)))


def quote_literal(text: str) -> str:
    """A string literal for standard_conforming_strings = on."""
    return "'" + text.replace("'", "''") + "'"


def parenthesised(expression: str) -> str:
    """An expression in exactly one pair of parentheses; ``pg_get_expr`` often adds them itself."""
    depth = 0
    tokens = tokenize(expression)[:-1]
    for number, token in enumerate(tokens):
        if token.is_punctuation("("):
            depth += 1
        elif token.is_punctuation(")"):
            depth -= 1
        if depth == 0:
            return expression if number == len(tokens) - 1 > 0 else f"({expression})"
    return f"({expression})"


def any_of(expressions: Sequence[str]) -> str | None:
    """Expressions combined with OR; None if there are none."""
    if len(expressions) < 2:
        return expressions[0] if expressions else None
    return " OR ".join(map(parenthesised, expressions))
