"""point, lseg, path, box, polygon, line and circle.

Source: src/backend/utils/adt/geo_ops.c.
"""

from __future__ import annotations

from collections.abc import Sequence

from pgsluice.types.binary_to_text.cursor import Cursor
from pgsluice.types.binary_to_text.floats import format_float8


def print_point(value: bytes) -> str:
    """Text of a value, as PostgreSQL's point_out prints it, from its binary form."""
    return _print_points(_numbers(value, 2))


def print_lseg(value: bytes) -> str:
    """Text of a value, as PostgreSQL's lseg_out prints it, from its binary form."""
    return f"[{_print_points(_numbers(value, 4))}]"


def print_box(value: bytes) -> str:
    """Text of a value, as PostgreSQL's box_out prints it, from its binary form."""
    return _print_points(_numbers(value, 4))


def print_line(value: bytes) -> str:
    """Text of a value, as PostgreSQL's line_out prints it, from its binary form."""
    return "{" + ",".join(map(format_float8, _numbers(value, 3))) + "}"


def print_circle(value: bytes) -> str:
    """Text of a value, as PostgreSQL's circle_out prints it, from its binary form."""
    x, y, radius = _numbers(value, 3)
    return f"<{_print_points((x, y))},{format_float8(radius)}>"


def print_polygon(value: bytes) -> str:
    """Text of a value, as PostgreSQL's poly_out prints it, from its binary form."""
    return f"({_counted_points(Cursor(value))})"


def print_path(value: bytes) -> str:
    """path_out: in parentheses when closed, in brackets when open."""
    cursor = Cursor(value)
    is_closed = cursor.unsigned(1)
    points = _counted_points(cursor)
    return f"({points})" if is_closed else f"[{points}]"


def _numbers(value: bytes, count: int) -> tuple[float, ...]:
    cursor = Cursor(value)
    numbers = cursor.float8s(count)
    cursor.close()
    return numbers


def _counted_points(cursor: Cursor) -> str:
    numbers = cursor.float8s(2 * cursor.count())
    cursor.close()
    return _print_points(numbers)


def _print_points(numbers: Sequence[float]) -> str:
    texts = [format_float8(number) for number in numbers]
    return ",".join(f"({x},{y})" for x, y in zip(texts[0::2], texts[1::2], strict=True))
