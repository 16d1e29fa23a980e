"""PostgreSQL's catalog of built-in objects, as the binder needs it.

The rows are in ``data/``, written by ``scripts/builtins.py`` from a real PostgreSQL 18. They are
read at the first filter (about 20 ms). A :class:`Catalog` adds the user-defined types of one
relation's columns, so that a filter that uses one is refused with PostgreSQL's message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TypeVar

from pgsluice.definitions.source_tables import SourceType
from pgsluice.definitions.text_rules import ANY_LOCALE, TextRules
from pgsluice.row_filter.nodes import Function, Operator

BOOL, BYTEA, CHAR, NAME, INT8, INT2, INT4, TEXT, OID = 16, 17, 18, 19, 20, 21, 23, 25, 26
FLOAT4, FLOAT8, UNKNOWN, BPCHAR, VARCHAR, NUMERIC = 700, 701, 705, 1042, 1043, 1700
DATE, TIME, TIMESTAMP, TIMESTAMPTZ, INTERVAL, TIMETZ = 1082, 1083, 1114, 1184, 1186, 1266
JSON, JSONB, UUID, BIT, VARBIT, RECORD = 114, 3802, 2950, 1560, 1562, 2249
CSTRING, ANY, ANYARRAY, ANYELEMENT, ANYNONARRAY, ANYENUM = 2275, 2276, 2277, 2283, 2776, 3500
ANYRANGE, ANYMULTIRANGE = 3831, 4537
ANYCOMPATIBLE, ANYCOMPATIBLEARRAY, ANYCOMPATIBLENONARRAY = 5077, 5078, 5079
ANYCOMPATIBLERANGE, ANYCOMPATIBLEMULTIRANGE = 5080, 4538


@dataclass(frozen=True, slots=True)
class FilterColumn:
    """A column that a filter may name; ``collation`` None: its type's own."""

    name: str
    type_oid: int
    typmod: int = -1
    collation: int | None = None


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """A row of pg_operator; ``left`` is 0 for a prefix operator."""

    oid: int
    name: str
    left: int
    right: int
    result: int
    code: int
    negator: int


@dataclass(frozen=True, slots=True)
class FunctionRow:
    """A row of pg_proc; ``arguments`` are the declared types of its inputs.

    Attributes:
        kind: ``f`` function, ``a`` aggregate, ``o`` ordered-set aggregate, ``w`` window function,
            ``p`` procedure.
        volatility: ``i`` immutable, ``s`` stable, ``v`` volatile.
        variadic: the element type of a VARIADIC last argument, ``ANY`` itself, or 0.
    """

    oid: int
    name: str
    arguments: tuple[int, ...]
    result: int
    kind: str
    volatility: str
    returns_set: bool
    variadic: int
    defaults: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cast:
    """A row of pg_cast: ``context`` e, a or i; ``method`` f, i (by input/output) or b."""

    function: int
    context: str
    method: str


@dataclass(frozen=True, slots=True)
class Builtins:
    """All rows, indexed by the keys that they are looked up by."""

    types: Mapping[int, SourceType]
    type_names: Mapping[str, int]
    operators: Mapping[int, OperatorRow]
    operator_names: Mapping[str, tuple[OperatorRow, ...]]
    functions: Mapping[int, FunctionRow]
    function_names: Mapping[str, tuple[FunctionRow, ...]]
    casts: Mapping[tuple[int, int], Cast]
    collations: Mapping[int, str]
    families: Mapping[int, tuple[tuple[int, int], ...]]


def _rows(name: str) -> list[list[str]]:
    text = (files(__package__) / "data" / f"{name}.tsv").read_text(encoding="utf-8")
    return [line.split("\t") for line in text.splitlines()]


def _types() -> dict[int, SourceType]:
    return {
        int(r[0]): SourceType(
            int(r[0]), r[1], r[2], r[3], is_preferred=r[4] == "t", element=int(r[5]),
            array=int(r[6]), collation=int(r[7]), subtype=int(r[8]), multirange=int(r[9]),
            is_subscriptable=r[10] == "t", display=r[11],
        )
        for r in _rows("pg_type")
    }  # fmt: skip


def _functions() -> list[FunctionRow]:
    return [
        FunctionRow(
            int(oid), name, tuple(map(int, arguments.split())), int(result), kind, volatility,
            returns_set == "t", int(variadic), int(defaults), tuple(filter(None, names.split(","))),
        )
        for oid, name, arguments, result, kind, volatility, returns_set, variadic, defaults, names
        in _rows("pg_proc")
    ]  # fmt: skip


@cache
def builtins() -> Builtins:
    """All built-in objects of PostgreSQL 18; their files are read once in a process."""
    types = _types()
    operators = [OperatorRow(int(r[0]), r[1], *map(int, r[2:])) for r in _rows("pg_operator")]
    functions = _functions()
    families = (tuple(map(int, row)) for row in _rows("btree_operators"))
    return Builtins(
        types=types,
        type_names={t.name: t.oid for t in types.values()},
        operators={o.oid: o for o in operators},
        operator_names=_grouped((row.name, row) for row in operators),
        functions={f.oid: f for f in functions},
        function_names=_grouped((row.name, row) for row in functions),
        casts={(int(r[0]), int(r[1])): Cast(int(r[2]), r[3], r[4]) for r in _rows("pg_cast")},
        collations={int(r[0]): r[1] for r in _rows("pg_collation")},
        families=_grouped((oid, (family, strategy)) for oid, family, strategy in families),
    )


_Key = TypeVar("_Key")
_Row = TypeVar("_Row")


def _grouped(rows: Iterable[tuple[_Key, _Row]]) -> dict[_Key, tuple[_Row, ...]]:
    groups: dict[_Key, tuple[_Row, ...]] = {}
    for key, row in rows:
        groups[key] = (*groups.get(key, ()), row)
    return groups


@dataclass(frozen=True)
class Catalog:
    """The built-ins, the user-defined types that a relation's columns have, and its database."""

    user_types: Mapping[int, SourceType] = field(default_factory=dict)
    text_rules: TextRules = ANY_LOCALE

    @property
    def rows(self) -> Builtins:
        return builtins()

    def type(self, oid: int) -> SourceType:
        """A type's row; for an unknown user-defined type a row with its OID only."""
        row = self.rows.types.get(oid) or self.user_types.get(oid)
        return row or SourceType(oid, f"type {oid}", display=f"type {oid}")

    def type_named(self, name: str) -> SourceType | None:
        oid = self.rows.type_names.get(name)
        if oid is not None:
            return self.rows.types[oid]
        return next((t for t in self.user_types.values() if t.name == name), None)

    def base_type(self, oid: int) -> int:
        """The OID of the type under a domain; of another type, its own OID."""
        row = self.type(oid)
        return self.base_type(row.base) if row.kind == "d" and row.base else oid

    def display(self, oid: int) -> str:
        """A type's name in error messages (format_type_be)."""
        row = self.type(oid)
        return f"{self.display(row.element)}[]" if row.element else row.display

    def range_of_multirange(self, oid: int) -> int:
        return next((t.oid for t in self.rows.types.values() if t.multirange == oid), 0)

    def operator(self, row: OperatorRow) -> Operator:
        return Operator(row.oid, row.name, self.function(row.code))

    def function(self, oid: int) -> Function:
        row = self.rows.functions[oid]
        names = ",".join(self.type(argument).name for argument in row.arguments)
        return Function(oid, f"{row.name}({names})")
