"""Read one value in binary form from its beginning to its end."""

from __future__ import annotations

import struct
from collections.abc import Callable

Printer = Callable[[bytes], str]
"""Prints a value in binary form as the type's output function prints it."""


class Misshapen(ValueError):
    """Bytes that the type's send function never writes."""


class NoTextForm(Exception):
    """The text of a nested type does not follow from its binary form."""

    def __init__(self, type_name: str) -> None:
        super().__init__(type_name)
        self.type_name = type_name


class Cursor:
    """A position in a value's bytes. Every read checks that enough bytes are left."""

    __slots__ = ("_at", "_value")

    def __init__(self, value: bytes) -> None:
        self._value = value
        self._at = 0

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        end = self._at + size
        if size < 0 or end > len(self._value):
            raise Misshapen
        taken = self._value[self._at : end]
        self._at = end
        return taken

    def number(self, size: int) -> int:
        """A signed integer of ``size`` bytes."""
        return int.from_bytes(self.take(size), "big", signed=True)

    def unsigned(self, size: int) -> int:
        """An unsigned integer of ``size`` bytes."""
        return int.from_bytes(self.take(size), "big")

    def float8s(self, count: int) -> tuple[float, ...]:
        """The next ``count`` float8, as Python's floats."""
        return struct.unpack(f">{count}d", self.take(8 * count))

    def string(self) -> str:
        """Text that ends with a NUL."""
        end = self._value.find(0, self._at)
        text = self.take(end - self._at).decode()
        self._at += 1
        return text

    def sized(self) -> bytes | None:
        """Bytes after their int4 length; None for the length -1, which means NULL."""
        size = self.number(4)
        return None if size == -1 else self.take(size)

    def present(self) -> bytes:
        """As :meth:`sized`, of a value that cannot be NULL."""
        value = self.sized()
        if value is None:
            raise Misshapen
        return value

    def count(self) -> int:
        """A number of values, as int4."""
        count = self.number(4)
        if count < 0:
            raise Misshapen
        return count

    def rest(self) -> bytes:
        """The remaining bytes of the value."""
        return self.take(len(self._value) - self._at)

    def close(self) -> None:
        """Refuse a value that has bytes left."""
        if self._at != len(self._value):
            raise Misshapen


def fields(value: bytes, *sizes: int) -> tuple[int, ...]:
    """The signed integers of a value that consists of integers of these sizes."""
    cursor = Cursor(value)
    numbers = tuple(cursor.number(size) for size in sizes)
    cursor.close()
    return numbers
