"""A position in a list of tokens, for recursive descent parsers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pgsluice.sql.errors import SqlRefused
from pgsluice.sql.lexer import Token, TokenKind

_T = TypeVar("_T")


class TokenCursor:
    """The next token, and the steps of a parser.

    Args:
        tokens: the last one is of kind END; the cursor never moves past it.
    """

    def __init__(self, tokens: list[Token], text: str) -> None:
        self.tokens = tokens
        self.text = text
        self.index = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.index]

    def is_at_end(self) -> bool:
        return self.token.kind is TokenKind.END

    def ahead(self, count: int = 1) -> Token:
        return self.tokens[min(self.index + count, len(self.tokens) - 1)]

    def take(self) -> Token:
        token = self.token
        self.index = min(self.index + 1, len(self.tokens) - 1)
        return token

    def error(self, token: Token | None = None) -> SqlRefused:
        """A syntax error at a token, the next one by default."""
        token = token or self.token
        if token.kind is TokenKind.END:
            return SqlRefused("syntax error at end of input", token.start)
        near = self.text[token.start : token.end]
        return SqlRefused(f'syntax error at or near "{near}"', token.start)

    def accept(self, punctuation: str) -> bool:
        """Whether the next token is this punctuation; if so, take it."""
        if is_next := self.token.is_punctuation(punctuation):
            self.take()
        return is_next

    def accept_keyword(self, *words: str) -> bool:
        """Whether the next token is one of these keywords; if so, take it."""
        if is_next := self.token.is_keyword(*words):
            self.take()
        return is_next

    def accept_operator(self, *operators: str) -> bool:
        """Whether the next token is one of these operators; if so, take it."""
        if is_next := self.token.is_operator(*operators):
            self.take()
        return is_next

    def expect(self, punctuation: str) -> Token:
        if not self.token.is_punctuation(punctuation):
            raise self.error()
        return self.take()

    def expect_keyword(self, *words: str) -> Token:
        if not self.token.is_keyword(*words):
            raise self.error()
        return self.take()

    def listed(self, read: Callable[[], _T]) -> tuple[_T, ...]:
        """What a method reads, once or more often, with commas between."""
        items = [read()]
        while self.accept(","):
            items.append(read())
        return tuple(items)

    def name(self, keyword_categories: str) -> str:
        """A name that is no keyword, or a keyword of one of these categories (U, C, T, R)."""
        token = self.token
        is_allowed = not token.keyword or token.keyword in keyword_categories
        if token.kind is not TokenKind.NAME or not is_allowed:
            raise self.error()
        return self.take().value

    def column_id(self) -> str:
        """A ColId: a name that is no reserved word and no function's."""
        return self.name("UC")

    def label(self) -> str:
        """Take the next word, also a reserved one (ColLabel in PostgreSQL's grammar)."""
        return self.name("UCTR")
