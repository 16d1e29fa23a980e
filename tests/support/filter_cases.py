"""Random row filters, typed, over a table that has every type: what differential tests run.

An expression is made twice at once: as SQL for a server, and as the nodes that the binder would
make of it. The expressions are chosen from the registry of kernels, so each supported function
is used; its types and operators come from the server's own catalog.

* ``FilterCatalog.read(connection)``: the server's rows of the supported functions.
* ``make_table(connection, name, rows, seed)``: two columns of each type (``a_int4``, ``b_int4``).
* ``CaseMaker(catalog, seed).boolean()``: a random filter; ``.calling(signature)``: any type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psycopg
from psycopg import sql
from tests.support.filter_values import (
    COLUMN_TYPES,
    TAME_COLUMN_TYPES,
    TYPES,
    random_text,
    sql_type,
)

from pgsluice.row_filter import nodes as n
from pgsluice.row_filter.kernels import KERNELS
from pgsluice.row_filter.tree import type_of
from pgsluice.row_filter.values import ELEMENTS, NAMES, SUBTYPES

OIDS = {name: oid for oid, name in NAMES.items()}
_ARRAYS = tuple(name for name in TYPES if name.startswith("_"))
_RANGES = tuple(name for name in TYPES if name.endswith("range"))
_C, _DEFAULT = 950, 100
_COLLATABLE = {"text", "varchar", "bpchar", "name", "_text", "_varchar", "_bpchar"}
_ALIKE = {
    "text": ("varchar", "bpchar_as_text"),
    "varchar": ("text",),
    "inet": ("cidr",),
    "varbit": ("bit",),
}
_PATTERNS = (
    "a", "^a", "b$", "a.b", "^[a-c]+$", "(a|b)c?", "^$", "[^a]", "a*", "^(ab){1,2}$", r"\.", r"\d",
    "[[:alpha:]]", r"^\s", "A", "a|", "[]a]", "[a-]", "(?:a|é)", r"\w+ \w", "a+?b", "^.$", "[%_]",
)  # fmt: skip
_PATHS = (
    '$."a"', '$."a"[*]', "$[*]", '($."a" == 1)', '$."b"?(@ > 1)', '(exists ($."a"))', "$.*",
    '$[0]."a"', '($."a" == "x" || $."b" != null)', '(!($[*] < 2))', 'strict $."a"."b"', "$.size()",
)  # fmt: skip
#: Arguments that have to be constants: which one, its type, and some of them.
_CONSTANTS: dict[str, tuple[int, str, tuple[str, ...]]] = {
    "timezone": (0, "text", ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata")),
    "encode": (1, "text", ("hex", "base64", "escape")),
    "decode": (1, "text", ("hex",)),
    **dict.fromkeys(("jsonb_path_exists_opr", "jsonb_path_match_opr"), (1, "jsonpath", _PATHS)),
    "jsonb_path_exists": (1, "jsonpath", tuple(path for path in _PATHS if "strict" not in path)),
}  # fmt: skip
_TIMESTAMP_UNITS = (
    "microseconds", "milliseconds", "second", "minute", "hour", "day", "week", "month", "quarter",
    "year", "decade", "century", "millennium",
)  # fmt: skip
_PART_UNITS = (*_TIMESTAMP_UNITS, "dow", "isodow", "doy", "isoyear", "epoch", "julian")


@dataclass(frozen=True, slots=True)
class Expression:
    """SQL, and the nodes that mean the same."""

    sql: str
    node: n.Node

    @property
    def type_name(self) -> str:
        """pg_type.typname."""
        return NAMES[type_of(self.node)]


@dataclass(frozen=True, slots=True)
class Signature:
    """A supported function, from pg_proc and pg_operator."""

    function: n.Function
    name: str
    arguments: tuple[str, ...]
    result: str
    operators: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class FilterCatalog:
    """The supported functions that a server has.

    Attributes:
        by_result: by the type that they give.
    """

    signatures: dict[str, Signature]
    by_result: dict[str, list[Signature]] = field(default_factory=dict)

    @classmethod
    def read(cls, connection: psycopg.Connection[Any]) -> FilterCatalog:
        """Read a server's catalog."""
        rows = connection.execute(
            "SELECT p.oid::int8, p.proname, r.typname, ARRAY(SELECT t.typname::text FROM"
            " unnest(p.proargtypes) WITH ORDINALITY a(ty, o) JOIN pg_type t ON t.oid = a.ty"
            " ORDER BY o), ARRAY(SELECT o.oid::int8 FROM pg_operator o WHERE o.oprcode = p.oid"
            " ORDER BY 1), ARRAY(SELECT o.oprname::text FROM pg_operator o WHERE o.oprcode = p.oid"
            " ORDER BY o.oid) FROM pg_proc p JOIN pg_type r ON r.oid = p.prorettype"
            " WHERE p.provolatile = 'i' AND p.pronamespace = 'pg_catalog'::regnamespace"
        ).fetchall()
        made = cls({})
        for oid, name, result, arguments, operator_oids, operators in rows:
            text = f"{name}({','.join(arguments)})"
            if text in KERNELS:
                made._add(
                    Signature(
                        n.Function(oid, text),
                        name,
                        tuple(arguments),
                        result,
                        tuple(zip(operator_oids, operators, strict=True)),
                    )
                )
        return made

    def _add(self, signature: Signature) -> None:
        self.signatures[signature.function.signature] = signature
        self.by_result.setdefault(signature.result, []).append(signature)

    def operator(self, text: str) -> n.Operator:
        """The first operator over a function."""
        signature = self.signatures[text]
        oid, name = signature.operators[0]
        return n.Operator(oid, name, signature.function)


def make_table(
    connection: psycopg.Connection[Any], name: str, rows: int, seed: int, tame: bool = False
) -> dict[str, str]:
    """A temporary table of random values, about a fifth of them NULL.

    With ``tame``, all of them fit the Arrow types that decoding gives.

    Returns:
        its columns' types by column; ``id`` counts the rows from 0.
    """
    random = Random(seed)
    types = TAME_COLUMN_TYPES if tame else COLUMN_TYPES
    columns = {f"{prefix}_{one.lstrip('_') + ('_array' if one[0] == '_' else '')}": one
               for one in TYPES for prefix in "ab"}  # fmt: skip
    definitions = ", ".join(
        f"{column} {types.get(one, sql_type(one))}" for column, one in columns.items()
    )
    connection.execute(f"CREATE TEMP TABLE {name} (id int PRIMARY KEY, {definitions})")
    for row in range(rows):
        values = [None if random.random() < 0.2 else random_text(one, random, tame)
                  for one in columns.values()]  # fmt: skip
        literals = ", ".join(
            "NULL" if value is None else f"{literal(value)}::{types.get(one, sql_type(one))}"
            for value, one in zip(values, columns.values(), strict=True)
        )
        connection.execute(f"INSERT INTO {name} VALUES ({row}, {literals})")
    return columns


def literal(text: str) -> str:
    """A string constant."""
    return sql.Literal(text).as_string(None)


class CaseMaker:
    """Makes random expressions.

    Args:
        catalog: the functions.
        columns: the table's columns and their types.
        seed: the same gives the same expressions.
    """

    def __init__(self, catalog: FilterCatalog, columns: dict[str, str], seed: int) -> None:
        self.catalog = catalog
        self.random = Random(seed)
        self._by_type: dict[str, list[str]] = {}
        for column, type_name in columns.items():
            self._by_type.setdefault(type_name, []).append(column)

    # Whole cases

    def boolean(self, depth: int = 3) -> Expression:
        """A filter."""
        return self.of_type("bool", depth)

    def calling(self, text: str, depth: int = 1) -> Expression:
        """A call of one function."""
        return self._call(self.catalog.signatures[text], depth, {})

    def of_type(self, name: str, depth: int) -> Expression:
        """Any expression of a type."""
        if depth <= 0 or self.random.random() < 0.15:
            return self._leaf(name)
        ways: list[tuple[Callable[[], Expression], int]] = [(lambda: self._leaf(name), 1)]
        if name in self.catalog.by_result:
            ways.append((lambda: self._any_call(name, depth), 6))
        if name == "bool":
            ways += [
                (lambda: self._connective(depth), 6),
                (lambda: self._null_test(depth), 1),
                (lambda: self._truth_test(depth), 1),
                (lambda: self._distinct(depth), 1),
                (lambda: self._scalar_array(depth), 2),
                (lambda: self._row_compare(depth), 1),
            ]
        if name in _ALIKE:
            ways.append((lambda: self._relabelled(name, depth), 2))
        ways += [
            (lambda: self._case(name, depth), 1),
            (lambda: self._coalesce(name, depth), 1),
        ]
        if self._equality(name) is not None:
            ways.append((lambda: self._null_if(name, depth), 1))
            ways.append((lambda: self._min_max(name, depth), 1))
        if name.startswith("_") and "{" not in name:
            ways.append((lambda: self._array(name, depth), 2))
        chosen = self.random.choices([way for way, _ in ways], [weight for _, weight in ways])[0]
        return chosen()

    # Leaves

    def _leaf(self, name: str) -> Expression:
        columns = self._by_type.get(name)
        if columns and self.random.random() < 0.75:
            column = self.random.choice(columns)
            return Expression(column, n.Column(column, OIDS[name]))
        if self.random.random() < 0.05 or name not in TYPES:
            return Expression(f"NULL::{sql_type(name)}", n.Const(None, OIDS[name]))
        return self._constant(name, random_text(name, self.random))

    def _constant(self, name: str, text: str) -> Expression:
        """The node takes the text that the server would print."""
        return Expression(f"{literal(text)}::{sql_type(name)}", n.Const(text, OIDS[name]))

    def _relabelled(self, name: str, depth: int) -> Expression:
        source = self.random.choice(_ALIKE[name])
        if source == "bpchar_as_text":
            return self.calling("text(bpchar)", depth - 1)
        inner = self.of_type(source, depth - 1)
        return Expression(f"({inner.sql})::{sql_type(name)}", n.Relabel(inner.node, OIDS[name]))

    # Calls

    def _any_call(self, name: str, depth: int) -> Expression:
        return self._call(self.random.choice(self.catalog.by_result[name]), depth, {})

    def _call(self, signature: Signature, depth: int, bound: dict[str, str]) -> Expression:
        names = self._concrete(signature, bound)
        arguments = [
            self._special(signature, place) or self.of_type(name, depth - 1)
            for place, name in enumerate(names)
        ]
        collation = 0
        if any(name in _COLLATABLE for name in names):
            arguments, collation = self._collated(signature, arguments)
        result = OIDS[self._result(signature, names)]
        nodes = tuple(one.node for one in arguments)
        texts = [one.sql for one in arguments]
        is_variadic = "_extract_path" in signature.name
        if signature.operators and (is_variadic or self.random.random() < 0.7):
            oid, operator = signature.operators[0]
            called = f"OPERATOR(pg_catalog.{operator})"
            operands = [f"({one})" for one in texts]
            text = f"({' '.join([*operands[:-1], called, operands[-1]])})"
            node: n.Node = n.OperatorCall(
                n.Operator(oid, operator, signature.function), nodes, result,
                input_collation=collation,
            )  # fmt: skip
            return Expression(text, node)
        text = f'pg_catalog."{signature.name}"({", ".join(texts)})'
        return Expression(
            text, n.FunctionCall(signature.function, nodes, result, input_collation=collation)
        )

    def _concrete(self, signature: Signature, bound: dict[str, str]) -> list[str]:
        """The arguments' types, with a choice for polymorphic ones."""
        array = bound.get("array") or self.random.choice(_ARRAYS)
        a_range = bound.get("range") or self.random.choice(_RANGES)
        if "position" in signature.name:
            array = self.random.choice(("_int4", "_text", "_numeric"))
        element = NAMES[ELEMENTS[OIDS[array]]]
        if "anyrange" in signature.arguments:
            element = NAMES[SUBTYPES[OIDS[a_range]]]
        choices = {
            "anyarray": array,
            "anycompatiblearray": array,
            "anyrange": a_range,
            "anyelement": element,
            "anycompatible": element,
        }
        without_defaults = 2 if signature.name == "jsonb_path_exists" else None
        return [choices.get(one, one) for one in signature.arguments[:without_defaults]]

    def _result(self, signature: Signature, names: list[str]) -> str:
        if signature.result == "anyelement":
            return NAMES[SUBTYPES[OIDS[names[0]]]]
        return signature.result

    def _collated(
        self, signature: Signature, arguments: list[Expression]
    ) -> tuple[list[Expression], int]:
        """Under C; sometimes, where the order does not matter, under the default collation."""
        free = signature.name in ("lower", "upper") or "like" in signature.name
        free = (free or "regex" in signature.name) and "name" not in signature.arguments
        if free and self.random.random() < 0.3:
            return arguments, _DEFAULT
        made = list(arguments)
        for place, one in enumerate(made):
            if one.type_name in _COLLATABLE:
                made[place] = collated(one)
                break
        return made, _C

    def _special(self, signature: Signature, place: int) -> Expression | None:
        """Arguments that have to be constants, or of one kind."""
        random = self.random
        name = signature.name
        if name in _CONSTANTS and place == _CONSTANTS[name][0]:
            _, type_name, texts = _CONSTANTS[name]
            if signature.arguments[place] == type_name:
                return self._constant(type_name, random.choice(texts))
        if place == 2 and name.endswith("range"):
            return self._constant("text", random.choice(("[)", "[]", "(]", "()", "x")))
        if place == 0 and name in ("date_trunc", "extract", "date_part"):
            units = _TIMESTAMP_UNITS if name == "date_trunc" else _PART_UNITS
            return self._constant("text", random.choice(units))
        if place == 1 and ("regex" in name or name == "regexp_like"):
            return self._constant("text", random.choice(_PATTERNS))
        if place == 1 and "like" in name and random.random() < 0.8:
            text = random.choice(("a%", "%b", "%", "_", "a_%", "%a%b%", "A%", "a\\%", "%.%", "a\\"))
            if signature.arguments[1] == "bytea":
                return self._constant("bytea", "\\x" + text.encode().hex())
            return self._constant("text", text)
        if place == 1 and signature.arguments[1] == "int4":
            return self._counting(signature)
        if place == 2 and signature.arguments[2] == "bool":
            return self._constant("bool", random.choice("tf"))
        return None

    def _counting(self, signature: Signature) -> Expression | None:
        """Small numbers where large ones would only be errors; type modifiers."""
        random = self.random
        match signature.function.signature:
            case "numeric(numeric,int4)":
                precision, scale = random.randint(1, 40), random.randint(-3, 12)
                return self._constant("int4", str((precision << 16 | scale & 0x7FF) + 4))
            case "varchar(varchar,int4,bool)" | "bpchar(bpchar,int4,bool)":
                return self._constant("int4", str(random.choice((-1, 5, 6, 9, 30))))
            case "date_pli(date,int4)" | "date_mii(date,int4)":
                return None
        if signature.arguments[0] in ("int4", "int8") and signature.name != "bit":
            return None
        if signature.name in ("timestamp", "timestamptz", "time", "timetz"):
            return self._constant("int4", str(random.randint(-1, 6)))
        return self._constant("int4", str(random.randint(-3, 9)))

    # Truth

    def _connective(self, depth: int) -> Expression:
        kind = self.random.choice(list(n.Connective))
        count = 1 if kind is n.Connective.NOT else self.random.randint(2, 3)
        parts = [self.of_type("bool", depth - 1) for _ in range(count)]
        texts = [f"({one.sql})" for one in parts]
        text = f"(NOT {texts[0]})" if count == 1 else f"({f' {kind.value} '.join(texts)})"
        return Expression(text, n.Bool(kind, tuple(one.node for one in parts)))

    def _null_test(self, depth: int) -> Expression:
        inner = self.of_type(self.random.choice(TYPES), depth - 1)
        is_null = self.random.random() < 0.5
        word = "IS NULL" if is_null else "IS NOT NULL"
        return Expression(f"(({inner.sql}) {word})", n.NullTest(inner.node, is_null))

    def _truth_test(self, depth: int) -> Expression:
        inner = self.of_type("bool", depth - 1)
        word, is_negated = self.random.choice([*n.TRUTHS]), self.random.random() < 0.5
        test = n.BooleanTest(inner.node, word, is_negated)
        return Expression(f"(({inner.sql}) {test.test})", test)

    def _equality(self, name: str) -> str | None:
        """The signature of a type's ``=``."""
        if name in ("varchar", "cidr", "json"):
            return None
        if name.startswith("_"):
            return "array_eq(anyarray,anyarray)"
        if name.endswith("range"):
            return "range_eq(anyrange,anyrange)"
        for form in ("{0}eq({0},{0})", "{0}_eq({0},{0})", "network_eq({0},{0})"):
            if form.format(name) in self.catalog.signatures:
                return form.format(name)
        return None

    def _comparable(self) -> str:
        return self.random.choice([one for one in TYPES if self._equality(one)])

    def _distinct(self, depth: int) -> Expression:
        name = self._comparable()
        a, b = self.of_type(name, depth - 1), self.of_type(name, depth - 1)
        operator = self.catalog.operator(self._equality(name) or "")
        node = n.DistinctFrom(operator, (a.node, b.node), _C)
        return Expression(f"(({a.sql}) IS DISTINCT FROM ({b.sql}))", node)

    def _null_if(self, name: str, depth: int) -> Expression:
        a, b = self.of_type(name, depth - 1), self.of_type(name, depth - 1)
        operator = self.catalog.operator(self._equality(name) or "")
        node = n.NullIf(operator, (a.node, b.node), OIDS[name], input_collation=_C)
        return Expression(f"NULLIF({a.sql}, {b.sql})", node)

    def _scalar_array(self, depth: int) -> Expression:
        random = self.random
        if random.random() < 0.25:
            return self._like_any(depth)
        array_name = random.choice(_ARRAYS)
        name = NAMES[ELEMENTS[OIDS[array_name]]]
        name = "text" if name == "varchar" else name
        equality = self._equality(name) or ""
        wanted = random.choice(("eq", "ne", "lt", "ge"))
        text = equality.replace("eq(", f"{wanted}(")
        if text not in self.catalog.signatures:
            text = equality.replace("eq(", f"_{wanted}(")
        scalar = self.of_type(name, depth - 1)
        scalar = collated(scalar) if name in _COLLATABLE else scalar
        array = self.of_type(f"_{name}", depth - 1)
        return self._any_or_all(self.catalog.operator(text), scalar, array)

    def _like_any(self, depth: int) -> Expression:
        operator = self.catalog.operator("textlike(text,text)")
        return self._any_or_all(
            operator,
            collated(self.of_type("text", depth - 1)),
            self._constant("_text", "{a%,%b,NULL}"),
        )

    def _any_or_all(
        self, operator: n.Operator, scalar: Expression, array: Expression
    ) -> Expression:
        is_any = self.random.random() < 0.6
        word = "ANY" if is_any else "ALL"
        node = n.ScalarArray(operator, scalar.node, array.node, is_any, _C)
        called = f"OPERATOR(pg_catalog.{operator.name})"
        return Expression(f"(({scalar.sql}) {called} {word} ({array.sql}))", node)

    def _row_compare(self, depth: int) -> Expression:
        comparison = self.random.choice(("<", "<=", ">", ">="))
        left, right = [], []
        for _ in range(2):
            name = self._comparable_in_rows()
            one = self.of_type(name, depth - 1)
            left.append(collated(one) if name in _COLLATABLE else one)
            right.append(self.of_type(name, depth - 1))
        texts = [", ".join(one.sql for one in side) for side in (left, right)]
        text = f"(({texts[0]}) {comparison} ({texts[1]}))"
        node = n.RowCompare(
            comparison,
            (),
            tuple(one.node for one in left),
            tuple(one.node for one in right),
            (_C,) * len(left),
        )
        return Expression(text, node)

    def _comparable_in_rows(self) -> str:
        return self.random.choice(("int4", "int8", "text", "numeric", "float8", "date", "bpchar"))

    # Choice

    def _case(self, name: str, depth: int) -> Expression:
        arms = [(self.of_type("bool", depth - 1), self.of_type(name, depth - 1)) for _ in range(2)]
        default = self.of_type(name, depth - 1)
        text = " ".join(f"WHEN {condition.sql} THEN {result.sql}" for condition, result in arms)
        whens = tuple(n.When(condition.node, result.node) for condition, result in arms)
        return Expression(
            f"(CASE {text} ELSE {default.sql} END)", n.Case(None, whens, default.node, OIDS[name])
        )

    def _coalesce(self, name: str, depth: int) -> Expression:
        parts = [self.of_type(name, depth - 1) for _ in range(2)]
        return Expression(
            f"COALESCE({', '.join(one.sql for one in parts)})",
            n.Coalesce(tuple(one.node for one in parts), OIDS[name]),
        )

    def _min_max(self, name: str, depth: int) -> Expression:
        if name in ("jsonb", "xid"):
            return self._coalesce(name, depth)
        parts = [self.of_type(name, depth - 1) for _ in range(2)]
        if name in _COLLATABLE:
            parts[0] = collated(parts[0])
        is_greatest = self.random.random() < 0.5
        word = "GREATEST" if is_greatest else "LEAST"
        return Expression(
            f"{word}({', '.join(one.sql for one in parts)})",
            n.MinMax(is_greatest, tuple(one.node for one in parts), OIDS[name], input_collation=_C),
        )

    def _array(self, name: str, depth: int) -> Expression:
        element = name[1:]
        parts = [self.of_type(element, depth - 1) for _ in range(self.random.randint(1, 3))]
        return Expression(
            f"ARRAY[{', '.join(one.sql for one in parts)}]",
            n.Array(tuple(one.node for one in parts), OIDS[name]),
        )


def collated(one: Expression) -> Expression:
    """Under the C collation."""
    return Expression(f'(({one.sql}) COLLATE "C")', n.Collate(one.node, _C))
