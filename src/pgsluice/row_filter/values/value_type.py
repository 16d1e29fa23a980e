"""What a type's values are while a filter is computed: plain Python, with the server's order.

SQL NULL is None; no type's value is. Values of one type compare by their ``key``, in the order
of the type's B-tree operators, so that NaN is the largest float and the blanks at the end of a
``bpchar`` do not count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

Value: TypeAlias = Any
"""Any at this edge: the kind of value is given by the expression's types, not by Python's."""


class SqlError(Exception):
    """What the server would have raised.

    Attributes:
        condition: the name of its SQLSTATE, ``division_by_zero``.
        message: the server's primary message; ``"…"`` stands where it would show a value.
    """

    def __init__(self, condition: str, message: str) -> None:
        super().__init__(message)
        self.condition = condition
        self.message = message


class CannotKnow(SqlError):
    """The server's answer depends on what it alone has (its locale's tables)."""

    def __init__(self, message: str) -> None:
        super().__init__("cannot_know", message)


class NotReadable(Exception):
    """A text that is not the type's output: no value can be made from it."""


def _same(value: Value) -> Value:
    return value


@dataclass(frozen=True, slots=True)
class ValueType:
    """One type.

    Attributes:
        name: pg_type's.
        parse: from the text that the server prints.
        key: what values compare by; None: the type has no order and no equality.
        is_collatable: the order (never the equality) depends on a collation.
    """

    name: str
    parse: Callable[[str], Value]
    key: Callable[[Value], Any] | None = _same
    is_collatable: bool = False
