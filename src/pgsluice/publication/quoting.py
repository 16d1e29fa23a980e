"""SQL text around names and filters."""

from __future__ import annotations

from pgsluice.publication.row_filter.deparse import quote_identifier, quote_literal
from pgsluice.publication.row_filter.lexer import tokenize

__all__ = ["parenthesised", "quote_identifier", "quote_literal"]


def parenthesised(expression: str) -> str:
    """An expression in parentheses, one pair of them: ``pg_get_expr`` often brings them."""
    depth = 0
    tokens = tokenize(expression)[:-1]
    for number, token in enumerate(tokens):
        if token.is_punctuation("("):
            depth += 1
        elif token.is_punctuation(")"):
            depth -= 1
        if depth == 0:
            return expression if number == len(tokens) - 1 > 0 else f"({expression})"
    return f"({expression})"
