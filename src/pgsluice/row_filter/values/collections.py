"""Arrays.

Source: src/backend/utils/adt/arrayfuncs.c (``array_in``, ``array_out``, ``array_cmp``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from pgsluice.row_filter.values.value_type import (
    BadLiteral,
    NotReadable,
    Value,
    ValueType,
    not_exact,
)

_BOUNDS: Final = re.compile(r"((?:\[[+-]?\d+:[+-]?\d+\])+)=")
_TOKEN: Final = re.compile(r'[{},]|"((?:[^"\\]|\\.)*)"|((?:[^{},"\\]|\\.)+)', re.DOTALL)


class PgArray(NamedTuple):
    """An array of any shape.

    Attributes:
        elements: all of them, in storage order; None for NULL.
        dimensions: lengths; empty for the empty array.
        lower_bounds: the first subscript of each dimension.
    """

    elements: tuple[Value, ...]
    dimensions: tuple[int, ...]
    lower_bounds: tuple[int, ...]

    @classmethod
    def of(cls, elements: tuple[Value, ...]) -> PgArray:
        """An array of one dimension that starts at 1."""
        return cls(elements, (len(elements),), (1,)) if elements else cls((), (), ())


def array_type(element: ValueType) -> ValueType:
    """The array type of an element type."""
    key = element.key
    return ValueType(
        f"_{element.name}",
        lambda text: parse_array(text, element.parse),
        None if key is None else lambda array: array_key(array, key),
        element.is_collatable,
    )


def parse_array(text: str, parse: Callable[[str], Value]) -> PgArray:
    """Parse what array_out prints."""
    lower_bounds: tuple[int, ...] | None = None
    bounds = _BOUNDS.match(text)
    if bounds:
        pairs = re.findall(r"\[([+-]?\d+):", bounds[1])
        lower_bounds = tuple(int(low) for low in pairs)
        text = text[bounds.end() :]
    elements: list[Value] = []
    dimensions = _read_level(_tokens(text), elements, parse)
    if not elements:
        return PgArray((), (), ())
    return PgArray(tuple(elements), dimensions, lower_bounds or (1,) * len(dimensions))


def _tokens(text: str) -> Iterator[re.Match[str]]:
    index = 0
    while index < len(text):
        match = _TOKEN.match(text, index)
        if match is None:
            raise NotReadable("array")
        yield match
        index = match.end()


def _read_level(
    tokens: Iterator[re.Match[str]], elements: list[Value], parse: Callable[[str], Value]
) -> tuple[int, ...]:
    """The elements in order, and the lengths of the dimensions."""
    counts: list[int] = []
    dimensions: list[int] = []
    for token in tokens:
        mark = token[0]
        if mark == "{":
            if counts:
                counts[-1] += 1
            counts.append(0)
        elif mark == "}":
            depth = len(counts)
            count = counts.pop()
            dimensions += [0] * (depth - len(dimensions))
            dimensions[depth - 1] = count
        elif mark != ",":
            counts[-1] += 1
            elements.append(_read_element(token, parse))
    if counts or not dimensions:
        raise NotReadable("array")
    return tuple(dimensions)


def _read_element(token: re.Match[str], parse: Callable[[str], Value]) -> Value:
    if token[1] is not None:
        return parse(re.sub(r"\\(.)", r"\1", token[1], flags=re.DOTALL))
    text = token[2].strip(" ")
    return None if text.upper() == "NULL" else parse(text)


def array_key(array: PgArray, key: Callable[[Value], Any]) -> tuple[Any, ...]:
    """The order of arrays: element by element with NULL last, then the shape."""
    elements = tuple(
        (True, 0) if element is None else (False, key(element)) for element in array.elements
    )
    return elements, len(array.dimensions), array.dimensions, array.lower_bounds


_CONSTANT_TOKEN = re.compile(r'\s*(?:([{},])|"((?:[^"\\]|\\.)*)"|((?:[^{},"\\]|\\.)+))', re.DOTALL)


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
        tokens = list(_CONSTANT_TOKEN.finditer(stripped))
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
