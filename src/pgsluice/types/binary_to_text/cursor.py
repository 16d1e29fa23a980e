"""Reading one binary value from its beginning to its end."""

from __future__ import annotations

import struct
from collections.abc import Callable

Printer = Callable[[bytes], str]
"""From a value's binary form to the text that the type's output function gives."""


class Misshapen(ValueError):
    """Bytes that no send function of the type makes."""


class NoTextForm(Exception):
    """A type inside a value whose text does not follow from its binary form."""

    def __init__(self, type_name: str) -> None:
        super().__init__(type_name)
        self.type_name = type_name


class Cursor:
    """A place in one value's bytes. Every read checks that there is so much left."""

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
        """As many float8."""
        return struct.unpack(f">{count}d", self.take(8 * count))

    def string(self) -> str:
        """Text up to a NUL."""
        end = self._value.find(0, self._at)
        text = self.take(end - self._at).decode()
        self._at += 1
        return text

    def sized(self) -> bytes | None:
        """Bytes behind their int4 length; None for -1, NULL."""
        size = self.number(4)
        return None if size == -1 else self.take(size)

    def rest(self) -> bytes:
        """All that is left."""
        return self.take(len(self._value) - self._at)

    def close(self) -> None:
        """Refuse a value that goes on."""
        if self._at != len(self._value):
            raise Misshapen


def fields(value: bytes, *sizes: int) -> tuple[int, ...]:
    """A value that is signed integers of these sizes and nothing else."""
    cursor = Cursor(value)
    numbers = tuple(cursor.number(size) for size in sizes)
    cursor.close()
    return numbers
