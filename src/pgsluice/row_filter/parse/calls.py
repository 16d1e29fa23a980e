"""Parse function calls, with the ordinary syntax or a special one.

Source: src/backend/parser/gram.y (func_expr, func_expr_common_subexpr).
"""

from __future__ import annotations

from collections.abc import Callable

from pgsluice.row_filter.nodes import CallForm
from pgsluice.row_filter.parse import syntax as s
from pgsluice.row_filter.parse.types import TypeParser
from pgsluice.sql import Token, TokenKind

_XML = frozenset(
    ("xmlattributes", "xmlconcat", "xmlelement", "xmlexists", "xmlforest", "xmlparse", "xmlpi",
     "xmlroot", "xmlserialize")
)  # fmt: skip
_JSON = frozenset(
    ("json_array", "json_arrayagg", "json_exists", "json_object", "json_objectagg", "json_query",
     "json_scalar", "json_serialize", "json_value", "grouping", "merge_action")
)  # fmt: skip
_EXTRACT_FIELDS = ("year", "month", "day", "hour", "minute", "second")


class CallParser(TypeParser):
    """Parses the calls of a c_expr, and the fields and subscripts after an expression."""

    def typed_constant(
        self, names: list[str | None], modifiers: tuple[s.Syntax, ...] | None, location: int
    ) -> s.Syntax:
        *schema, name = [str(n) for n in names]
        text = self.take()
        type_name = s.TypeName(name, ".".join(schema) or None, modifiers, 0, False, location)
        return s.TypeCast(s.Literal("string", text.value, text.start), type_name, location)

    def indirection(self, argument: s.Syntax) -> s.Syntax:
        """Parse ``.field`` and ``[i]`` after an expression."""
        while True:
            if self.token.is_punctuation("["):
                argument = self.subscript(argument)
                continue
            if not self.token.is_punctuation("."):
                return argument
            location = self.take().start
            if self.token.is_operator("*"):
                self.take()
                argument = s.Field(argument, None, location)
            else:
                argument = s.Field(argument, self.name("UCTR"), location)

    def subscript(self, argument: s.Syntax) -> s.Syntax:
        """Parse ``[i]`` or ``[i:j]``."""
        bracket = self.expect("[")
        bounds: list[s.Syntax] = []
        is_slice = False
        if not self.token.is_punctuation(":"):
            bounds.append(self.expression())
        if self.accept(":"):
            is_slice = True
            if not self.token.is_punctuation("]"):
                bounds.append(self.expression())
        self.expect("]")
        return s.Subscript(argument, tuple(bounds), is_slice, bracket.start)

    def call(self, names: list[str | None], location: int) -> s.Syntax:
        *schema, name = [str(n) for n in names]
        self.expect("(")
        is_star = is_distinct = is_variadic = has_order = False
        arguments: tuple[s.Argument, ...] = ()
        if self.token.is_operator("*") and self.ahead().is_punctuation(")"):
            self.take()
            is_star = True
        elif not self.token.is_punctuation(")"):
            is_distinct = self.accept_keyword("distinct")
            if not is_distinct:
                self.accept_keyword("all")
            arguments, is_variadic = self._arguments()
            has_order = self._sorted()
        self.expect(")")
        is_plain = not (is_star or is_distinct or is_variadic or has_order)
        if self.token.kind is TokenKind.STRING and is_plain:
            return self.typed_constant(names, tuple(a.value for a in arguments), location)
        return s.Call(
            name,
            ".".join(schema) or None,
            arguments,
            location,
            is_variadic=is_variadic,
            is_star=is_star,
            is_distinct=is_distinct,
            has_order=has_order,
            has_within_group=self._clause("within", "group"),
            has_filter=self._clause("filter"),
            has_over=self._clause("over"),
        )

    def _arguments(self) -> tuple[tuple[s.Argument, ...], bool]:
        """func_arg_list, and whether its last argument is VARIADIC."""
        arguments: list[s.Argument] = []
        while True:
            is_variadic = self.accept_keyword("variadic")
            arguments.append(self._argument())
            if is_variadic or not self.accept(","):
                return tuple(arguments), is_variadic

    def _argument(self) -> s.Argument:
        token = self.token
        if token.kind is TokenKind.NAME and (
            self.ahead().is_punctuation("=>") or self.ahead().is_punctuation(":=")
        ):
            name = self.name("UT")
            self.take()
            return s.Argument(self.expression(), name, token.start)
        return s.Argument(self.expression(), None, token.start)

    def _sorted(self) -> bool:
        if not self.accept_keyword("order"):
            return False
        self.expect_keyword("by")
        while True:
            self.expression()
            self.accept_keyword("asc", "desc")
            if not self.accept(","):
                return True

    def _clause(self, *words: str) -> bool:
        """Skip ``FILTER (…)``, ``OVER (…)`` or ``WITHIN GROUP (…)`` if it follows a call."""
        if not self.token.is_keyword(words[0]) or not (
            self.ahead(len(words)).is_punctuation("(") or words[0] == "over"
        ):
            return False
        for _ in words:
            self.take()
        if self.accept("("):
            self.skip_to_close()
        else:
            self.name("UC")
        return True

    def special_call(self) -> s.Syntax | None:
        """Parse a call of a function with a syntax of its own; None if the name has none."""
        token = self.token
        word, location = token.value, token.start
        if word in _XML or word in _JSON:
            self.take()
            self.take()
            self.skip_to_close()
            self._clause("filter")
            self._clause("over")
            return s.XmlCall(word.upper(), location) if word in _XML else s.Refused(None, location)
        readers: dict[str, Callable[[Token], s.Syntax]] = {
            "coalesce": self._choice, "greatest": self._choice, "least": self._choice,
            "nullif": self._choice, "extract": self._extract, "position": self._position,
            "substring": self._substring, "overlay": self._overlay, "trim": self._trim,
            "normalize": self._normalize,
        }  # fmt: skip
        if (reader := readers.get(word)) is None:
            return None
        self.take()
        self.expect("(")
        call = reader(token)
        self.expect(")")
        return self.indirection(call)

    def _choice(self, token: Token) -> s.Syntax:
        if token.value == "nullif":
            left = self.expression()
            self.expect(",")
            arguments: tuple[s.Syntax, ...] = (left, self.expression())
        else:
            arguments = self.expressions()
        return s.ChoiceCall(token.value.upper(), arguments, token.start)

    def sql_call(self, name: str, location: int, *arguments: s.Syntax) -> s.Call:
        """A call that PostgreSQL prints with the syntax that it was written with."""
        unnamed = tuple(s.Argument(a, None, a.location) for a in arguments)
        return s.Call(name, "pg_catalog", unnamed, location, CallForm.SQL_SYNTAX)

    def _extract(self, token: Token) -> s.Syntax:
        field = self.token
        is_word = field.kind is TokenKind.NAME and (
            not field.keyword or field.value in _EXTRACT_FIELDS
        )
        if not is_word and field.kind is not TokenKind.STRING:
            raise self.error()
        self.take()
        self.expect_keyword("from")
        literal = s.Literal("string", field.value, field.start)
        return self.sql_call("extract", token.start, literal, self.expression())

    def _position(self, token: Token) -> s.Syntax:
        part = self.expression(plain=True)
        self.expect_keyword("in")
        whole = self.expression(plain=True)
        return self.sql_call("position", token.start, whole, part)

    def _normalize(self, token: Token) -> s.Syntax:
        text = self.expression()
        if not self.accept(","):
            return self.sql_call("normalize", token.start, text)
        form = self.expect_keyword("nfc", "nfd", "nfkc", "nfkd")
        return self.sql_call(
            "normalize", token.start, text, s.Literal("string", form.value.upper(), form.start)
        )

    def _plain_call(self, name: str, token: Token, first: s.Argument | None) -> s.Syntax:
        """A call of such a function with ordinary syntax: commas between its arguments."""
        arguments: tuple[s.Argument, ...] = () if first is None else (first,)
        if first is not None and self.accept(","):
            arguments += self._arguments()[0]
        return s.Call(name, None, arguments, token.start)

    def _substring(self, token: Token) -> s.Syntax:
        if self.token.is_punctuation(")"):
            return self._plain_call("substring", token, None)
        first = self._argument()
        text = first.value
        if self.accept_keyword("from"):
            start = self.expression()
            if self.accept_keyword("for"):
                return self.sql_call("substring", token.start, text, start, self.expression())
            return self.sql_call("substring", token.start, text, start)
        if self.accept_keyword("for"):
            count = self.expression()
            if self.accept_keyword("from"):
                return self.sql_call("substring", token.start, text, self.expression(), count)
            int4 = s.TypeName("int4", "pg_catalog", None, 0, False, count.location)
            first_place = s.Literal("integer", "1", token.start)
            length = s.TypeCast(count, int4, count.location)
            return self.sql_call("substring", token.start, text, first_place, length)
        if self.accept_keyword("similar"):
            pattern = self.expression()
            self.expect_keyword("escape")
            return self.sql_call("substring", token.start, text, pattern, self.expression())
        return self._plain_call("substring", token, first)

    def _overlay(self, token: Token) -> s.Syntax:
        if self.token.is_punctuation(")"):
            return self._plain_call("overlay", token, None)
        first = self._argument()
        if not self.accept_keyword("placing"):
            return self._plain_call("overlay", token, first)
        arguments = [first.value, self.expression()]
        self.expect_keyword("from")
        arguments.append(self.expression())
        if self.accept_keyword("for"):
            arguments.append(self.expression())
        return self.sql_call("overlay", token.start, *arguments)

    def _trim(self, token: Token) -> s.Syntax:
        side = self.take().value if self.token.is_keyword("both", "leading", "trailing") else ""
        name = {"leading": "ltrim", "trailing": "rtrim"}.get(side, "btrim")
        if self.accept_keyword("from"):
            return self.sql_call(name, token.start, *self.expressions())
        first = self.expression()
        if self.accept_keyword("from"):
            return self.sql_call(name, token.start, *self.expressions(), first)
        rest = self.expressions() if self.accept(",") else ()
        return self.sql_call(name, token.start, first, *rest)
