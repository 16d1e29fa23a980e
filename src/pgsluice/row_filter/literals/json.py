"""Validate json and jsonb constants as PostgreSQL does; jsonb gets its canonical form.

Source: src/common/jsonapi.c (the details of its errors), src/backend/utils/adt/jsonb.c.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import TypeAlias

from pgsluice.row_filter.literals.bad_literals import BadLiteral
from pgsluice.row_filter.literals.numbers import numeric
from pgsluice.row_filter.values.jsonb import format_jsonb
from pgsluice.row_filter.values.numbers import parse_numeric

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
        self.tokens = self._cut(text)
        self.is_checked = is_checked
        self.at = 0

    def _cut(self, text: str) -> list[tuple[str, str]]:
        tokens, index = [], 0
        while index < len(text):
            token = _TOKEN.match(text, index)
            if token is None:
                detail = f'Token "{text[index:]}" is invalid.'
                raise _bad(detail)
            index = token.end()
            if token.lastgroup == "word" and token[0] not in _WORDS:
                raise _bad(f'Token "{token[0]}" is invalid.')
            if token.lastgroup != "space":
                tokens.append((str(token.lastgroup), token[0]))
        return tokens

    def whole(self) -> Json:
        value = self.value()
        if self.at < len(self.tokens):
            raise _bad(f'Expected end of input, but found "{self.tokens[self.at][1]}".')
        return value

    def _next(self) -> tuple[str, str]:
        if self.at >= len(self.tokens):
            raise _bad("The input string ended unexpectedly.")
        self.at += 1
        return self.tokens[self.at - 1]

    def value(self) -> Json:
        kind, text = self._next()
        if kind == "string":
            return self._string(text)
        if kind == "number":
            return parse_numeric(numeric(text)) if self.is_checked else Decimal()
        if kind == "word":
            return _WORDS[text]
        if text == "[":
            return self._array()
        if text == "{":
            return self._object()
        raise _bad(f'Expected JSON value, but found "{text}".')

    def _is_next(self, mark: str) -> bool:
        return self.at < len(self.tokens) and self.tokens[self.at] == ("mark", mark)

    def _array(self) -> Json:
        elements: list[Json] = []
        if self._is_next("]"):
            self.at += 1
            return elements
        while True:
            elements.append(self.value())
            text = self._next()[1]
            if text == "]":
                return elements
            if text != ",":
                raise _bad(f'Expected "," or "]", but found "{text}".')

    def _object(self) -> Json:
        members: dict[str, Json] = {}
        if self._is_next("}"):
            self.at += 1
            return members
        while True:
            kind, key = self._next()
            if kind != "string":
                wanted = "string" if members else 'string or "}"'
                raise _bad(f'Expected {wanted}, but found "{key}".')
            if (colon := self._next()[1]) != ":":
                raise _bad(f'Expected ":", but found "{colon}".')
            members[self._string(key)] = self.value()
            text = self._next()[1]
            if text == "}":
                return members
            if text != ",":
                raise _bad(f'Expected "," or "}}", but found "{text}".')

    def _string(self, token: str) -> str:
        try:
            value = str(json.loads(token))
        except ValueError:
            raise _bad("Escape sequence is invalid.") from None
        if self.is_checked and "\0" in value:
            raise BadLiteral(
                "unsupported Unicode escape sequence", detail="\\u0000 cannot be converted to text."
            )
        return value


def _bad(detail: str) -> BadLiteral:
    return BadLiteral("invalid input syntax for type json", detail=detail)
