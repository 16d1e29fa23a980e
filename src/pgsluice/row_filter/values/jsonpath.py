"""jsonpath: paths, filters and predicates; without arithmetic, variables and most methods.

A path is parsed to nodes, which print as jsonpath_out does.
Source: src/backend/utils/adt/jsonpath_gram.y, jsonpath.c (printJsonPathItem).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, TypeAlias

from pgsluice.row_filter.values.jsonb import format_jsonb
from pgsluice.row_filter.values.numbers import parse_numeric
from pgsluice.row_filter.values.value_type import NotReadable, ValueType

Content: TypeAlias = Any
"""A part of a document: dict, list, str, Decimal, bool or None."""

_TOKEN: Final = re.compile(
    r'\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)'
    r"|(?P<word>[^\W\d]\w*)|(?P<mark>==|!=|<>|<=|>=|&&|\|\||[$@.*\[\](),?<>!-]))",
    re.DOTALL,
)
_METHODS: Final = ("type", "size")
_MOST_NESTED: Final = 50


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant: null, true, a number or a string."""

    value: Content


@dataclass(frozen=True, slots=True)
class Step:
    """One accessor of a path.

    Attributes:
        kind: ``key``, ``keys`` (``.*``), ``elements`` (``[*]``), ``indexes``, ``filter``, or the
            name of a method.
        key: the name, for ``key``.
        indexes: the two ends of each subscript, which are equal for a single index; None stands for
            the keyword ``last``.
        predicate: the condition, for ``filter``.
    """

    kind: str
    key: str = ""
    indexes: tuple[tuple[int | None, int | None], ...] = ()
    predicate: Predicate | None = None


@dataclass(frozen=True, slots=True)
class Accessors:
    """``$`` or ``@`` with its steps."""

    is_root: bool
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Predicate:
    """A test.

    Attributes:
        kind: a comparison, ``starts with``, ``&&``, ``||``, ``!``, ``exists`` or ``is unknown``.
    """

    kind: str
    arguments: tuple[Expression, ...]


Expression: TypeAlias = Literal | Accessors | Predicate


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A path; a lax one ignores what does not fit, and looks into arrays."""

    is_lax: bool
    expression: Expression


# Parsing


def parse_path(text: str) -> JsonPath:
    """Parse a path; raises NotReadable for one that is not supported, or none at all."""
    return _Parser(text).path()


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        index, end = 0, len(text.rstrip())
        while index < end:
            token = _TOKEN.match(text, index)
            if token is None:
                raise NotReadable("jsonpath")
            self.tokens.append((str(token.lastgroup), token[str(token.lastgroup)]))
            index = token.end()
        self.place = 0
        self.depth = 0

    def path(self) -> JsonPath:
        is_lax = not self._word("strict")
        if is_lax:
            self._word("lax")
        expression = self._any(in_filter=False)
        if self.place < len(self.tokens):
            raise NotReadable("jsonpath")
        return JsonPath(is_lax, expression)

    def _peek(self, ahead: int = 0) -> tuple[str, str]:
        place = self.place + ahead
        return self.tokens[place] if place < len(self.tokens) else ("end", "")

    def _mark(self, *marks: str) -> str:
        kind, text = self._peek()
        if kind == "mark" and text in marks:
            self.place += 1
            return text
        return ""

    def _word(self, *words: str) -> bool:
        found = all(self._peek(i) == ("word", word) for i, word in enumerate(words))
        self.place += len(words) * found
        return found

    def _expect(self, mark: str) -> None:
        if not self._mark(mark):
            raise NotReadable("jsonpath")

    def _any(self, in_filter: bool) -> Expression:
        """An expression, or a predicate; ``||`` binds less than ``&&``."""
        self.depth += 1
        if self.depth > _MOST_NESTED:
            raise NotReadable("jsonpath")
        left = self._all(in_filter)
        while self._mark("||"):
            left = _connective("||", left, self._all(in_filter))
        self.depth -= 1
        return left

    def _all(self, in_filter: bool) -> Expression:
        left = self._test(in_filter)
        while self._mark("&&"):
            left = _connective("&&", left, self._test(in_filter))
        return left

    def _predicate(self, in_filter: bool) -> Predicate:
        expression = self._any(in_filter)
        if not isinstance(expression, Predicate):
            raise NotReadable("jsonpath")
        return expression

    def _test(self, in_filter: bool) -> Expression:
        if self._mark("!"):
            self._expect("(")
            negated = self._predicate(in_filter)
            self._expect(")")
            return Predicate("!", (negated,))
        if self._peek() == ("word", "exists") and self._peek(1) == ("mark", "("):
            self.place += 2
            path = self._operand(in_filter)
            self._expect(")")
            return Predicate("exists", (path,))
        if self._mark("("):
            inner = self._any(in_filter)
            self._expect(")")
            if not isinstance(inner, Predicate):
                raise NotReadable("jsonpath")
            return Predicate("is unknown", (inner,)) if self._word("is", "unknown") else inner
        left = self._operand(in_filter)
        if comparison := self._mark("==", "!=", "<>", "<=", ">=", "<", ">"):
            right = self._operand(in_filter)
            return Predicate("!=" if comparison == "<>" else comparison, (left, right))
        if self._word("starts", "with"):
            initial = self._operand(in_filter)
            if not isinstance(initial, Literal) or not isinstance(initial.value, str):
                raise NotReadable("jsonpath")
            return Predicate("starts with", (left, initial))
        return left

    def _operand(self, in_filter: bool) -> Literal | Accessors:
        if self._mark("-"):
            number = self._operand(in_filter)
            if not isinstance(number, Literal) or type(number.value) is not Decimal:
                raise NotReadable("jsonpath")
            return Literal(-number.value)
        kind, text = self._peek()
        self.place += 1
        if kind == "mark" and (text == "$" or (text == "@" and in_filter)):
            return Accessors(text == "$", tuple(self._steps()))
        if self._peek()[1] in (".", "["):
            raise NotReadable("jsonpath")
        match kind, text:
            case "string", _:
                return Literal(_string(text))
            case "number", _:
                return Literal(parse_numeric(text))
            case "word", ("true" | "false"):
                return Literal(text == "true")
            case "word", "null":
                return Literal(None)
        raise NotReadable("jsonpath")

    def _steps(self) -> Iterator[Step]:
        while True:
            if self._mark("."):
                yield self._member()
            elif self._mark("["):
                yield self._subscripts()
            elif self._mark("?"):
                self._expect("(")
                predicate = self._predicate(in_filter=True)
                self._expect(")")
                yield Step("filter", predicate=predicate)
            else:
                return

    def _member(self) -> Step:
        if self._mark("*"):
            if self._peek() == ("mark", "*"):
                raise NotReadable("jsonpath")
            return Step("keys")
        kind, text = self._peek()
        self.place += 1
        if kind == "string":
            return Step("key", _string(text))
        if kind != "word":
            raise NotReadable("jsonpath")
        if self._mark("("):
            self._expect(")")
            if text not in _METHODS:
                raise NotReadable("jsonpath")
            return Step(text)
        return Step("key", text)

    def _subscripts(self) -> Step:
        if self._mark("*"):
            self._expect("]")
            return Step("elements")
        indexes = []
        while True:
            low = self._index()
            indexes.append((low, self._index() if self._word("to") else low))
            if not self._mark(","):
                break
        self._expect("]")
        return Step("indexes", indexes=tuple(indexes))

    def _index(self) -> int | None:
        if self._word("last"):
            return None
        kind, text = self._peek()
        if kind != "number" or not text.isdigit() or len(text) > 9:
            raise NotReadable("jsonpath")
        self.place += 1
        return int(text)


def _connective(kind: str, left: Expression, right: Expression) -> Predicate:
    if not isinstance(left, Predicate) or not isinstance(right, Predicate):
        raise NotReadable("jsonpath")
    return Predicate(kind, (left, right))


def _string(token: str) -> str:
    try:
        value = str(json.loads(token, strict=False))
        value.encode()
    except ValueError:
        raise NotReadable("jsonpath") from None
    if "\0" in value:
        raise NotReadable("jsonpath")
    return value


# Printing


def format_path(path: JsonPath) -> str:
    """Print a path as jsonpath_out does."""
    return ("" if path.is_lax else "strict ") + _printed(path.expression, in_brackets=True)


_PRIORITIES: Final = {"||": 0, "&&": 1, "!": 6, "exists": 6, "is unknown": 6}


def _priority(expression: Expression) -> int:
    return _PRIORITIES.get(expression.kind, 2) if isinstance(expression, Predicate) else 6


def _printed(expression: Expression, *, in_brackets: bool = False) -> str:
    match expression:
        case Literal():
            return format_jsonb(expression.value)
        case Accessors():
            start = "$" if expression.is_root else "@"
            return start + "".join(map(_printed_step, expression.steps))
    left = expression.arguments[0]
    match expression.kind:
        case "!":
            return f"!({_printed(left)})"
        case "exists":
            return f"exists ({_printed(left)})"
        case "is unknown":
            return f"({_printed(left)}) is unknown"
    sides = [
        _printed(side, in_brackets=_priority(side) <= _priority(expression))
        for side in expression.arguments
    ]
    text = f" {expression.kind} ".join(sides)
    return f"({text})" if in_brackets else text


def _printed_step(step: Step) -> str:
    match step.kind:
        case "key":
            return f".{format_jsonb(step.key)}"
        case "keys":
            return ".*"
        case "elements":
            return "[*]"
        case "indexes":
            return f"[{','.join(_printed_index(*pair) for pair in step.indexes)}]"
        case "filter":
            assert step.predicate is not None
            return f"?({_printed(step.predicate)})"
    return f".{step.kind}()"


def _printed_index(low: int | None, high: int | None) -> str:
    names = ["last" if index is None else str(index) for index in (low, high)]
    return names[0] if low == high else " to ".join(names)


JSON_PATHS: Final = (ValueType("jsonpath", parse_path, None),)
