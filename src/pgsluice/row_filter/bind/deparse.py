r"""Print a bound expression as SQL, as PostgreSQL's pg_get_expr() does.

Every operator is put in parentheses, implicit casts of operands are shown, and CASE is broken
into lines, as in psql's ``\dRp+``.

Source: src/backend/utils/adt/ruleutils.c (get_rule_expr, pretty = false).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from pgsluice.row_filter import catalog as c
from pgsluice.row_filter import nodes as n
from pgsluice.row_filter.bind.names import format_type
from pgsluice.row_filter.nodes import CallForm
from pgsluice.row_filter.tree import type_of
from pgsluice.sql import quote_identifier, quote_literal

_INDENT = 4
_LINE = "\0"  # a character that no text of PostgreSQL holds


def deparse(node: n.Node, catalog: c.Catalog | None = None) -> str:
    """Print a bound row filter as SQL, as pg_get_expr() does."""
    shown = _Printer(catalog or c.Catalog()).show(node)
    return re.sub(f" *{_LINE}", "\n", shown)  # a line break replaces the spaces before it


class _Printer:
    def __init__(self, catalog: c.Catalog) -> None:
        self.catalog = catalog
        self.indent = 0

    def show(self, node: n.Node, implicit: bool = True) -> str:
        """Print a node; ``implicit``: whether implicit casts are shown."""
        match node:
            case n.Const():
                return self._const(node)
            case n.Column():
                return quote_identifier(node.name)
            case n.OperatorCall():
                *before, last = map(self.show, node.arguments)
                return f"({' '.join([*before, node.operator.name, last])})"
            case n.FunctionCall():
                return self._function(node, implicit)
            case n.Bool():
                return self._bool(node)
            case n.DistinctFrom():
                left, right = (self.show(argument) for argument in node.arguments)
                return f"({left} IS DISTINCT FROM {right})"
            case n.NullIf():
                return f"NULLIF({self._list(node.arguments)})"
            case n.ScalarArray():
                word = "ANY" if node.is_any else "ALL"
                scalar, array = self.show(node.scalar), self.show(node.array)
                return f"({scalar} {node.operator.name} {word} ({array}))"
            case n.NullTest():
                return self._null_test(node)
            case n.BooleanTest():
                return f"({self.show(node.argument, False)} {node.test})"
            case n.RowCompare():
                left, right = self._list(node.left), self._list(node.right)
                return f"(ROW({left}) {node.comparison} ROW({right}))"
            case n.Case():
                return self._case(node)
            case n.Coalesce():
                return f"COALESCE({self._list(node.arguments)})"
            case n.MinMax():
                word = "GREATEST" if node.is_greatest else "LEAST"
                return f"{word}({self._list(node.arguments)})"
            case n.Array():
                shown = f"ARRAY[{self._list(node.elements)}]"
                return shown if node.elements else f"{shown}::{self._type(node.type_oid)}"
            case n.Row():
                return f"ROW({self._list(node.fields)})"
            case n.Relabel():
                if node.form is CallForm.IMPLICIT_CAST and not implicit:
                    return self.show(node.argument, False)
                return self._cast(node.argument, node.type_oid, node.typmod)
            case n.Collate():
                name = quote_identifier(self.catalog.rows.collations[node.collation])
                return f"({self.show(node.argument, implicit)} COLLATE {name})"
            case n.CaseArgument() | n.Disallowed():  # no filter that is printed has one
                return "CASE_TEST_EXPR"

    def _list(self, nodes: Iterable[n.Node]) -> str:
        return ", ".join(self.show(node) for node in nodes)

    def _type(self, oid: int, typmod: int = -1) -> str:
        return format_type(self.catalog, oid, typmod)

    def _const(self, node: n.Const, show_type: bool = True) -> str:
        label = f"::{self._type(node.type_oid, node.typmod)}"
        if node.text is None:
            return "NULL" + (label if show_type else "")
        text = node.text
        needs_label = True
        if node.type_oid == c.BOOL:
            return "true" if text == "t" else "false"
        if node.type_oid == c.INT4 and not text.startswith("-"):
            shown, needs_label = text, False
        elif node.type_oid == c.NUMERIC and text[:1].isdigit() and re.search("[eE.]", text):
            shown, needs_label = text, node.typmod >= 0
        else:
            shown = quote_literal(text)
            needs_label = node.type_oid != c.UNKNOWN
        return shown + (label if needs_label and show_type else "")

    def _bool(self, node: n.Bool) -> str:
        shown = [self.show(argument, False) for argument in node.arguments]
        if node.connective is n.Connective.NOT:
            return f"(NOT {shown[0]})"
        return "(" + f" {node.connective.value} ".join(shown) + ")"

    def _null_test(self, node: n.NullTest) -> str:
        argument = self.show(node.argument)
        kind = type_of(node.argument)
        if not node.is_row and (kind == c.RECORD or self.catalog.type(kind).kind == "c"):
            word = "NOT DISTINCT FROM NULL" if node.is_null else "DISTINCT FROM NULL"
            return f"({argument} IS {word})"
        return f"({argument} IS {'' if node.is_null else 'NOT '}NULL)"

    def _case(self, node: n.Case) -> str:
        def line() -> str:
            return _LINE + " " * self.indent

        parts = [line() + "CASE"]
        self.indent += _INDENT
        if node.argument is not None:
            parts.append(" " + self.show(node.argument))
        for arm in node.arms:
            condition = arm.condition
            if node.argument is not None and isinstance(condition, n.OperatorCall):
                condition = condition.arguments[1]
            start = line()
            parts.append(f"{start}WHEN {self.show(condition, False)}")
            parts.append(f" THEN {self.show(arm.result)}")
        start = line()
        parts.append(f"{start}ELSE {self.show(node.default)}")
        self.indent -= _INDENT
        parts.append(line() + "END")
        return "".join(parts)

    def _cast(self, argument: n.Node, oid: int, typmod: int) -> str:
        label = f"::{self._type(oid, typmod)}"
        if isinstance(argument, n.Const) and (argument.type_oid, argument.typmod) == (oid, -1):
            return self._const(argument, show_type=False) + label
        return f"({self.show(argument, False)}){label}"

    def _function(self, node: n.FunctionCall, implicit: bool) -> str:
        if node.form is CallForm.IMPLICIT_CAST and not implicit:
            return self.show(node.arguments[0], False)
        if node.form in (CallForm.IMPLICIT_CAST, CallForm.EXPLICIT_CAST):
            return self._cast(node.arguments[0], node.type_oid, node.typmod)
        name = node.function.signature.split("(")[0]
        if node.form is CallForm.SQL_SYNTAX:
            shown = [self.show(argument, False) for argument in node.arguments]
            if sql := _sql_syntax(node, name, shown):
                return sql
        shown = [self.show(argument) for argument in node.arguments]
        if node.is_variadic:
            shown[-1] = f"VARIADIC {shown[-1]}"
        return f"{quote_identifier(name)}({', '.join(shown)})"


def _sql_syntax(node: n.FunctionCall, name: str, shown: list[str]) -> str | None:
    """get_func_sql_syntax."""
    form = _SQL_SYNTAX.get(node.function.signature)
    if form is None:
        form = _SQL_SYNTAX.get(f"{name} {len(shown)}")
    words = [getattr(argument, "text", None) or "" for argument in node.arguments]
    return form and form.format(*shown, word=words)


#: By a function's signature, or by its name and its number of arguments.
_SQL_SYNTAX: Final = {
    "timezone 1": "({0} AT LOCAL)",
    "timezone 2": "({1} AT TIME ZONE {0})",
    "overlaps 4": "(({0}, {1}) OVERLAPS ({2}, {3}))",
    "extract 2": "EXTRACT({word[0]} FROM {1})",
    "is_normalized 1": "({0} IS NORMALIZED)",
    "is_normalized 2": "({0} IS {word[1]} NORMALIZED)",
    "normalize 1": "NORMALIZE({0})",
    "normalize 2": "NORMALIZE({0}, {word[1]})",
    "overlay 3": "OVERLAY({0} PLACING {1} FROM {2})",
    "overlay 4": "OVERLAY({0} PLACING {1} FROM {2} FOR {3})",
    "position 2": "POSITION(({1}) IN ({0}))",
    "substring(text,text)": "",  # a regular expression's has no syntax of its own
    "substring(text,text,text)": "SUBSTRING({0} SIMILAR {1} ESCAPE {2})",
    "substring 2": "SUBSTRING({0} FROM {1})",
    "substring 3": "SUBSTRING({0} FROM {1} FOR {2})",
    "btrim 1": "TRIM(BOTH FROM {0})",
    "btrim 2": "TRIM(BOTH {1} FROM {0})",
    "ltrim 1": "TRIM(LEADING FROM {0})",
    "ltrim 2": "TRIM(LEADING {1} FROM {0})",
    "rtrim 1": "TRIM(TRAILING FROM {0})",
    "rtrim 2": "TRIM(TRAILING {1} FROM {0})",
    "pg_collation_for 1": "COLLATION FOR ({0})",
    "system_user 0": "SYSTEM_USER",
}
