"""The Python values of a type while a filter is computed, with the server's order.

SQL NULL is None; no other value is. Values of one type are compared by their ``key``, in the order
of the type's B-tree operators: NaN is the largest float, and the trailing blanks of a ``bpchar``
do not count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from pgsluice.row_filter.errors import FilterNotExact
from pgsluice.sql import SqlRefused

Value: TypeAlias = Any
"""Any at this edge: the expression's types tell the kind of value, not Python's."""


class SqlError(Exception):
    """An error that the server would raise.

    Attributes:
        condition: the name of its SQLSTATE, ``division_by_zero``.
        message: the server's primary message, with ``"…"`` instead of values.
    """

    def __init__(self, condition: str, message: str) -> None:
        super().__init__(message)
        self.condition = condition
        self.message = message


class CannotKnow(SqlError):
    """The server's answer depends on what only it has, such as its locale's tables."""

    def __init__(self, message: str) -> None:
        super().__init__("cannot_know", message)


class NotReadable(Exception):
    """A text that is not the type's output, so it has no value."""


def same(value: Value) -> Value:
    """A value that is its own text, key or conversion."""
    return value


@dataclass(frozen=True, slots=True)
class ValueType:
    """One type.

    Attributes:
        parse: makes a value of the text that the server prints.
        key: what values are compared by; None: the type has no order and no equality.
        is_collatable: the order (never the equality) depends on a collation.
    """

    name: str
    parse: Callable[[str], Value]
    key: Callable[[Value], Any] | None = same
    is_collatable: bool = False


_SERVER = "Let the server's own publication (PostgreSQL 15 or newer) do this filter."


def not_exact(what: str, reason: str, hint: str = _SERVER) -> FilterNotExact:
    """The error of a constant that PostgreSQL may accept, and pgsluice does not read exactly."""
    message = f"{what}: PostgreSQL may accept this, pgsluice does not"
    return FilterNotExact(message, detail=reason, server_hint=hint)


def invalid(type_name: str, text: str) -> SqlRefused:
    """PostgreSQL's error of a constant that is no text of its type."""
    return SqlRefused(f'invalid input syntax for type {type_name}: "{text}"')
