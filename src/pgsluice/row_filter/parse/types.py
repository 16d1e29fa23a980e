"""Parse names of types, such as ``double precision``, ``varchar(3)[]``, ``s.t``; lists.

Source: src/backend/parser/gram.y (Typename, ConstTypename).
"""

from __future__ import annotations

from typing import TypeAlias

from pgsluice.row_filter.parse import syntax as s
from pgsluice.row_filter.parse.syntax import Syntax
from pgsluice.sql import SqlRefused, Token, TokenCursor, TokenKind

_SIMPLE = {
    "int": "int4", "integer": "int4", "smallint": "int2", "bigint": "int8", "real": "float4",
    "boolean": "bool", "json": "json",
}  # fmt: skip
_NUMERIC = ("dec", "decimal", "numeric")
_CHARACTER = ("character", "char", "varchar", "national", "nchar")
_TEMPORAL = ("time", "timestamp")

_FIELDS = {"year": 2, "month": 1, "day": 3, "hour": 10, "minute": 11, "second": 12}
"""Bits of an interval's mask (src/include/utils/datetime.h)."""
_FULL_RANGE, _FULL_PRECISION = 0x7FFF, 0xFFFF
_RANGES = {
    ("year", "month"), ("day", "hour"), ("day", "minute"), ("day", "second"),
    ("hour", "minute"), ("hour", "second"), ("minute", "second"),
}  # fmt: skip


Modifiers: TypeAlias = "tuple[s.Syntax, ...] | None"


class TypeParser(TokenCursor):
    """Parses type names, and what all parts of the filter's parser read."""

    def expression(self, minimum: int = 1, *, plain: bool = False) -> Syntax:
        """Parse an expression; ``parse.operators.Parser`` implements it."""
        raise NotImplementedError

    def expressions(self) -> tuple[Syntax, ...]:
        """Parse one expression or more, separated by commas."""
        return self.listed(self.expression)

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

    def type_name(self) -> s.TypeName:
        """Parse a Typename with its array bounds."""
        location = self.token.start
        is_setof = self.accept_keyword("setof")
        name, schema, modifiers = self._simple_type()
        dimensions = 0
        if self.accept_keyword("array"):
            dimensions = 1
            if self.accept("["):
                self._array_bound()
        else:
            while self.accept("["):
                if not self.accept("]"):
                    self._array_bound()
                dimensions += 1
        return s.TypeName(name, schema, modifiers, dimensions, is_setof, location)

    def _array_bound(self) -> None:
        if self.token.kind is not TokenKind.INTEGER:
            raise self.error()
        self.take()
        self.expect("]")

    def is_constant_type(self) -> bool:
        """Whether a ConstTypename begins here: a type with a syntax of its own."""
        token = self.token
        if token.is_keyword("double"):
            return self.ahead().is_keyword("precision")
        return token.is_keyword(
            *_SIMPLE, *_NUMERIC, *_CHARACTER, *_TEMPORAL, "float", "bit", "interval"
        )

    def constant_type(self) -> s.TypeName | None:
        """Parse ``int`` of ``int '5'``; None, and no token taken, if no string follows."""
        start, location = self.index, self.token.start
        if self.token.is_keyword("interval"):
            return self._interval_constant(location)
        name, schema, modifiers = self._simple_type(is_constant=True)
        if self.token.kind is not TokenKind.STRING:
            self.index = start
            return None
        return s.TypeName(name, schema, modifiers, 0, False, location)

    def _interval_constant(self, location: int) -> s.TypeName | None:
        """Parse ``interval 'x' day to hour``, whose fields follow the string."""
        start = self.index
        self.take()
        modifiers = self._interval_precision() if self.token.is_punctuation("(") else None
        if self.token.kind is not TokenKind.STRING:
            self.index = start
            return None
        if modifiers is None:
            string = self.index
            self.take()
            modifiers = self._interval_fields()
            self.interval_end = self.index
            self.index = string
        return s.TypeName("interval", "pg_catalog", modifiers, 0, False, location)

    interval_end = -1

    def _simple_type(self, *, is_constant: bool = False) -> tuple[str, str | None, Modifiers]:
        """A type's name, schema and modifiers."""
        if (built_in := self._type_with_syntax(is_constant)) is not None:
            name, modifiers = built_in
            return name, "pg_catalog", modifiers
        names = [self.name("UT")]
        while self.accept("."):
            names.append(self.name("UCTR"))
        schema = ".".join(names[:-1]) if len(names) > 1 else None
        return names[-1], schema, self._modifiers()

    def _type_with_syntax(self, is_constant: bool) -> tuple[str, Modifiers] | None:
        if not self.is_constant_type():
            return None
        token = self.take()
        word = token.value
        if word in _SIMPLE:
            return _SIMPLE[word], None
        if word in _NUMERIC:
            return "numeric", self._modifiers()
        if word == "double":
            self.take()
            return "float8", None
        if word == "float":
            return self._float(), None
        if word == "bit":
            return self._bit(is_constant, token.start)
        if word in _CHARACTER:
            return self._character(is_constant, token)
        if word in _TEMPORAL:
            return self._temporal(token)
        if self.token.is_punctuation("("):
            return "interval", self._interval_precision()
        return "interval", self._interval_fields()

    def _modifiers(self) -> Modifiers:
        if not self.accept("("):
            return None
        modifiers = self.expressions()
        self.expect(")")
        return modifiers

    def _float(self) -> str:
        if not self.accept("("):
            return "float8"
        bits = self._count()
        self.expect(")")
        if bits < 1 or bits > 53:
            bound = "at least 1 bit" if bits < 1 else "less than 54 bits"
            location = self.tokens[self.index - 2].start
            raise SqlRefused(f"precision for type float must be {bound}", location)
        return "float4" if bits <= 24 else "float8"

    def _count(self) -> int:
        if self.token.kind is not TokenKind.INTEGER:
            raise self.error()
        return int(self.take().value[:10])  # more digits are as far out of range

    def _bit(self, is_constant: bool, location: int) -> tuple[str, Modifiers]:
        name = "varbit" if self.accept_keyword("varying") else "bit"
        modifiers = self._modifiers()
        if modifiers is None and name == "bit":
            # a constant may have any length
            modifiers = (_integer(-1 if is_constant else 1, location),)
        return name, modifiers

    def _character(self, is_constant: bool, token: Token) -> tuple[str, Modifiers]:
        name = "varchar" if token.value == "varchar" else "bpchar"
        if token.value == "national":
            self.expect_keyword("character", "char")
        if name == "bpchar" and self.accept_keyword("varying"):
            name = "varchar"
        if self.accept("("):
            length = _integer(self._count(), token.start)
            self.expect(")")
            return name, (length,)
        if name == "bpchar" and not is_constant:
            return name, (_integer(1, token.start),)
        return name, None

    def _temporal(self, token: Token) -> tuple[str, Modifiers]:
        modifiers: Modifiers = None
        if self.accept("("):
            modifiers = (_integer(self._count(), token.start),)
            self.expect(")")
        has_zone = False
        if self.token.is_keyword("with", "without") and self.ahead().is_keyword("time"):
            has_zone = self.take().value == "with"
            self.take()
            self.expect_keyword("zone")
        return token.value + ("tz" if has_zone else ""), modifiers

    def _interval_precision(self) -> tuple[s.Syntax, ...]:
        location = self.expect("(").start
        precision = self._count()
        self.expect(")")
        return (_integer(_FULL_RANGE, location), _integer(precision, location))

    def _interval_fields(self) -> Modifiers:
        """Parse ``day to second(3)``; None if no field is named."""
        if not self.token.is_keyword(*_FIELDS):
            return None
        first = self.take()
        mask = 1 << _FIELDS[first.value]
        last = first.value
        if self.token.is_keyword("to") and (first.value, self.ahead().value) in _RANGES:
            self.take()
            last = self.take().value
            words = list(_ORDER[_ORDER.index(first.value) : _ORDER.index(last) + 1])
            mask = sum(1 << _FIELDS[word] for word in words)
        modifiers = [_integer(mask, first.start)]
        if last == "second" and self.accept("("):
            modifiers.append(_integer(self._count(), first.start))
            self.expect(")")
        return tuple(modifiers)


_ORDER = ("year", "month", "day", "hour", "minute", "second")


def _integer(value: int, location: int) -> s.Syntax:
    return s.Literal("integer", str(value), location)
