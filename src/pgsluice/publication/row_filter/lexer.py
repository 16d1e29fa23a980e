"""SQL text -> tokens, as PostgreSQL's scanner cuts them.

Operators follow the server's rule: the longest run of operator characters, cut before a
comment, without trailing ``+`` or ``-`` unless another character makes it an operator of its
own. Names are folded to lower case, quoted ones are kept; strings are given as their values.

Source: src/backend/parser/scan.l, standard_conforming_strings = on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from pgsluice.publication.row_filter.catalog import builtins
from pgsluice.publication.row_filter.errors import RowFilterError


class Kind(Enum):
    """What a token is; a keyword is a NAME whose category is in ``keyword``."""

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

    kind: Kind
    value: str
    start: int
    end: int
    keyword: str = ""

    def is_punctuation(self, value: str) -> bool:
        return self.kind is Kind.PUNCTUATION and self.value == value

    def is_keyword(self, *words: str) -> bool:
        return bool(self.keyword) and self.value in words

    def is_operator(self, *values: str) -> bool:
        return self.kind is Kind.OPERATOR and self.value in values


_SPACE = re.compile(r"(?:[ \t\n\r\f\v]+|--[^\n\r]*)+")
_NAME = re.compile(r"[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*")
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
    """All tokens of a text, the last one of kind END.

    Raises:
        RowFilterError: what the scanner refuses, such as an unterminated string.
    """
    return list(_Scanner(text).run())


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def run(self) -> list[Token]:
        tokens: list[Token] = []
        while True:
            self._skip_space()
            if self.at >= len(self.text):
                tokens.append(Token(Kind.END, "", len(self.text), len(self.text)))
                return tokens
            tokens.append(self._next())

    def _skip_space(self) -> None:
        while True:
            if space := _SPACE.match(self.text, self.at):
                self.at = space.end()
            elif self.text.startswith("/*", self.at):
                self._skip_comment()
            else:
                return

    def _skip_comment(self) -> None:
        start, depth = self.at, 0
        for mark in re.compile(r"/\*|\*/").finditer(self.text, self.at):
            depth += 1 if mark[0] == "/*" else -1
            if depth == 0:
                self.at = mark.end()
                return
        raise self._error("unterminated /* comment", start)

    def _error(self, message: str, start: int) -> RowFilterError:
        """An error of the scanner: from the token's start to the end of the text."""
        near = self.text[start:]
        return RowFilterError(f'{message} at or near "{near}"', position=start)

    def _next(self) -> Token:
        text, start = self.text, self.at
        char, lead = text[start], text[start : start + 2].lower()
        if char == "'":
            return self._string(start, start, escapes=False)
        if lead == "e'":
            return self._string(start, start + 1, escapes=True)
        if lead == "n'":
            self.at = start + 1
            return Token(Kind.NAME, "nchar", start, start + 1, "C")
        if lead in ("b'", "x'"):
            token = self._string(start, start + 1, escapes=False)
            return Token(Kind.BITS, lead[0] + token.value, start, self.at)
        if text[start : start + 3].lower() == "u&'":
            token = self._string(start, start + 2, escapes=False)
            return Token(Kind.STRING, self._unicode(token.value, start + 3), start, self.at)
        if text[start : start + 3].lower() == 'u&"':
            name = self._quoted(start, start + 2)
            return Token(Kind.NAME, self._unicode(name.value, start + 3), start, self.at)
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
        start = self.at
        self.at = start + len(text)
        folded = _fold(text)
        return Token(Kind.NAME, folded, start, self.at, builtins().keywords.get(folded, ""))

    def _quoted(self, start: int, quote: int) -> Token:
        end, parts = quote + 1, []
        while True:
            stop = self.text.find('"', end)
            if stop < 0:
                raise self._error("unterminated quoted identifier", start)
            parts.append(self.text[end:stop])
            if self.text[stop + 1 : stop + 2] != '"':
                break
            parts.append('"')
            end = stop + 2
        self.at = stop + 1
        if not (name := "".join(parts)):
            raise RowFilterError(
                f'zero-length delimited identifier at or near "{self.text[start : self.at]}"',
                position=start,
            )
        return Token(Kind.NAME, _truncate(name), start, self.at)

    def _string(self, start: int, quote: int, *, escapes: bool) -> Token:
        self.at = quote + 1
        parts = [self._string_part(start, escapes)]
        while more := _CONTINUED.match(self.text, self.at):
            self.at = more.end()
            parts.append(self._string_part(start, escapes))
        return Token(Kind.STRING, "".join(parts), start, self.at)

    def _string_part(self, start: int, escapes: bool) -> str:
        out: list[str] = []
        text = self.text
        while True:
            if self.at >= len(text):
                raise self._error("unterminated quoted string", start)
            char = text[self.at]
            if char == "'":
                if text[self.at + 1 : self.at + 2] != "'":
                    self.at += 1
                    return "".join(out)
                out.append("'")
                self.at += 2
            elif char == "\\" and escapes:
                out.append(self._escape(start))
            else:
                out.append(char)
                self.at += 1

    def _escape(self, start: int) -> str:
        rest = self.text[self.at + 1 : self.at + 10]
        if found := re.match(r"u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})", rest):
            self.at += 1 + found.end()
            return chr(int(found[1] or found[2], 16))
        if rest[:1] in ("u", "U"):
            raise RowFilterError(
                "invalid Unicode escape",
                server_hint="Unicode escapes must be \\uXXXX or \\UXXXXXXXX.",
                position=self.at,
            )
        if found := re.match(r"x([0-9A-Fa-f]{1,2})|([0-7]{1,3})", rest):
            self.at += 1 + found.end()
            return chr(int(found[1], 16) if found[1] else int(found[2], 8))
        if not rest:
            raise self._error("unterminated quoted string", start)
        self.at += 2
        return _ESCAPES.get(rest[0], rest[0])

    def _unicode(self, value: str, position: int) -> str:
        def char(found: re.Match[str]) -> str:
            code = found[1] or found[2]
            if code is None and found[0] != "\\\\":
                raise RowFilterError(
                    "invalid Unicode escape",
                    server_hint="Unicode escapes must be \\XXXX or \\+XXXXXX.",
                    position=position + found.start(),
                )
            return chr(int(code, 16)) if code else "\\"

        return re.sub(r"\\(?:([0-9A-Fa-f]{4})|\+([0-9A-Fa-f]{6})|\\)?", char, value)

    def _dollar(self, start: int) -> Token:
        if parameter := _PARAMETER.match(self.text, start):
            self.at = parameter.end()
            if _JUNK.match(self.text, self.at):
                near = self.text[start : self.at + 1]
                raise RowFilterError(
                    f'trailing junk after parameter at or near "{near}"', position=start
                )
            return Token(Kind.PARAMETER, parameter[0][1:], start, self.at)
        if tag := _DOLLAR.match(self.text, start):
            end = self.text.find(tag[0], tag.end())
            if end < 0:
                raise self._error("unterminated dollar-quoted string", start)
            self.at = end + len(tag[0])
            return Token(Kind.STRING, self.text[tag.end() : end], start, self.at)
        raise RowFilterError('syntax error at or near "$"', position=start)

    def _number(self, digits: str) -> Token:
        start = self.at
        self.at = start + len(digits)
        if junk := _NAME.match(self.text, self.at):
            near = self.text[start : junk.end()]
            raise RowFilterError(
                f'trailing junk after numeric literal at or near "{near}"', position=start
            )
        plain = digits.replace("_", "").lower()
        if plain.isdigit() or plain[:2] in ("0x", "0o", "0b"):
            return Token(
                Kind.INTEGER, str(int(plain, 10 if plain.isdigit() else 0)), start, self.at
            )
        return Token(Kind.NUMBER, plain, start, self.at)

    def _symbol(self, start: int) -> Token:
        for symbol in ("::", ":=", ".."):
            if self.text.startswith(symbol, start):
                self.at = start + 2
                return Token(Kind.PUNCTUATION, symbol, start, self.at)
        if self.text[start] in _PUNCTUATION:
            self.at = start + 1
            return Token(Kind.PUNCTUATION, self.text[start], start, self.at)
        if found := _OPERATOR.match(self.text, start):
            return self._operator(found[0])
        raise RowFilterError(f'syntax error at or near "{self.text[start]}"', position=start)

    def _operator(self, run: str) -> Token:
        start = self.at
        for comment in ("--", "/*"):
            if (cut := run.find(comment)) >= 0:
                run = run[:cut]
        if len(run) > 1 and run[-1] in "+-" and not _KEEPS_SIGN & set(run):
            run = run.rstrip("+-") or run[0]
        self.at = start + len(run)
        if run == "=>":
            return Token(Kind.PUNCTUATION, run, start, self.at)
        return Token(Kind.OPERATOR, "<>" if run == "!=" else run, start, self.at)


def _fold(name: str) -> str:
    """Lower case for ASCII only: what a multibyte server encoding does."""
    return _truncate("".join(c.lower() if c.isascii() else c for c in name))


def _truncate(name: str) -> str:
    """To 63 bytes, as the server does with a notice."""
    data = name.encode("utf-8", "surrogatepass")
    return name if len(data) < 64 else data[:63].decode("utf-8", "ignore")
