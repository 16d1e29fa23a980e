"""Splits SQL text into tokens, as PostgreSQL's scanner does.

An operator is, as on the server, the longest run of operator characters, cut before a comment. A
trailing ``+`` or ``-`` belongs to it only if the operator also contains one of ``~ ! @ # ^ & | ` ?
%``. Unquoted names are folded to lower case; a string's token has its value.

Source: src/backend/parser/scan.l, standard_conforming_strings = on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from functools import cache
from importlib.resources import files

from pgsluice.sql.errors import SqlRefused


@cache
def keywords() -> Mapping[str, str]:
    """The category of each keyword: ``U`` unreserved, ``C`` unreserved but no function or type
    name, ``T`` reserved but allowed as function or type name, ``R`` reserved.

    Source: pg_get_keywords() of PostgreSQL 18; ``scripts/builtins.py`` writes the file."""
    text = (files(__package__) / "data" / "keywords.tsv").read_text(encoding="utf-8")
    rows = (line.split("\t") for line in text.splitlines())
    return {row[0]: row[1] for row in rows}


class TokenKind(Enum):
    """The kind of a token; a keyword is a NAME with a category in ``keyword``."""

    NAME = "name"
    STRING = "string"
    BITS = "bits"
    INTEGER = "integer"
    NUMBER = "number"
    PARAMETER = "parameter"
    OPERATOR = "operator"
    PUNCTUATION = "punctuation"
    END = "end"


@dataclass(frozen=True, slots=True)
class Token:
    """One token.

    Attributes:
        value: a name folded, a string's content, an operator, a number's digits.
        start: its first character in the text; ``end`` the first one after it.
        keyword: the keyword's category (U, C, T or R); empty for another token. A quoted name
            is never a keyword.
    """

    kind: TokenKind
    value: str
    start: int
    end: int
    keyword: str = ""

    def is_punctuation(self, value: str) -> bool:
        return self.kind is TokenKind.PUNCTUATION and self.value == value

    def is_keyword(self, *words: str) -> bool:
        return bool(self.keyword) and self.value in words

    def is_operator(self, *values: str) -> bool:
        return self.kind is TokenKind.OPERATOR and self.value in values


_SPACE = re.compile(r"(?:[ \t\n\r\f\v]+|--[^\n\r]*)+")
_NAME = re.compile(r"[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*")
_QUOTED = re.compile(r'"((?:[^"]|"")*+)"')
_OPERATOR = re.compile(r"[~!@#^&|`?+\-*/%<>=]+")
_NUMBER = re.compile(
    r"0[xX](?:_?[0-9A-Fa-f])+|0[oO](?:_?[0-7])+|0[bB](?:_?[01])+"
    r"|(?:[0-9](?:_?[0-9])*(?:\.(?!\.)(?:[0-9](?:_?[0-9])*)?)?|\.[0-9](?:_?[0-9])*)"
    r"(?:[eE][+-]?[0-9](?:_?[0-9])*)?"
)
_PARAMETER = re.compile(r"\$[0-9]+")
_DOLLAR = re.compile(r"\$(?:[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_\x80-\U0010ffff]*)?\$")
_JUNK = re.compile(r"[A-Za-z_\x80-\U0010ffff]")
_CONTINUED = re.compile(r"(?:[ \t\f\v]|--[^\n\r]*)*[\n\r](?:[ \t\n\r\f\v]|--[^\n\r]*[\n\r])*'")
_KEEPS_SIGN = set("~!@#^&|`?%")
_PUNCTUATION = set("()[],;:.")
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def tokenize(text: str) -> list[Token]:
    """Split a text into tokens; the last one is of kind END.

    Raises:
        SqlRefused: the scanner refuses the text, for example an unterminated string.
    """
    return list(_Scanner(text).run())


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.index = 0

    def run(self) -> list[Token]:
        tokens: list[Token] = []
        while True:
            self._skip_space()
            if self.index >= len(self.text):
                tokens.append(Token(TokenKind.END, "", len(self.text), len(self.text)))
                return tokens
            tokens.append(self._next())

    def _skip_space(self) -> None:
        while True:
            if space := _SPACE.match(self.text, self.index):
                self.index = space.end()
            elif self.text.startswith("/*", self.index):
                self._skip_comment()
            else:
                return

    def _skip_comment(self) -> None:
        start, depth = self.index, 0
        for mark in re.compile(r"/\*|\*/").finditer(self.text, self.index):
            depth += 1 if mark[0] == "/*" else -1
            if depth == 0:
                self.index = mark.end()
                return
        raise self._error("unterminated /* comment", start)

    def _error(self, message: str, start: int) -> SqlRefused:
        """An error of the scanner, which shows everything from the token's start on."""
        near = self.text[start:]
        return SqlRefused(f'{message} at or near "{near}"', start)

    def _next(self) -> Token:
        text, start = self.text, self.index
        char, lead = text[start], text[start : start + 2].lower()
        if char == "'":
            return self._string(start, start, escapes=False)
        if lead == "e'":
            return self._string(start, start + 1, escapes=True)
        if lead == "n'":
            self.index = start + 1
            return Token(TokenKind.NAME, "nchar", start, start + 1, "C")
        if lead in ("b'", "x'"):
            token = self._string(start, start + 1, escapes=False)
            return Token(TokenKind.BITS, lead[0] + token.value, start, self.index)
        if text[start : start + 3].lower() == "u&'":
            token = self._string(start, start + 2, escapes=False)
            return Token(TokenKind.STRING, self._unicode(token.value, start + 3), start, self.index)
        if text[start : start + 3].lower() == 'u&"':
            name = self._quoted(start, start + 2)
            return Token(TokenKind.NAME, self._unicode(name.value, start + 3), start, self.index)
        if char == '"':
            return self._quoted(start, start)
        if name_match := _NAME.match(text, start):
            return self._name(name_match[0])
        if char == "$":
            return self._dollar(start)
        if number := _NUMBER.match(text, start):
            return self._number(number[0])
        return self._symbol(start)

    def _name(self, text: str) -> Token:
        start = self.index
        self.index = start + len(text)
        folded = _fold(text)
        return Token(TokenKind.NAME, folded, start, self.index, keywords().get(folded, ""))

    def _quoted(self, start: int, quote: int) -> Token:
        if (quoted := _QUOTED.match(self.text, quote)) is None:
            raise self._error("unterminated quoted identifier", start)
        self.index = quoted.end()
        if not (name := quoted[1].replace('""', '"')):
            raise SqlRefused(
                f'zero-length delimited identifier at or near "{self.text[start : self.index]}"',
                start,
            )
        return Token(TokenKind.NAME, _truncate(name), start, self.index)

    def _string(self, start: int, quote: int, *, escapes: bool) -> Token:
        self.index = quote + 1
        parts = [self._string_part(start, escapes)]
        while more := _CONTINUED.match(self.text, self.index):
            self.index = more.end()
            parts.append(self._string_part(start, escapes))
        return Token(TokenKind.STRING, "".join(parts), start, self.index)

    def _string_part(self, start: int, escapes: bool) -> str:
        out: list[str] = []
        text = self.text
        while True:
            if self.index >= len(text):
                raise self._error("unterminated quoted string", start)
            char = text[self.index]
            if char == "'":
                if text[self.index + 1 : self.index + 2] != "'":
                    self.index += 1
                    return "".join(out)
                out.append("'")
                self.index += 2
            elif char == "\\" and escapes:
                out.append(self._escape(start))
            else:
                out.append(char)
                self.index += 1

    def _escape(self, start: int) -> str:
        rest = self.text[self.index + 1 : self.index + 10]
        if escape := re.match(r"u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})", rest):
            self.index += 1 + escape.end()
            return chr(int(escape[1] or escape[2], 16))
        if rest[:1] in ("u", "U"):
            raise SqlRefused(
                "invalid Unicode escape",
                self.index,
                server_hint="Unicode escapes must be \\uXXXX or \\UXXXXXXXX.",
            )
        if escape := re.match(r"x([0-9A-Fa-f]{1,2})|([0-7]{1,3})", rest):
            self.index += 1 + escape.end()
            return chr(int(escape[1], 16) if escape[1] else int(escape[2], 8))
        if not rest:
            raise self._error("unterminated quoted string", start)
        self.index += 2
        return _ESCAPES.get(rest[0], rest[0])

    def _unicode(self, value: str, position: int) -> str:
        def char(escape: re.Match[str]) -> str:
            code = escape[1] or escape[2]
            if code is None and escape[0] != "\\\\":
                raise SqlRefused(
                    "invalid Unicode escape",
                    position + escape.start(),
                    server_hint="Unicode escapes must be \\XXXX or \\+XXXXXX.",
                )
            return chr(int(code, 16)) if code else "\\"

        return re.sub(r"\\(?:([0-9A-Fa-f]{4})|\+([0-9A-Fa-f]{6})|\\)?", char, value)

    def _dollar(self, start: int) -> Token:
        if parameter := _PARAMETER.match(self.text, start):
            self.index = parameter.end()
            if _JUNK.match(self.text, self.index):
                near = self.text[start : self.index + 1]
                raise SqlRefused(f'trailing junk after parameter at or near "{near}"', start)
            return Token(TokenKind.PARAMETER, parameter[0][1:], start, self.index)
        if tag := _DOLLAR.match(self.text, start):
            end = self.text.find(tag[0], tag.end())
            if end < 0:
                raise self._error("unterminated dollar-quoted string", start)
            self.index = end + len(tag[0])
            return Token(TokenKind.STRING, self.text[tag.end() : end], start, self.index)
        raise SqlRefused('syntax error at or near "$"', start)

    def _number(self, digits: str) -> Token:
        start = self.index
        self.index = start + len(digits)
        if junk := _NAME.match(self.text, self.index):
            near = self.text[start : junk.end()]
            raise SqlRefused(f'trailing junk after numeric literal at or near "{near}"', start)
        plain = digits.replace("_", "").lower()
        if plain.isdigit() or plain[:2] in ("0x", "0o", "0b"):
            return Token(TokenKind.INTEGER, _decimal(plain), start, self.index)
        return Token(TokenKind.NUMBER, plain, start, self.index)

    def _symbol(self, start: int) -> Token:
        for symbol in ("::", ":=", ".."):
            if self.text.startswith(symbol, start):
                self.index = start + 2
                return Token(TokenKind.PUNCTUATION, symbol, start, self.index)
        if self.text[start] in _PUNCTUATION:
            self.index = start + 1
            return Token(TokenKind.PUNCTUATION, self.text[start], start, self.index)
        if operator := _OPERATOR.match(self.text, start):
            return self._operator(operator[0])
        raise SqlRefused(f'syntax error at or near "{self.text[start]}"', start)

    def _operator(self, run: str) -> Token:
        start = self.index
        for comment in ("--", "/*"):
            if (cut := run.find(comment)) >= 0:
                run = run[:cut]
        if len(run) > 1 and run[-1] in "+-" and not _KEEPS_SIGN & set(run):
            run = run.rstrip("+-") or run[0]
        self.index = start + len(run)
        if run == "=>":
            return Token(TokenKind.PUNCTUATION, run, start, self.index)
        return Token(TokenKind.OPERATOR, "<>" if run == "!=" else run, start, self.index)


def _fold(name: str) -> str:
    """To lower case, ASCII letters only: as the server does under a multibyte encoding."""
    return _truncate("".join(c.lower() if c.isascii() else c for c in name))


def _truncate(name: str) -> str:
    """Cut a name to 63 bytes, as the server does with a notice."""
    data = name.encode("utf-8", "surrogatepass")
    return name if len(data) < 64 else data[:63].decode("utf-8", "ignore")


def _decimal(digits: str) -> str:
    """An integer's decimal digits; it may have more of them than Python converts."""
    if digits.isdigit():
        return digits.lstrip("0") or "0"
    return format(Decimal(int(digits, 0)), "f")
