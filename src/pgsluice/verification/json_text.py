"""The text of VARIANT as ``jsonb_out`` prints json, and the same text of columns of json.

In a Delta table read as Arrow, a VARIANT is a struct of two byte strings. Source: the Parquet
project's VariantEncoding.md; src/backend/utils/adt/jsonb.c, json.c (``escape_json``).
"""

from __future__ import annotations

import re
import struct

import pyarrow as pa
from psycopg import sql

_BINARY = (pa.binary(), pa.large_binary(), pa.binary_view())
_CONTROL = re.compile(r'[\x00-\x1f"\\]')
_ESCAPES = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"'}
_ESCAPES["\\"] = "\\\\"
_WHOLE = {3: "<b", 4: "<h", 5: "<i", 6: "<q"}
_SCALED = {8: 4, 9: 8, 10: 16}

_TEXT = sql.SQL("({})::text")
_HALF_PAIR = (
    r"\\u[dD][89abAB][[:xdigit:]]{2}(?!\\u[dD][c-fC-F])"
    r"|(?<!\\u[dD][89abAB][[:xdigit:]]{2})\\u[dD][c-fC-F]"
)
_ESCAPES_JSONB_REFUSES = sql.SQL(
    "position({backslash_u} in {text}) > 0 AND replace({text}, {two}, '  ') ~ {pattern}"
)
_NUMBERS_JSONB_REFUSES = sql.SQL(
    "{text} ~ {some} AND regexp_replace({text}, {string}, '', 'g') ~ {some}"
)


def is_variant(kind: pa.DataType) -> bool:
    """Whether a type is that of a VARIANT; no composite has a struct like it."""
    return (
        pa.types.is_struct(kind)
        and [field.name for field in kind] == ["metadata", "value"]
        and all(field.type in _BINARY for field in kind)
    )


def variants(array: pa.Array) -> pa.Array:
    """The text of each value; null where the array is.

    Bytes that are no VARIANT, and types that JSON does not have, get a text that is no JSON.
    """
    texts = [None if value is None else _text_of(**value) for value in array.to_pylist()]
    return pa.array(texts, pa.large_string())


def json_as_jsonb(operand: sql.Composable) -> sql.Composable:
    """The text of a value of type json as that of jsonb: blanks, and the order of keys, are gone.

    A value that jsonb refuses is a reject with its own text, and is printed so: one with the escape
    of U+0000, with half of a surrogate pair, or with a number too large for numeric. All numbers
    with an exponent of three digits, or with 255 digits in a row, are rejects, too.
    """
    text = _TEXT.format(operand)
    escapes = _ESCAPES_JSONB_REFUSES.format(
        text=text,
        backslash_u=sql.Literal("\\u"),
        two=sql.Literal("\\\\"),
        pattern=sql.Literal(rf"\\u0000|{_HALF_PAIR}"),
    )
    numbers = _NUMBERS_JSONB_REFUSES.format(
        text=text,
        some=sql.Literal("[0-9][eE][+-]?[0-9]{3}|[0-9]{255}"),
        string=sql.Literal(r'"[^"\\]*(?:\\.[^"\\]*)*"'),
    )
    return sql.SQL("CASE WHEN ({}) OR ({}) THEN {} ELSE ({})::jsonb::text END").format(
        escapes, numbers, text, operand
    )


def _text_of(metadata: bytes, value: bytes) -> str:
    try:
        parts: list[str] = []
        _print(value, 0, _names_of(metadata), parts)
        return "".join(parts)
    except (IndexError, ValueError, struct.error, RecursionError):
        return "<no VARIANT>"


def _names_of(metadata: bytes) -> list[bytes]:
    width = 1 + (metadata[0] >> 6)
    count = _unsigned(metadata, 1, width)
    first = 1 + width * (count + 2)
    places = [first + _unsigned(metadata, 1 + width * (1 + n), width) for n in range(count + 1)]
    return [metadata[places[n] : places[n + 1]] for n in range(count)]


def _print(data: bytes, at: int, names: list[bytes], parts: list[str]) -> None:
    """Append the text of the value that begins at a byte."""
    # One frame for each level: values are nested as deeply as Python's limit allows.
    basic, header = data[at] & 0b11, data[at] >> 2
    if basic == 0:
        parts.append(_primitive(data, at, header))
        return
    if basic == 1:
        parts.append(_string(data[at + 1 : at + 1 + header]))
        return
    is_array = basic == 3
    offset_width = 1 + (header & 0b11)
    id_width = 0 if is_array else 1 + (header >> 2 & 0b11)
    count_width = 4 if header >> (2 if is_array else 4) & 1 else 1
    count = _unsigned(data, at + 1, count_width)
    ids = at + 1 + count_width
    offsets = ids + count * id_width
    values = offsets + (count + 1) * offset_width
    fields: list[tuple[bytes, int]] = []
    for number in range(count):
        place = values + _unsigned(data, offsets + number * offset_width, offset_width)
        name = b"" if is_array else names[_unsigned(data, ids + number * id_width, id_width)]
        fields.append((name, place))
    if not is_array:
        fields.sort(key=lambda field: (len(field[0]), field[0]))  # as jsonb does
    parts.append("[" if is_array else "{")
    for number, (name, place) in enumerate(fields):
        if number:
            parts.append(", ")
        if not is_array:
            parts += [_string(name), ": "]
        _print(data, place, names, parts)
    parts.append("]" if is_array else "}")


def _primitive(data: bytes, at: int, kind: int) -> str:
    if kind <= 2:
        return ("null", "true", "false")[kind]
    if kind in _WHOLE:
        return str(struct.unpack_from(_WHOLE[kind], data, at + 1)[0])
    if kind in _SCALED:
        raw = data[at + 2 : at + 2 + _SCALED[kind]]
        return _scaled(int.from_bytes(raw, "little", signed=True), data[at + 1])
    if kind == 16:
        (size,) = struct.unpack_from("<I", data, at + 1)
        return _string(data[at + 5 : at + 5 + size])
    return f"<type {kind}>"


def _scaled(number: int, scale: int) -> str:
    digits = str(abs(number)).rjust(scale + 1, "0")
    sign = "-" if number < 0 else ""
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else f"{sign}{digits}"


def _string(text: bytes) -> str:
    return f'"{_CONTROL.sub(_escaped, text.decode())}"'


def _escaped(match: re.Match[str]) -> str:
    return _ESCAPES.get(match[0]) or f"\\u{ord(match[0]):04x}"


def _unsigned(data: bytes, at: int, width: int) -> int:
    if at + width > len(data):
        raise IndexError
    return int.from_bytes(data[at : at + width], "little")
