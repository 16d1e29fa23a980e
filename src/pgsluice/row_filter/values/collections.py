"""Arrays.

Source: src/backend/utils/adt/arrayfuncs.c (``array_in``, ``array_out``, ``array_cmp``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from pgsluice.row_filter.values.value_type import NotReadable, Value, ValueType, not_exact
from pgsluice.sql import SqlRefused

_BOUNDS: Final = re.compile(r"((?:\[[+-]?\d+:[+-]?\d+\])+)=")
_TOKEN: Final = re.compile(r'\s*(?:([{},])|"((?:[^"\\]|\\.)*)"|((?:[^{},"\\]|\\.)+))', re.DOTALL)


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
    """How values of an array type are read and ordered, by its element type."""
    key = element.key
    return ValueType(
        f"_{element.name}",
        lambda text: parse_array(text, element.parse),
        None if key is None else lambda array: array_key(array, key),
        element.is_collatable,
    )


def parse_array(text: str, parse: Callable[[str], Value]) -> PgArray:
    """Read an array's text as array_out() prints it; ``parse`` makes an element of its text."""
    lower_bounds: tuple[int, ...] = ()
    if bounds := _BOUNDS.match(text):
        lower_bounds = tuple(map(int, re.findall(r"\[([+-]?\d+):", bounds[1])))
        text = text[bounds.end() :]
    nested = _nested(text, parse, lambda detail: NotReadable("array"))
    elements, dimensions = tuple(_flat(nested)), _lengths(nested)
    if not elements:
        return PgArray((), (), ())
    return PgArray(elements, dimensions, lower_bounds or (1,) * len(dimensions))


def _nested(
    text: str, read: Callable[[str], Value], bad: Callable[[str], Exception]
) -> list[Value]:
    """The elements of an array's text in lists, one for each pair of braces.

    Args:
        read: makes an element of its text.
        bad: the error with a detail of PostgreSQL's.
    """
    tokens = list(_TOKEN.finditer(text))
    if "".join(token[0] for token in tokens) != text:
        raise bad("Unexpected end of input.")
    waiting = iter(tokens[1:])

    def take() -> re.Match[str]:
        if (token := next(waiting, None)) is None:
            raise bad("Unexpected end of input.")
        return token

    def level() -> list[Value]:
        """The elements up to the closing brace."""
        token = take()
        elements: list[Value] = []
        if token[1] == "}":
            return elements
        while True:
            if token[1] == "{":
                elements.append(level())
            elif token[1] is not None:
                raise bad(f'Unexpected "{token[1]}" character.')
            else:
                elements.append(_element(token, read))
            mark = take()[1]
            if mark == "}":
                break
            if mark != ",":
                raise bad("Unexpected array element.")
            token = take()
        if len({_lengths(element) for element in elements}) > 1:
            raise bad("Multidimensional arrays must have sub-arrays with matching dimensions.")
        return elements

    array = level()
    if next(waiting, None) is not None:
        raise bad("Junk after closing right brace.")
    return array


def _element(token: re.Match[str], read: Callable[[str], Value]) -> Value:
    text = token[2]
    if text is None:
        text = token[3].strip()
        if text.upper() == "NULL":
            return None
    return read(re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL))


def _lengths(nested: Value) -> tuple[int, ...]:
    """The lengths of the dimensions of a list of lists; none of an element."""
    if not isinstance(nested, list):
        return ()
    return (len(nested), *(_lengths(nested[0]) if nested else ()))


def _flat(nested: list[Value]) -> Iterator[Value]:
    for element in nested:
        if isinstance(element, list):
            yield from _flat(element)
        else:
            yield element


def array_key(array: PgArray, key: Callable[[Value], Any]) -> tuple[Any, ...]:
    """The order of arrays: element by element with NULL last, then the shape."""
    elements = tuple(
        (True, 0) if element is None else (False, key(element)) for element in array.elements
    )
    return elements, len(array.dimensions), array.dimensions, array.lower_bounds


def read_array(text: str, element: Callable[[str], str]) -> str:
    """The output of an array constant, such as ``{1,2}``; explicit bounds are not supported.

    Args:
        element: gives the output of an element's constant.
    """

    def bad(detail: str) -> SqlRefused:
        return SqlRefused(f'malformed array literal: "{text}"', detail=detail)

    stripped = text.strip()
    if stripped.startswith("["):
        raise not_exact("an array constant with explicit bounds", "Its bounds are not kept.")
    if not stripped.startswith("{"):
        raise bad('Array value must start with "{" or dimension information.')
    nested = _nested(stripped, element, bad)
    return _printed(nested) if any(True for _ in _flat(nested)) else "{}"


def _printed(nested: Value) -> str:
    if isinstance(nested, list):
        return "{" + ",".join(map(_printed, nested)) + "}"
    if nested is None:
        return "NULL"
    if nested == "" or nested.upper() == "NULL" or re.search(r'[{},"\\\s]', nested):
        return '"' + re.sub(r'(["\\])', r"\\\1", nested) + '"'
    return str(nested)
