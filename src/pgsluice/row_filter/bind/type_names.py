"""Names of types, and their modifiers.

Source: src/backend/parser/parse_type.c, src/backend/utils/adt/format_type.c and the types'
typmodin functions.
"""

from __future__ import annotations

from collections.abc import Sequence

from pgsluice.row_filter import catalog as c
from pgsluice.sql import SqlRefused

_MAX_CHARACTERS = 10 * 1024 * 1024
_FIELD_NAMES = {
    1 << 2: " year", 1 << 1: " month", 1 << 3: " day", 1 << 10: " hour", 1 << 11: " minute",
    1 << 12: " second", 6: " year to month", 0x408: " day to hour", 0xC08: " day to minute",
    0x1C08: " day to second", 0xC00: " hour to minute", 0x1C00: " hour to second",
    0x1800: " minute to second", 0x7FFF: "",
}  # fmt: skip


def format_type(catalog: c.Catalog, oid: int, typmod: int = -1) -> str:
    """``character varying(3)``, as format_type() prints it."""
    row = catalog.type(oid)
    if row.element:
        return f"{format_type(catalog, row.element, typmod)}[]"
    if oid == c.BPCHAR and typmod < 0:
        return "bpchar"
    if oid == c.BIT and typmod < 0:
        return '"bit"'
    if typmod < 0:
        return row.display
    match oid:
        case c.BPCHAR:
            return f"character({typmod - 4})"
        case c.VARCHAR:
            return f"character varying({typmod - 4})"
        case c.NUMERIC:
            scale = ((typmod - 4) & 0x7FF ^ 1024) - 1024
            return f"numeric({(typmod - 4) >> 16 & 0xFFFF},{scale})"
        case c.BIT | c.VARBIT:
            return f"{row.display}({typmod})"
        case c.TIME | c.TIMETZ | c.TIMESTAMP | c.TIMESTAMPTZ:
            first, rest = row.display.split(" ", 1)
            return f"{first}({typmod}) {rest}"
        case c.INTERVAL:
            precision = typmod & 0xFFFF
            shown = "" if precision == 0xFFFF else f"({precision})"
            return f"interval{_FIELD_NAMES.get(typmod >> 16 & 0x7FFF, '')}{shown}"
    return row.display


def display(catalog: c.Catalog, oid: int) -> str:
    """A type's name in error messages (format_type_be)."""
    row = catalog.type(oid)
    return f"{display(catalog, row.element)}[]" if row.element else row.display


def make_typmod(row: c.Type, values: Sequence[int], location: int) -> int:
    """The typmod of a type with modifiers.

    Raises:
        SqlRefused: the type's own function refuses them.
    """
    makers = {
        c.BPCHAR: _length, c.VARCHAR: _length, c.NUMERIC: _numeric, c.BIT: _bits, c.VARBIT: _bits,
        c.TIME: _precision, c.TIMETZ: _precision, c.TIMESTAMP: _precision,
        c.TIMESTAMPTZ: _precision, c.INTERVAL: _interval,
    }  # fmt: skip
    maker = makers.get(row.oid)
    if maker is None:
        raise SqlRefused(f'type modifier is not allowed for type "{row.name}"', location)
    return maker(row, values)


def _length(row: c.Type, values: Sequence[int]) -> int:
    name = "char" if row.oid == c.BPCHAR else "varchar"
    (length,) = _one(values)
    if length < 1:
        raise SqlRefused(f"length for type {name} must be at least 1")
    if length > _MAX_CHARACTERS:
        raise SqlRefused(f"length for type {name} cannot exceed {_MAX_CHARACTERS}")
    return length + 4


def _one(values: Sequence[int]) -> Sequence[int]:
    if len(values) != 1:
        raise SqlRefused("invalid type modifier")
    return values


def _numeric(row: c.Type, values: Sequence[int]) -> int:
    if len(values) > 2:
        raise SqlRefused("invalid NUMERIC type modifier")
    precision, scale = (*values, 0)[:2]
    if not 1 <= precision <= 1000:
        raise SqlRefused(f"NUMERIC precision {precision} must be between 1 and 1000")
    if not -1000 <= scale <= 1000:
        raise SqlRefused(f"NUMERIC scale {scale} must be between -1000 and 1000")
    return (precision << 16 | scale & 0x7FF) + 4


def _bits(row: c.Type, values: Sequence[int]) -> int:
    (length,) = _one(values)
    if length == -1:
        return -1
    name = "bit" if row.oid == c.BIT else "varbit"
    if length < 1:
        raise SqlRefused(f"length for type {name} must be at least 1")
    return length


def _precision(row: c.Type, values: Sequence[int]) -> int:
    (precision,) = _one(values)
    return min(precision, 6)


def _interval(row: c.Type, values: Sequence[int]) -> int:
    fields, precision = (*values, 0xFFFF)[:2]
    if fields not in _FIELD_NAMES:
        raise SqlRefused("invalid INTERVAL type modifier")
    precision = precision if precision == 0xFFFF else min(precision, 6)
    if fields == 0x7FFF and precision == 0xFFFF:
        return -1
    return fields << 16 | precision
