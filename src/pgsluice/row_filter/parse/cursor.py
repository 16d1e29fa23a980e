"""The cursor that all parts of the filter parser share."""

from __future__ import annotations

from pgsluice.row_filter.parse.syntax import Syntax
from pgsluice.sql import TokenCursor, TokenKind


class FilterCursor(TokenCursor):
    """A cursor that reads expressions, lists of them and qualified names."""

    def expression(self, minimum: int = 1, *, plain: bool = False) -> Syntax:
        """Parse an expression; :class:`parse.Parser` implements it."""
        raise NotImplementedError

    def expressions(self) -> tuple[Syntax, ...]:
        """Parse one expression or more, separated by commas."""
        expressions = [self.expression()]
        while self.accept(","):
            expressions.append(self.expression())
        return tuple(expressions)

    def qualified_name(self) -> tuple[str, ...]:
        """any_name: a name, then labels after dots."""
        names = [self.column_id()]
        while self.accept("."):
            names.append(self.label())
        return tuple(names)

    def is_select(self) -> bool:
        """Whether a sub-select begins here, after any number of parentheses."""
        ahead = 0
        while self.ahead(ahead).is_punctuation("("):
            ahead += 1
        return self.ahead(ahead).is_keyword("select", "values", "with", "table")

    def skip_to_close(self) -> None:
        """Skip to the parenthesis that closes the one taken last."""
        depth = 1
        while depth:
            token = self.take()
            if token.kind is TokenKind.END:
                raise self.error(token)
            depth += token.is_punctuation("(") - token.is_punctuation(")")
