"""The output of a constant of any type, or the error of the type's input function.

Literals that depend on the server's settings or the time (``'now'``, ``'Jan 1 2024'``), and types
whose text pgsluice cannot normalise, are refused by pgsluice only: PostgreSQL accepts them.

Source: the types' input functions under src/backend/utils/adt/.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pgsluice.definitions.source_tables import FIRST_NORMAL_OID
from pgsluice.row_filter import catalog as c
from pgsluice.row_filter.values import SUBTYPES, VALUE_TYPES, NotReadable
from pgsluice.row_filter.values.collections import read_array
from pgsluice.row_filter.values.datetimes import (
    read_date,
    read_time,
    read_timestamp,
    read_timestamptz,
    read_timetz,
)
from pgsluice.row_filter.values.intervals import read_interval
from pgsluice.row_filter.values.jsonb import read_json, read_jsonb
from pgsluice.row_filter.values.jsonpath import format_path, parse_path
from pgsluice.row_filter.values.networks import read_cidr, read_inet, read_macaddr, read_macaddr8
from pgsluice.row_filter.values.numbers import float_reader, integer_reader, read_numeric, read_oid
from pgsluice.row_filter.values.ranges import read_range
from pgsluice.row_filter.values.strings import hexadecimal_digits, is_octal, without_escapes
from pgsluice.row_filter.values.value_type import invalid, not_exact, same
from pgsluice.sql import SqlRefused


def canonical(catalog: c.Catalog, type_oid: int, text: str, typmod: int = -1) -> str:
    """The canonical output of a literal.

    Raises:
        SqlRefused: PostgreSQL refuses it, or only pgsluice cannot read it.
    """
    if reader := _READERS.get(type_oid):
        return reader(text)
    if reader_of_bytes := _READERS_OF_BYTES.get(type_oid):
        # without a codec of the database's encoding, the filter is ASCII
        return reader_of_bytes(text, catalog.text_rules.codec or "ascii")
    if type_oid == c.INTERVAL:
        return read_interval(text, typmod)
    if type_oid == c.RECORD:
        raise SqlRefused("input of anonymous composite types is not implemented")
    row = catalog.type(type_oid)
    if row.element:
        return read_array(text, lambda value: canonical(catalog, row.element, value))
    if type_oid in SUBTYPES:
        subtype = SUBTYPES[type_oid]
        return read_range(
            text, VALUE_TYPES[subtype], lambda value: canonical(catalog, subtype, value)
        )
    if row.kind == "e":
        if text not in row.labels:
            raise SqlRefused(f'invalid input value for enum {row.name}: "{text}"')
        return text
    if type_oid >= FIRST_NORMAL_OID:
        return text  # a user-defined type: the check of the filter refuses it
    raise not_exact(
        f"a constant of type {row.display}",
        "Its canonical form is known to a server only.",
    )


_BOOLEANS = {
    "t": ("true", "yes", "on", "1"), "f": ("false", "no", "off", "0"),
}  # fmt: skip


def _boolean(text: str) -> str:
    word = text.strip(" \t\n\r\f\v").lower()
    for value, names in _BOOLEANS.items():
        if any(word and name.startswith(word) and (word != "o") for name in names):
            return value
    raise invalid("boolean", text)


def _path(text: str) -> str:
    try:
        return format_path(parse_path(text))
    except NotReadable:
        raise not_exact(
            "this jsonpath",
            "Read are $, @, keys, [*], subscripts, filters, comparisons, starts with, exists,"
            " is unknown, type() and size().",
            "Use @>, ->> or a simpler path.",
        ) from None


def _name(text: str, codec: str) -> str:
    return text.encode(codec)[:63].decode(codec, "ignore")


def _char(text: str, codec: str) -> str:
    """``"char"``: one byte."""
    if is_octal(text.encode(codec)):
        raise not_exact(
            'an octal constant of type "char"',
            "Versions before 16 read it as a backslash, later ones as the byte.",
            'Compare a cast to text, such as "char"::text.',
        )
    data = text.encode(codec)[:1]
    if data and data[0] >= 128:
        return f"\\{data[0]:03o}"
    return data.decode()


_ESCAPED_BYTES = re.compile(rb"(?:[^\\]|\\\\|\\[0-3][0-7]{2})*")


def _bytea(text: str, codec: str) -> str:
    if text.startswith("\\x"):
        try:
            return "\\x" + hexadecimal_digits(text[2:]).lower()
        except ValueError as error:
            raise SqlRefused(str(error)) from None
    data = text.encode(codec)
    if not _ESCAPED_BYTES.fullmatch(data):
        raise SqlRefused("invalid input syntax for type bytea")
    return "\\x" + without_escapes(data).hex()


def _uuid(text: str) -> str:
    inner = text[1:-1] if text.startswith("{") and text.endswith("}") else text
    if not re.fullmatch(r"[0-9a-fA-F]{4}(?:-?[0-9a-fA-F]{4}){7}", inner):
        raise invalid("uuid", text)
    d = inner.replace("-", "").lower()
    return f"{d[:8]}-{d[8:12]}-{d[12:16]}-{d[16:20]}-{d[20:]}"


def _bits(text: str) -> str:
    if text[:1] in ("x", "X"):
        for digit in text[1:]:
            if digit not in "0123456789abcdefABCDEF":
                raise SqlRefused(f'"{digit}" is not a valid hexadecimal digit')
        return "".join(f"{int(digit, 16):04b}" for digit in text[1:])
    digits = text[1:] if text[:1] in ("b", "B") else text
    for digit in digits:
        if digit not in "01":
            raise SqlRefused(f'"{digit}" is not a valid binary digit')
    return digits


_READERS: dict[int, Callable[[str], str]] = {
    c.BOOL: _boolean, c.INT2: integer_reader(16, "smallint"), c.INT4: integer_reader(32, "integer"),
    c.INT8: integer_reader(64, "bigint"), c.OID: read_oid, c.NUMERIC: read_numeric,
    c.FLOAT4: float_reader(32, "real"), c.FLOAT8: float_reader(64, "double precision"),
    c.TEXT: same, c.VARCHAR: same, c.BPCHAR: same, c.UNKNOWN: same, c.CSTRING: same,
    c.UUID: _uuid, c.BIT: _bits, c.VARBIT: _bits, c.JSON: read_json, 4072: _path,
    c.JSONB: read_jsonb, 869: read_inet, 650: read_cidr, 829: read_macaddr, 774: read_macaddr8,
    c.DATE: read_date, c.TIMESTAMP: read_timestamp, c.TIMESTAMPTZ: read_timestamptz,
    c.TIME: read_time, c.TIMETZ: read_timetz,
}  # fmt: skip
_READERS_OF_BYTES: dict[int, Callable[[str, str], str]] = {
    c.NAME: _name, c.CHAR: _char, c.BYTEA: _bytea,
}  # fmt: skip
