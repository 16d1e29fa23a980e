"""Parse a c_expr: constants, names, CASE, CAST, ARRAY, ROW, sub-selects.

Source: src/backend/parser/gram.y (c_expr, AexprConst, columnref).
"""

from __future__ import annotations

from collections.abc import Callable

from pgsluice.row_filter.parse import syntax as s
from pgsluice.row_filter.parse.calls import CallParser
from pgsluice.sql import SqlRefused, TokenKind

_SQL_VALUES = {
    "current_date": "date", "current_time": "timetz", "current_timestamp": "timestamptz",
    "localtime": "time", "localtimestamp": "timestamp", "current_role": "name",
    "current_user": "name", "session_user": "name", "user": "name", "current_catalog": "name",
}  # fmt: skip


class PrimaryParser(CallParser):
    """Parses a c_expr."""

    def primary(self) -> s.Syntax:
        token = self.token
        if token.is_punctuation("("):
            return self.indirection(self._parentheses())
        if token.kind is TokenKind.PARAMETER:
            self.take()
            return self.indirection(s.Parameter(token.value, token.start))
        if token.kind is not TokenKind.NAME:
            return self._constant()
        special = self._specials().get(token.value) if token.keyword else None
        if special is not None:
            return special()
        if token.keyword and self.is_constant_type():
            return self._type_constant_or_name()
        if token.keyword == "C" and self.ahead().is_punctuation("("):
            return self.special_call() or self._name()
        if token.keyword == "R":
            return self._reserved()
        return self._name()

    def _constant(self) -> s.Syntax:
        kinds = {
            TokenKind.STRING: "string", TokenKind.BITS: "bits", TokenKind.INTEGER: "integer",
            TokenKind.NUMBER: "number",
        }  # fmt: skip
        if (kind := kinds.get(self.token.kind)) is None:
            raise self.error()
        token = self.take()
        return s.Literal(kind, token.value, token.start)

    def _specials(self) -> dict[str, Callable[[], s.Syntax]]:
        return {
            "case": self._case, "cast": self._cast, "array": self._array, "exists": self._exists,
            "row": self._row, "collation": self._collation_for,
        }  # fmt: skip

    def _reserved(self) -> s.Syntax:
        token = self.take()
        word, location = token.value, token.start
        if word in ("true", "false"):
            return s.Literal("boolean", word, location)
        if word == "null":
            return s.Literal("null", "", location)
        if word in _SQL_VALUES:
            if word.endswith(("time", "timestamp")) and self.accept("("):
                if self.token.kind is not TokenKind.INTEGER:
                    raise self.error()
                self.take()
                self.expect(")")
            return s.Refused(_SQL_VALUES[word], location)
        if word == "system_user":
            return self.sql_call("system_user", location)
        raise self.error(token)

    # -- parentheses, rows, arrays, sub-selects

    def _parentheses(self) -> s.Syntax:
        location = self.expect("(").start
        if self.is_select():
            self.skip_to_close()
            return s.Refused(None, location)
        items = self.expressions()
        self.expect(")")
        if len(items) == 1:
            return items[0]
        return self._overlaps(s.RowList(items, location))

    def _row(self) -> s.Syntax:
        location = self.token.start
        if not self.ahead().is_punctuation("("):
            return self._name()
        self.take()
        self.take()
        items = () if self.token.is_punctuation(")") else self.expressions()
        self.expect(")")
        return self._overlaps(s.RowList(items, location))

    def _overlaps(self, left: s.RowList) -> s.Syntax:
        if not self.token.is_keyword("overlaps"):
            return left
        location = self.take().start
        right = self.primary()
        if not isinstance(right, s.RowList):
            raise self.error()
        for side, row in (("left", left), ("right", right)):
            if len(row.fields) != 2:
                raise SqlRefused(
                    f"wrong number of parameters on {side} side of OVERLAPS expression",
                    row.location,
                )
        return self.sql_call("overlaps", location, *left.fields, *right.fields)

    def _array(self) -> s.Syntax:
        location = self.take().start
        if self.token.is_punctuation("("):
            self.take()
            if not self.is_select():
                raise self.error()
            self.skip_to_close()
            return s.Refused(None, location)
        return self._array_list(location)

    def _array_list(self, location: int) -> s.Syntax:
        self.expect("[")
        elements: tuple[s.Syntax, ...] = ()
        if self.token.is_punctuation("["):
            elements = self.listed(lambda: self._array_list(self.token.start))
        elif not self.token.is_punctuation("]"):
            elements = self.expressions()
        self.expect("]")
        return s.ArrayList(elements, location)

    def _exists(self) -> s.Syntax:
        if not self.ahead().is_punctuation("("):
            return self._name()
        location = self.take().start
        self.take()
        if not self.is_select():
            raise self.error()
        self.skip_to_close()
        return s.Refused("bool", location)

    def _case(self) -> s.Syntax:
        location = self.take().start
        argument = None if self.token.is_keyword("when") else self.expression()
        arms: list[s.CaseWhen] = []
        while self.token.is_keyword("when") or not arms:
            when = self.expect_keyword("when").start
            condition = self.expression()
            self.expect_keyword("then")
            arms.append(s.CaseWhen(condition, self.expression(), when))
        default = self.expression() if self.accept_keyword("else") else None
        self.expect_keyword("end")
        return s.CaseCall(argument, tuple(arms), default, location)

    def _cast(self) -> s.Syntax:
        location = self.take().start
        self.expect("(")
        argument = self.expression()
        self.expect_keyword("as")
        type_name = self.type_name()
        self.expect(")")
        return s.TypeCast(argument, type_name, location)

    def _collation_for(self) -> s.Syntax:
        location = self.token.start
        if not self.ahead().is_keyword("for"):
            return self._name()
        self.take()
        self.take()
        self.expect("(")
        argument = self.expression()
        self.expect(")")
        return self.sql_call("pg_collation_for", location, argument)

    # -- names: columns, functions, typed constants

    def _type_constant_or_name(self) -> s.Syntax:
        type_name = self.constant_type()
        if type_name is None:
            return self._name()
        text = self.take()
        if self.interval_end > 0:
            self.index, self.interval_end = self.interval_end, -1
        literal = s.Literal("string", text.value, text.start)
        return s.TypeCast(literal, type_name, type_name.location)

    def _name(self) -> s.Syntax:
        first = self.token
        names: list[str | None] = [self.name("UCT")]
        location = first.start
        while self.token.is_punctuation(".") and names[-1] is not None:
            self.take()
            if self.token.is_operator("*"):
                self.take()
                names.append(None)
            else:
                names.append(self.name("UCTR"))
        is_column_only = first.keyword == "C" or None in names
        if not is_column_only or (len(names) > 1 and None not in names):
            if self.token.is_punctuation("("):
                return self.call(names, location)
            if self.token.kind is TokenKind.STRING:
                return self.typed_constant(names, None, location)
        if names == ["current_schema"] and first.keyword:
            return s.Refused("name", location)
        if first.keyword == "T":
            raise self.error()
        return self.indirection(s.ColumnRef(tuple(names), location))
