"""A cursor over tokens, which the parser's parts share, and syntax errors at it."""

from __future__ import annotations

from pgsluice.publication.row_filter.errors import RowFilterError
from pgsluice.publication.row_filter.lexer import Kind, Token
from pgsluice.publication.row_filter.syntax import Syntax


class Cursor:
    """Where the parser stands."""

    def __init__(self, tokens: list[Token], text: str) -> None:
        self.tokens = tokens
        self.text = text
        self.index = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.index]

    def ahead(self, count: int = 1) -> Token:
        return self.tokens[min(self.index + count, len(self.tokens) - 1)]

    def take(self) -> Token:
        token = self.token
        self.index = min(self.index + 1, len(self.tokens) - 1)
        return token

    def error(self, token: Token | None = None) -> RowFilterError:
        """A syntax error at a token, the next one by default."""
        token = token or self.token
        if token.kind is Kind.END:
            return RowFilterError("syntax error at end of input", position=token.start)
        near = self.text[token.start : token.end]
        return RowFilterError(f'syntax error at or near "{near}"', position=token.start)

    def refused(self, message: str, at: int) -> RowFilterError:
        """An error of the grammar that is no syntax error."""
        return RowFilterError(message, position=at)

    def accept(self, value: str) -> bool:
        """Take this punctuation if it is next."""
        if self.token.is_punctuation(value):
            self.take()
            return True
        return False

    def expect(self, value: str) -> Token:
        if not self.token.is_punctuation(value):
            raise self.error()
        return self.take()

    def accept_word(self, *words: str) -> bool:
        if self.token.is_keyword(*words):
            self.take()
            return True
        return False

    def expect_word(self, *words: str) -> Token:
        if not self.token.is_keyword(*words):
            raise self.error()
        return self.take()

    def expression(self, minimum: int = 1, *, plain: bool = False) -> Syntax:
        """An expression from here on; the grammar is :class:`parse.Parser`'s."""
        raise NotImplementedError

    def expressions(self) -> tuple[Syntax, ...]:
        """One or more expressions with commas between them."""
        found = [self.expression()]
        while self.accept(","):
            found.append(self.expression())
        return tuple(found)

    def name_of(self, categories: str) -> str:
        """A name that is no keyword, or one of these categories (U, C, T, R)."""
        token = self.token
        if token.kind is not Kind.NAME or (token.keyword and token.keyword not in categories):
            raise self.error()
        return self.take().value

    def qualified_name(self) -> tuple[str, ...]:
        """any_name: a ColId, then labels after dots."""
        names = [self.name_of("UC")]
        while self.accept("."):
            names.append(self.name_of("UCTR"))
        return tuple(names)

    def is_select(self) -> bool:
        """Whether a sub-select begins here, behind any number of parentheses."""
        ahead = 0
        while self.ahead(ahead).is_punctuation("("):
            ahead += 1
        return self.ahead(ahead).is_keyword("select", "values", "with", "table")

    def skip_to_close(self) -> None:
        """Take everything up to the parenthesis that closes the one already taken."""
        depth = 1
        while depth:
            token = self.take()
            if token.kind is Kind.END:
                raise self.error(token)
            depth += token.is_punctuation("(") - token.is_punctuation(")")
