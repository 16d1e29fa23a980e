"""Values that contain values: arrays, the two vectors, ranges, multiranges, composites.

Each has its own rule for which elements are quoted, and how.
Source: src/backend/utils/adt/arrayfuncs.c, int.c, oid.c, rangetypes.c, multirangetypes.c,
rowtypes.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pgsluice.types.binary_to_text.cursor import Cursor, Misshapen, NoTextForm, Printer

_MAX_DIMENSIONS: Final = 6
_SPACES: Final = " \t\n\r\v\f"
_RECORD_SPECIAL: Final = re.compile(rf'[{_SPACES}"\\(),]')
_BOUND_SPECIAL: Final = re.compile(rf'[{_SPACES}"\\(),\[\]]')
_EMPTY, _LOWER_INCLUSIVE, _UPPER_INCLUSIVE, _NO_LOWER, _NO_UPPER = 1, 2, 4, 8, 16
_ALL_FLAGS: Final = 31


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """An array's dimensions, and its elements in one list.

    Attributes:
        sizes: how many elements each dimension has; empty for an empty array.
        lowers: the first index of each dimension.
        elements: None for NULL.
    """

    sizes: tuple[int, ...]
    lowers: tuple[int, ...]
    elements: tuple[bytes | None, ...]

    @classmethod
    def parse(cls, value: bytes) -> ArrayShape:
        """Parse an array's binary form, as array_send writes it."""
        cursor = Cursor(value)
        count = cursor.number(4)
        cursor.take(8)  # a flag for NULLs, and the element's OID
        if not 0 <= count <= _MAX_DIMENSIONS:
            raise Misshapen
        dimensions = [(cursor.number(4), cursor.number(4)) for _ in range(count)]
        total = 1 if dimensions else 0
        for size, _ in dimensions:
            if size < 0:  # an empty vector has one dimension without elements
                raise Misshapen
            total *= size
        if total > len(value):
            raise Misshapen
        elements = tuple(cursor.sized() for _ in range(total))
        cursor.close()
        return cls(
            tuple(size for size, _ in dimensions), tuple(low for _, low in dimensions), elements
        )


@dataclass(frozen=True, slots=True)
class ArrayPrinter:
    """array_out: ``[0:1]={1,NULL}``; bounds are printed if a first index is not 1."""

    element: Printer
    delimiter: str

    def __call__(self, value: bytes) -> str:
        shape = ArrayShape.parse(value)
        if not shape.sizes:
            return "{}"
        texts = iter([self._print_element(element) for element in shape.elements])
        bounds = ""
        if any(lower != 1 for lower in shape.lowers):
            pairs = zip(shape.lowers, shape.sizes, strict=True)
            bounds = "".join(f"[{lower}:{lower + size - 1}]" for lower, size in pairs) + "="
        return bounds + self._nest(texts, shape.sizes)

    def _nest(self, texts: Iterator[str], sizes: tuple[int, ...]) -> str:
        if not sizes:
            return next(texts)
        return (
            "{" + self.delimiter.join(self._nest(texts, sizes[1:]) for _ in range(sizes[0])) + "}"
        )

    def _print_element(self, element: bytes | None) -> str:
        if element is None:
            return "NULL"
        text = self.element(element)
        special = set('{}"\\' + self.delimiter + _SPACES)
        if text and text.upper() != "NULL" and special.isdisjoint(text):
            return text
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@dataclass(frozen=True, slots=True)
class VectorPrinter:
    """int2vector and oidvector: sent as arrays, printed with spaces between the elements."""

    element: Printer

    def __call__(self, value: bytes) -> str:
        shape = ArrayShape.parse(value)
        if len(shape.sizes) > 1 or None in shape.elements:
            raise Misshapen
        return " ".join(self.element(element) for element in shape.elements if element is not None)


@dataclass(frozen=True, slots=True)
class RangeParts:
    """A range in binary form; a bound is None where there is none."""

    is_empty: bool
    lower_inc: bool
    upper_inc: bool
    lower: bytes | None
    upper: bytes | None

    @classmethod
    def parse(cls, value: bytes) -> RangeParts:
        """Parse a range's binary form, as range_send writes it."""
        cursor = Cursor(value)
        flags = cursor.unsigned(1)
        lower = None if flags & (_EMPTY | _NO_LOWER) else cursor.present()
        upper = None if flags & (_EMPTY | _NO_UPPER) else cursor.present()
        cursor.close()
        if flags > _ALL_FLAGS:
            raise Misshapen
        lower_inc, upper_inc = bool(flags & _LOWER_INCLUSIVE), bool(flags & _UPPER_INCLUSIVE)
        return cls(bool(flags & _EMPTY), lower_inc, upper_inc, lower, upper)


@dataclass(frozen=True, slots=True)
class RangePrinter:
    """Prints ranges in binary form as PostgreSQL's range_out does."""

    bound: Printer

    def __call__(self, value: bytes) -> str:
        parts = RangeParts.parse(value)
        if parts.is_empty:
            return "empty"
        lower, upper = (
            "" if bound is None else _doubled(self.bound(bound), _BOUND_SPECIAL)
            for bound in (parts.lower, parts.upper)
        )
        opening, closing = "[" if parts.lower_inc else "(", "]" if parts.upper_inc else ")"
        return f"{opening}{lower},{upper}{closing}"


def ranges_of(value: bytes) -> list[bytes]:
    """The ranges of a multirange, as multirange_send writes it."""
    cursor = Cursor(value)
    ranges = [cursor.present() for _ in range(cursor.count())]
    cursor.close()
    return ranges


@dataclass(frozen=True, slots=True)
class MultirangePrinter:
    """Prints multiranges in binary form as PostgreSQL's multirange_out does."""

    range: Printer

    def __call__(self, value: bytes) -> str:
        return "{" + ",".join(map(self.range, ranges_of(value))) + "}"


def fields_of(value: bytes) -> list[tuple[int, bytes | None]]:
    """The OIDs of the types of a composite's attributes, and their values, as record_send writes
    them."""
    cursor = Cursor(value)
    fields = [(cursor.unsigned(4), cursor.sized()) for _ in range(cursor.count())]
    cursor.close()
    return fields


@dataclass(frozen=True, slots=True)
class RecordPrinter:
    """record_out: ``(1,"a b",)``, of a composite type of this name.

    Attributes:
        printers: the printers of the fields' types by OID; None when the text does not follow from
            the binary form.
        names: the names of these types by OID.
    """

    name: str
    printers: Mapping[int, Printer | None]
    names: Mapping[int, str]

    def __call__(self, value: bytes) -> str:
        return f"({','.join(self._print_field(*field) for field in fields_of(value))})"

    def _print_field(self, type_oid: int, field: bytes | None) -> str:
        if field is None:
            return ""
        printer = self.printers.get(type_oid)
        if printer is None:
            inner = self.names.get(type_oid, f"type {type_oid}")
            raise NoTextForm(f"{self.name}, of {inner} in it,")
        return _doubled(printer(field), _RECORD_SPECIAL)


def _doubled(text: str, special: re.Pattern[str]) -> str:
    """Quote a text that is empty or has a special character; double quotes and backslashes."""
    if text and not special.search(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '""') + '"'
