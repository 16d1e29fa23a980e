"""json and jsonb documents.

A jsonb value is a :class:`Jsonb` around Python's dict, list, str, Decimal, bool or None. A json
value is its text, and its operators cut texts out of it.
Source: src/backend/utils/adt/jsonb.c, jsonb_util.c; src/common/jsonapi.c (details of errors).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, TypeAlias

from pgsluice.row_filter.values.numbers import parse_numeric, read_numeric
from pgsluice.row_filter.values.value_type import CannotKnow, NotReadable, ValueType
from pgsluice.sql import SqlRefused

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
    """Read a jsonb document as PostgreSQL prints it."""
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
    """The order of keys in a jsonb object: by their number of bytes, then by the bytes."""
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


Json: TypeAlias = "dict[str, Json] | list[Json] | Decimal | str | bool | None"

_TOKEN = re.compile(
    r"""(?P<space>[ \t\n\r]+)|(?P<mark>[{}\[\],:])|(?P<string>"(?:[^"\\\x00-\x1f]|\\.)*")"""
    r"""|(?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![0-9A-Za-z_.$\x80-\U0010ffff]))"""
    r"""|(?P<word>[-+]?[0-9A-Za-z_\x80-\U0010ffff]+)""",
    re.DOTALL,
)
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None}


def read_json(text: str) -> str:
    """A json constant stays as it was written."""
    _Reader(text, is_checked=False).whole()
    return text


def read_jsonb(text: str) -> str:
    """Keys ordered by length and bytes, the last of equal keys kept, numbers as numeric."""
    return format_jsonb(_Reader(text, is_checked=True).whole())


class _Reader:
    """Reads a document.

    Args:
        is_checked: whether the values have to fit jsonb's types, too.
    """

    def __init__(self, text: str, *, is_checked: bool) -> None:
        self._tokens = iter(_tokens(text))
        self._is_checked = is_checked

    def whole(self) -> Json:
        value = self._value(self._next())
        if (rest := next(self._tokens, None)) is not None:
            raise _bad(f'Expected end of input, but found "{rest[1]}".')
        return value

    def _next(self) -> tuple[str, str]:
        if (token := next(self._tokens, None)) is None:
            raise _bad("The input string ended unexpectedly.")
        return token

    def _value(self, token: tuple[str, str]) -> Json:
        match token:
            case "string", text:
                return self._string(text)
            case "number", text:
                return parse_numeric(read_numeric(text)) if self._is_checked else Decimal()
            case "word", text:
                return _WORDS[text]
            case _, "[":
                return self._array()
            case _, "{":
                return self._object()
        raise _bad(f'Expected JSON value, but found "{token[1]}".')

    def _array(self) -> Json:
        elements: list[Json] = []
        token = self._next()
        if token == ("mark", "]"):
            return elements
        while True:
            elements.append(self._value(token))
            if not self._goes_on("]"):
                return elements
            token = self._next()

    def _object(self) -> Json:
        members: dict[str, Json] = {}
        kind, key = self._next()
        if (kind, key) == ("mark", "}"):
            return members
        while True:
            if kind != "string":
                wanted = "string" if members else 'string or "}"'
                raise _bad(f'Expected {wanted}, but found "{key}".')
            if (colon := self._next()[1]) != ":":
                raise _bad(f'Expected ":", but found "{colon}".')
            members[self._string(key)] = self._value(self._next())
            if not self._goes_on("}"):
                return members
            kind, key = self._next()

    def _goes_on(self, end: str) -> bool:
        """Whether a comma follows, and not the end of the array or object."""
        if (text := self._next()[1]) not in (",", end):
            raise _bad(f'Expected "," or "{end}", but found "{text}".')
        return text == ","

    def _string(self, token: str) -> str:
        try:
            value = str(json.loads(token))
        except ValueError:
            raise _bad("Escape sequence is invalid.") from None
        if self._is_checked and "\0" in value:
            raise SqlRefused(
                "unsupported Unicode escape sequence", detail="\\u0000 cannot be converted to text."
            )
        return value


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, index = [], 0
    while index < len(text):
        token = _TOKEN.match(text, index)
        if token is None:
            raise _bad(f'Token "{text[index:]}" is invalid.')
        index = token.end()
        if token.lastgroup == "word" and token[0] not in _WORDS:
            raise _bad(f'Token "{token[0]}" is invalid.')
        if token.lastgroup != "space":
            tokens.append((str(token.lastgroup), token[0]))
    return tokens


def _bad(detail: str) -> SqlRefused:
    return SqlRefused("invalid input syntax for type json", detail=detail)
