"""Array constants: each element in its canonical form, quoted where necessary.

Source: src/backend/utils/adt/arrayfuncs.c (array_in, array_out).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pgsluice.row_filter.literals.bad_literals import BadLiteral, not_exact

_TOKEN = re.compile(r'\s*(?:([{},])|"((?:[^"\\]|\\.)*)"|((?:[^{},"\\]|\\.)+))', re.DOTALL)


def read_array(text: str, element: Callable[[str], str]) -> str:
    """Parses ``{1,2}`` and nested arrays; explicit bounds are not supported.

    Args:
        element: gives the canonical form of an element.
    """
    stripped = text.strip()
    if stripped.startswith("["):
        raise not_exact("an array constant with explicit bounds", "Its bounds are not kept.")
    if not stripped.startswith("{"):
        detail = 'Array value must start with "{" or dimension information.'
        raise BadLiteral(f'malformed array literal: "{text}"', detail=detail)
    return _Reader(text, stripped, element).whole()


class _Reader:
    def __init__(self, text: str, stripped: str, element: Callable[[str], str]) -> None:
        self.text = text
        self.element = element
        tokens = list(_TOKEN.finditer(stripped))
        if "".join(token[0] for token in tokens) != stripped:
            raise self._bad("Unexpected end of input.")
        self.tokens = [token.groups() for token in tokens]
        self.at = 0

    def _bad(self, detail: str) -> BadLiteral:
        return BadLiteral(f'malformed array literal: "{self.text}"', detail=detail)

    def whole(self) -> str:
        array, _ = self._level()
        if self.at != len(self.tokens):
            raise self._bad("Junk after closing right brace.")
        return array

    def _mark(self) -> str | None:
        if self.at >= len(self.tokens):
            raise self._bad("Unexpected end of input.")
        return self.tokens[self.at][0]

    def _level(self) -> tuple[str, int]:
        """Parse one pair of braces: its canonical text, and its number of levels."""
        self.at += 1
        parts: list[str] = []
        depths: set[int] = set()
        lengths: set[int] = set()
        if self._mark() == "}":
            self.at += 1
            return "{}", 1
        while True:
            mark = self._mark()
            if mark == "{":
                inner, depth = self._level()
                parts.append(inner)
                depths.add(depth + 1)
                lengths.add(inner.count(","))
            elif mark is not None:
                raise self._bad(f'Unexpected "{mark}" character.')
            else:
                parts.append(self._element())
                depths.add(1)
            mark = self._mark()
            self.at += 1
            if mark == "}":
                break
            if mark != ",":
                raise self._bad("Unexpected array element.")
        if len(depths) != 1 or (len(lengths) > 1 and '"' not in self.text):
            raise self._bad(
                "Multidimensional arrays must have sub-arrays with matching dimensions."
            )
        return "{" + ",".join(parts) + "}", depths.pop()

    def _element(self) -> str:
        _, quoted, plain = self.tokens[self.at]
        self.at += 1
        if quoted is None:
            word = (plain or "").strip()
            if word.upper() == "NULL":
                return "NULL"
            quoted = word
        value = self.element(re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL))
        if value == "" or value.upper() == "NULL" or re.search(r'[{},"\\\s]', value):
            return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
        return value
