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
    """The output of an array constant, such as ``{1,2}``; explicit bounds are not supported.

    Args:
        element: gives the output of an element's constant.
    """

    def bad(detail: str) -> BadLiteral:
        return BadLiteral(f'malformed array literal: "{text}"', detail=detail)

    stripped = text.strip()
    if stripped.startswith("["):
        raise not_exact("an array constant with explicit bounds", "Its bounds are not kept.")
    if not stripped.startswith("{"):
        raise bad('Array value must start with "{" or dimension information.')
    tokens = list(_CONSTANT_TOKEN.finditer(stripped))
    if "".join(token[0] for token in tokens) != stripped:
        raise bad("Unexpected end of input.")
    waiting = iter(tokens[1:])

    def take() -> re.Match[str]:
        if (token := next(waiting, None)) is None:
            raise bad("Unexpected end of input.")
        return token

    def level() -> tuple[str, int]:
        """The elements up to the closing brace as text, and the number of levels."""
        token = take()
        if token[1] == "}":
            return "{}", 1
        parts: list[str] = []
        depths: set[int] = set()
        lengths: set[int] = set()
        while True:
            if token[1] == "{":
                inner, depth = level()
                parts.append(inner)
                depths.add(depth + 1)
                lengths.add(inner.count(","))
            elif token[1] is not None:
                raise bad(f'Unexpected "{token[1]}" character.')
            else:
                parts.append(_printed_element(token, element))
                depths.add(1)
            mark = take()[1]
            if mark == "}":
                break
            if mark != ",":
                raise bad("Unexpected array element.")
            token = take()
        if len(depths) != 1 or (len(lengths) > 1 and '"' not in text):
            raise bad("Multidimensional arrays must have sub-arrays with matching dimensions.")
        return "{" + ",".join(parts) + "}", depths.pop()

    array, _ = level()
    if next(waiting, None) is not None:
        raise bad("Junk after closing right brace.")
    return array


def _printed_element(token: re.Match[str], element: Callable[[str], str]) -> str:
    text = token[2]
    if text is None:
        text = token[3].strip()
        if text.upper() == "NULL":
            return "NULL"
    value = element(re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL))
    if value == "" or value.upper() == "NULL" or re.search(r'[{},"\\\s]', value):
        return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
    return value
