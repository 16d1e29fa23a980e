"""Parses SQL text like PostgreSQL: tokens, quoting, and errors with a position.

Publication statements and row filters are both parsed with this. Every error has the server's
message and the position in the text that the server reports.
"""

from pgsluice.sql.cursor import TokenCursor
from pgsluice.sql.errors import SqlRefused
from pgsluice.sql.lexer import Token, TokenKind, tokenize
from pgsluice.sql.quoting import any_of, parenthesised, quote_identifier, quote_literal, quote_title
