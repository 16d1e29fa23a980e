"""Parse tokens to a syntax tree: PostgreSQL's expression grammar by precedence climbing.

The levels are those of gram.y, where ``<``, ``LIKE`` and ``IS DISTINCT FROM`` do not associate:
``a < b < c`` is a syntax error. Parentheses are not kept in the tree, and as on the server
``(a AND b) AND c`` becomes one AND of three.

Why not sqlglot: docs/adr/0008-row-filters-have-their-own-parser.md.
Source: src/backend/parser/gram.y (a_expr, b_expr, c_expr).
"""

from __future__ import annotations

from pgsluice.row_filter.nodes import TRUTHS, Connective
from pgsluice.row_filter.parse import syntax as s
from pgsluice.row_filter.parse.primary import PrimaryParser
from pgsluice.sql import Token, TokenKind, tokenize

OR, AND, NOT, IS, COMPARISON, LIKE, ESCAPE, OPERATOR = 1, 2, 3, 4, 5, 6, 7, 8
ADD, MULTIPLY, POWER, AT, COLLATE, SIGN, POSTFIX = 9, 10, 11, 12, 13, 14, 15

_COMPARISONS = frozenset(("<", ">", "=", "<=", ">=", "<>"))
_LEVELS = dict.fromkeys(_COMPARISONS, COMPARISON) | {
    "+": ADD, "-": ADD, "*": MULTIPLY, "/": MULTIPLY, "%": MULTIPLY, "^": POWER,
}  # fmt: skip
_LIKE_WORDS = ("like", "ilike", "similar", "between", "in")


def parse_filter(text: str) -> s.Syntax:
    """Parse the condition inside ``WHERE ( … )``.

    Raises:
        SqlRefused: a syntax error, with PostgreSQL's message.
    """
    text += ")"  # with the closing parenthesis a missing one shows as on the server
    parser = Parser(tokenize(text), text)
    expression = parser.expression()
    parser.expect(")")
    if parser.token.kind is not TokenKind.END:
        raise parser.error()
    return expression


class Parser(PrimaryParser):
    """Parses expressions; :meth:`expression` reads one a_expr from the next token on."""

    # -- a_expr and b_expr

    def expression(self, minimum: int = OR, *, plain: bool = False) -> s.Syntax:
        """Parse an a_expr of operators that bind at least as tightly as ``minimum``.

        Args:
            plain: parse a b_expr: no AND, LIKE, IN, BETWEEN, IS NULL, COLLATE, AT TIME ZONE.
        """
        left, closed = self._prefix(plain)
        while (level := self._level(plain)) >= minimum:
            if closed == level:
                raise self.error()
            left, closed = self._infix(left, level, plain)
        return left

    def _level(self, plain: bool) -> int:
        """The precedence of the next token as an infix or postfix operator; 0: it is not one."""
        token = self.token
        if token.kind is TokenKind.OPERATOR:
            return _LEVELS.get(token.value, OPERATOR)
        if token.is_punctuation("::") or token.is_punctuation("["):
            return POSTFIX
        if not token.keyword:
            return 0
        if token.value == "operator" and self.ahead().is_punctuation("("):
            return OPERATOR
        if token.value == "is":
            after = self.ahead(2) if self.ahead().is_keyword("not") else self.ahead()
            return IS if not plain or after.is_keyword("distinct", "document") else 0
        if plain:
            return 0
        if token.value in ("like", "ilike", "between", "in"):
            return LIKE
        if token.value == "similar" and self.ahead().is_keyword("to"):
            return LIKE
        if token.value == "not":
            return LIKE if self.ahead().is_keyword(*_LIKE_WORDS) else 0
        return {
            "or": OR, "and": AND, "isnull": IS, "notnull": IS, "collate": COLLATE, "at": AT,
        }.get(token.value, 0)  # fmt: skip

    def _prefix(self, plain: bool) -> tuple[s.Syntax, int]:
        token = self.token
        if token.is_keyword("not") and not plain:
            self.take()
            return s.Logic(Connective.NOT, (self.expression(NOT),), token.start), 0
        if token.is_operator("+", "-"):
            self.take()
            return _signed(token, self.expression(SIGN, plain=plain)), 0
        if (token.kind is TokenKind.OPERATOR and token.value not in _LEVELS) or (
            token.is_keyword("operator") and self.ahead().is_punctuation("(")
        ):
            name, schema, location = self._operator_name()
            operand = self.expression(OPERATOR + 1, plain=plain)
            return s.OperatorUse(name, schema, None, operand, location), 0
        return self.primary(), 0

    def _infix(self, left: s.Syntax, level: int, plain: bool) -> tuple[s.Syntax, int]:
        """Parse one operator after ``left``.

        Returns:
            the expression, and the level that may not follow it (0: any may).
        """
        token = self.token
        if token.is_punctuation("::"):
            self.take()
            return s.TypeCast(left, self.type_name(), token.start), 0
        if token.is_punctuation("["):
            return self.subscript(left), 0
        if token.keyword and token.value != "operator":
            return self._word(left, level, plain)
        name, schema, location = self._operator_name()
        if self.token.is_keyword("any", "some", "all"):
            return self._any_all(left, name, schema, location), 0
        right = self.expression(level + 1, plain=plain)
        closed = COMPARISON if level == COMPARISON else 0
        return s.OperatorUse(name, schema, left, right, location), closed

    def _operator_name(self) -> tuple[str, str | None, int]:
        token = self.take()
        if token.kind is TokenKind.OPERATOR:
            return token.value, None, token.start
        self.expect("(")
        schema: str | None = None
        while self.token.kind is TokenKind.NAME:
            schema = self.name("UC")
            self.expect(".")
        if self.token.kind is not TokenKind.OPERATOR:
            raise self.error()
        name = self.take().value
        self.expect(")")
        return name, schema, token.start

    def _any_all(self, left: s.Syntax, name: str, schema: str | None, location: int) -> s.Syntax:
        is_any = self.take().value != "all"
        self.expect("(")
        if self.is_select():
            self.skip_to_close()
            return s.Refused("bool", _leftmost(left, location))
        array = self.expression()
        self.expect(")")
        return s.ArrayComparison(name, schema, left, array, is_any, location)

    # -- operators that are words

    def _word(self, left: s.Syntax, level: int, plain: bool) -> tuple[s.Syntax, int]:
        token = self.take()
        word, location = token.value, token.start
        if word in ("and", "or"):
            return _joined(Connective[word.upper()], left, self.expression(level + 1), location), 0
        if word in ("isnull", "notnull"):
            return s.IsNull(left, word == "isnull", location), 0
        if word == "is":
            return self._is(left, location, plain)
        if word == "collate":
            return s.CollateClause(left, self.qualified_name(), location), 0
        if word == "at":
            return self._at(left, location), 0
        is_negated = word == "not"
        word = self.take().value if is_negated else word
        if word == "between":
            return self._between(left, is_negated, location), LIKE
        if word == "in":
            return self._in(left, is_negated, location), 0
        return self._like(left, word, is_negated, location)

    def _at(self, left: s.Syntax, location: int) -> s.Syntax:
        if self.accept_keyword("local"):
            return self.sql_call("timezone", location, left)
        self.expect_keyword("time")
        self.expect_keyword("zone")
        return self.sql_call("timezone", location, self.expression(AT + 1), left)

    def _between(self, left: s.Syntax, is_negated: bool, location: int) -> s.Syntax:
        is_symmetric = self.accept_keyword("symmetric")
        if not is_symmetric:
            self.accept_keyword("asymmetric")
        low = self.expression(plain=True)
        self.expect_keyword("and")
        high = self.expression(LIKE + 1)
        return s.Between(left, low, high, is_negated, is_symmetric, location)

    def _in(self, left: s.Syntax, is_negated: bool, location: int) -> s.Syntax:
        self.expect("(")
        if self.is_select():
            self.skip_to_close()
            return s.Refused("bool", _leftmost(left, location))
        items = self.expressions()
        self.expect(")")
        return s.InList(left, items, is_negated, location)

    def _like(
        self, left: s.Syntax, word: str, is_negated: bool, location: int
    ) -> tuple[s.Syntax, int]:
        name = {"like": "~~", "ilike": "~~*", "similar": "~"}[word]
        name = f"!{name}" if is_negated else name
        if word == "similar":
            self.expect_keyword("to")
        elif self.token.is_keyword("any", "some", "all"):
            return self._any_all(left, name, None, location), 0
        right = self.expression(ESCAPE + 1)
        escape = self.expression(ESCAPE + 1) if self.accept_keyword("escape") else None
        if word == "similar" or escape is not None:
            function = "similar_to_escape" if word == "similar" else "like_escape"
            values = (right,) if escape is None else (right, escape)
            arguments = tuple(s.Argument(value, None, location) for value in values)
            right = s.Call(function, "pg_catalog", arguments, location)
        return s.OperatorUse(name, None, left, right, location), LIKE

    def _is(self, left: s.Syntax, location: int, plain: bool) -> tuple[s.Syntax, int]:
        is_not = self.accept_keyword("not")
        token = self.take()
        word = token.value if token.keyword else ""
        if word == "distinct":
            self.expect_keyword("from")
            right = self.expression(IS + 1, plain=plain)
            return s.Distinct(left, right, is_not, location), IS
        if word == "document":
            return s.XmlCall("IS DOCUMENT", location), 0
        if word == "null":
            return s.IsNull(left, not is_not, location), 0
        if word.upper() in TRUTHS:
            return s.IsTruth(left, word.upper(), is_not, location), 0
        if word == "json":
            return self._is_json(left, location), 0
        if word in ("nfc", "nfd", "nfkc", "nfkd", "normalized"):
            return self._is_normalized(left, word, is_not, token, location), 0
        raise self.error(token)

    def _is_json(self, left: s.Syntax, location: int) -> s.Syntax:
        self.accept_keyword("value", "array", "object", "scalar")
        if self.token.is_keyword("with", "without") and self.ahead().is_keyword("unique"):
            self.take()
            self.take()
            self.accept_keyword("keys")
        return s.Refused("bool", _leftmost(left, location))

    def _is_normalized(
        self, left: s.Syntax, form: str, is_not: bool, token: Token, location: int
    ) -> s.Syntax:
        arguments = [left]
        if form != "normalized":
            self.expect_keyword("normalized")
            arguments.append(s.Literal("string", form.upper(), token.start))
        call = self.sql_call("is_normalized", location, *arguments)
        return s.Logic(Connective.NOT, (call,), location) if is_not else call


def _signed(token: Token, operand: s.Syntax) -> s.Syntax:
    """``-5`` is a constant, ``- a`` a call."""
    if (
        token.value == "-"
        and isinstance(operand, s.Literal)
        and operand.kind in ("integer", "number")
    ):
        value = operand.value[1:] if operand.value.startswith("-") else f"-{operand.value}"
        return s.Literal(operand.kind, value, token.start)
    return s.OperatorUse(token.value, None, None, operand, token.start)


def _joined(connective: Connective, left: s.Syntax, right: s.Syntax, location: int) -> s.Syntax:
    """``a AND b AND c`` becomes one AND of three; ``a AND (b AND c)`` does not."""
    if isinstance(left, s.Logic) and left.connective is connective:
        return s.Logic(connective, (*left.arguments, right), left.location)
    return s.Logic(connective, (left, right), location)


def _leftmost(left: s.Syntax, location: int) -> int:
    return min(left.location, location)
