"""json and jsonb documents.

A jsonb value is a :class:`Jsonb` around Python's dict, list, str, Decimal, bool or None. A json
value is its text, and its operators cut texts out of it.
Source: src/backend/utils/adt/jsonb.c, jsonb_util.c.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from pgsluice.row_filter.values.numbers import parse_numeric
from pgsluice.row_filter.values.value_type import CannotKnow, NotReadable, ValueType

_DECODER: Final = json.JSONDecoder(parse_float=parse_numeric, parse_int=parse_numeric)
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r"}
_ESCAPED: Final = str.maketrans(
    {**{chr(n): f"\\u{n:04x}" for n in range(32)}, **_ESCAPES, "\t": "\\t"}
)


@dataclass(frozen=True, slots=True, eq=False)
class Jsonb:
    """A document; JSON's null is not SQL's NULL."""

    content: Any


def parse_jsonb(text: str) -> Jsonb:
    """Parse a jsonb's text."""
    try:
        return Jsonb(_DECODER.decode(text))
    except RecursionError:
        raise CannotKnow("a jsonb document is nested too deep to be read") from None
    except ValueError:
        raise NotReadable("jsonb") from None


def format_jsonb(content: Any) -> str:
    """Print as jsonb does: keys by length and bytes, a blank after each comma and colon."""
    match content:
        case dict():
            keys = sorted(content, key=key_order)
            return "{" + ", ".join(f"{_quote(k)}: {format_jsonb(content[k])}" for k in keys) + "}"
        case list():
            return "[" + ", ".join(map(format_jsonb, content)) + "]"
        case str():
            return _quote(content)
        case None:
            return "null"
        case bool():
            return "true" if content else "false"
        case _:
            return format(content, "f")


def key_order(key: str) -> tuple[int, bytes]:
    """The order of an object's keys."""
    raw = key.encode("utf-8", "surrogatepass")
    return len(raw), raw


def _quote(text: str) -> str:
    return f'"{text.translate(_ESCAPED)}"'


def is_equal(a: Any, b: Any) -> bool:
    """jsonb's equality: a number never equals a boolean, and 1.0 equals 1."""
    if isinstance(a, dict):
        return (
            isinstance(b, dict)
            and a.keys() == b.keys()
            and all(is_equal(value, b[key]) for key, value in a.items())
        )
    if isinstance(a, list):
        return (
            isinstance(b, list)
            and len(a) == len(b)
            and all(is_equal(left, right) for left, right in zip(a, b, strict=True))
        )
    return type(a) is type(b) and bool(a == b)


def kind_of(content: Any) -> str:
    """The kind of a value, as jsonb_typeof() names it."""
    match content:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case list():
            return "array"
        case dict():
            return "object"
    return "number"


JSON_TYPES: Final = (ValueType("jsonb", parse_jsonb, None),)
