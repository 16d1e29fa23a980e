"""Bind a syntax tree: resolve its names, types and casts on one relation's columns.

Source: src/backend/parser/parse_expr.c.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import singledispatchmethod

from pgsluice.row_filter import catalog as c
from pgsluice.row_filter import nodes as n
from pgsluice.row_filter.bind.calls import CallBinder
from pgsluice.row_filter.bind.check import MESSAGE, NOT_SIMPLE, SYSTEM_TYPES, check
from pgsluice.row_filter.bind.coerce import Coercer, Coercion, Context
from pgsluice.row_filter.bind.collate import Collator
from pgsluice.row_filter.bind.names import NameBinder
from pgsluice.row_filter.bind.resolve import Resolver
from pgsluice.row_filter.catalog import FilterColumn
from pgsluice.row_filter.errors import FilterNotExact
from pgsluice.row_filter.nodes import CallForm
from pgsluice.row_filter.parse import syntax as s
from pgsluice.row_filter.tree import collation_of, columns_of, location_of, refused_at, type_of
from pgsluice.row_filter.values.canonical import canonical
from pgsluice.row_filter.values.numbers import read_numeric
from pgsluice.sql import SqlRefused

_EXPLICIT = Coercion(Context.EXPLICIT, CallForm.EXPLICIT_CAST)


class Binder:
    """Binds a row filter: finds the columns, types, functions and casts that its text means."""

    def __init__(
        self, catalog: c.Catalog, columns: Sequence[FilterColumn], relation: str, schema: str
    ) -> None:
        self.catalog = catalog
        by_name = {column.name: column for column in columns}
        self.names = NameBinder(catalog, by_name, relation, schema)
        self.coercer = Coercer(catalog)
        self.calls = CallBinder(catalog, self.coercer, Resolver(catalog, self.coercer))
        self.collator = Collator(catalog)

    def filter(self, syntax: s.Syntax) -> n.Node:
        """Bind a whole filter, assign collations, and check that a publication allows it."""
        expression = self.coercer.to_boolean(self.bind(syntax), "PUBLICATION WHERE")
        expression = self.collator.assign(expression)
        check(expression, self.catalog, SYSTEM_TYPES.keys() - self.names.columns.keys())
        if self.coercer.inexact:
            raise self.coercer.inexact[0]
        return expression

    @singledispatchmethod
    def bind(self, node: s.Syntax) -> n.Node:
        """The expression of a syntax node, with names, types, operators and casts resolved, as
        PostgreSQL's transformExprRecurse() makes it."""
        raise AssertionError(f"no binding of {type(node).__name__}")

    def _bind_all(self, nodes: Iterable[s.Syntax]) -> tuple[n.Node, ...]:
        return tuple(self.bind(node) for node in nodes)

    # -- names and constants

    @bind.register
    def _(self, node: s.ColumnRef) -> n.Node:
        return self.names.column(node)

    @bind.register
    def _(self, node: s.Parameter) -> n.Node:
        raise SqlRefused(f"there is no parameter ${node.number}", node.location)

    @bind.register
    def _(self, node: s.Literal) -> n.Node:
        if node.kind != "bits":
            return replace(_constant(node), location=node.location)
        try:
            text = canonical(self.catalog, c.BIT, node.value)
        except SqlRefused as error:
            error.facts["position"] = node.location
            raise
        return n.Const(text, c.BIT, location=node.location)

    @bind.register
    def _(self, node: s.Refused) -> n.Node:
        if node.type_name is None:
            raise SqlRefused(MESSAGE, node.location, detail=NOT_SIMPLE)
        row = self.catalog.rows.types[self.catalog.rows.type_names[node.type_name]]
        return n.Disallowed(row.oid, collation=row.collation, location=node.location)

    @bind.register
    def _(self, node: s.XmlCall) -> n.Node:
        raise FilterNotExact(
            f"{node.name}: PostgreSQL accepts this, pgsluice does not",
            node.location,
            detail="pgsluice has no XML functions.",
            server_hint="Let the server's own publication (PostgreSQL 15 or newer) do this filter.",
        )

    # -- operators

    @bind.register
    def _(self, node: s.OperatorUse) -> n.Node:
        left = None if node.left is None else self.bind(node.left)
        right = self.bind(node.right)
        if node.schema not in (None, "pg_catalog"):
            types = 0 if left is None else type_of(left), type_of(right)
            shown = self.calls.shown_operator(f"{node.schema}.{node.name}", *types)
            raise SqlRefused(f"operator does not exist: {shown}", node.location)
        if isinstance(left, n.Row) and isinstance(right, n.Row):
            return self.calls.rows(node.name, left, right, node.location)
        return self.calls.operator(node.name, left, right, node.location)

    @bind.register
    def _(self, node: s.ArrayComparison) -> n.Node:
        left, array = self.bind(node.left), self.bind(node.array)
        return self.calls.scalar_array(node.name, left, array, node.is_any, node.location)

    @bind.register
    def _(self, node: s.InList) -> n.Node:
        """transformAExprIn: constants are compared as one array, items with columns one by one."""
        name = "<>" if node.is_negated else "="
        left = self.bind(node.left)
        items = self._bind_all(node.items)
        fixed = [item for item in items if not columns_of(item)]
        parts: list[n.Node] = []
        if len(fixed) > 1 and (kind := self.coercer.common_type_or_none(
            [type_of(left), *map(type_of, fixed)]
        )):  # fmt: skip
            array = self.catalog.type(kind).array
            if kind != c.RECORD and array:
                elements = tuple(self.coercer.to_common(item, kind, "IN") for item in fixed)
                listed = n.Array(elements, array)
                parts.append(
                    self.calls.scalar_array(name, left, listed, not node.is_negated, node.location)
                )
                items = tuple(item for item in items if columns_of(item))
        for item in items:
            if isinstance(left, n.Row) and isinstance(item, n.Row):
                test = self.calls.rows(name, left, item, node.location)
            else:
                test = self.calls.operator(name, left, item, node.location)
            parts.append(self.coercer.to_boolean(test, "IN"))
        connective = n.Connective.AND if node.is_negated else n.Connective.OR
        joined, *rest = parts
        for test in rest:
            joined = n.Bool(connective, (joined, test), location=node.location)
        return joined

    @bind.register
    def _(self, node: s.Between) -> n.Node:
        """``a >= low AND a <= high``; with SYMMETRIC the bounds may be in any order."""

        def use(name: str, right: s.Syntax) -> s.Syntax:
            return s.OperatorUse(name, None, node.left, right, node.location)

        def pair(low: s.Syntax, high: s.Syntax) -> s.Syntax:
            if node.is_negated:
                parts = (use("<", low), use(">", high))
                return s.Logic(n.Connective.OR, parts, node.location)
            return s.Logic(n.Connective.AND, (use(">=", low), use("<=", high)), node.location)

        test = pair(node.low, node.high)
        if node.is_symmetric:
            reverse = pair(node.high, node.low)
            outer = n.Connective.AND if node.is_negated else n.Connective.OR
            test = s.Logic(outer, (test, reverse), node.location)
        return self.bind(test)

    @bind.register
    def _(self, node: s.Distinct) -> n.Node:
        left, right = self.bind(node.left), self.bind(node.right)
        for written, bound in ((node.right, left), (node.left, right)):
            if isinstance(written, s.Literal) and written.kind == "null":
                return n.NullTest(bound, node.is_negated, location=node.location)
        test = self.calls.distinct(left, right, node.location)
        if node.is_negated:
            test = n.Bool(n.Connective.NOT, (test,), location=node.location)
        return test

    @bind.register
    def _(self, node: s.Logic) -> n.Node:
        word = node.connective.value
        arguments = tuple(
            self.coercer.to_boolean(self.bind(argument), word) for argument in node.arguments
        )
        return n.Bool(node.connective, arguments, location=node.location)

    @bind.register
    def _(self, node: s.IsNull) -> n.Node:
        argument = self.bind(node.argument)
        is_row = isinstance(argument, n.Row)
        return n.NullTest(argument, node.is_null, is_row, location=node.location)

    @bind.register
    def _(self, node: s.IsTruth) -> n.Node:
        argument = self.bind(node.argument)
        test = n.BooleanTest(argument, node.word, node.is_negated, location=node.location)
        return replace(test, argument=self.coercer.to_boolean(argument, test.test))

    # -- calls and constructors

    @bind.register
    def _(self, node: s.Call) -> n.Node:
        return self.calls.bind(node, self._bind_all(a.value for a in node.arguments))

    @bind.register
    def _(self, node: s.ChoiceCall) -> n.Node:
        nodes = self._bind_all(node.arguments)
        if node.name == "NULLIF":
            return self.calls.null_if(nodes[0], nodes[1], node.location)
        kind = self.coercer.common_type(nodes, node.name)
        arguments = tuple(self.coercer.to_common(one, kind, node.name) for one in nodes)
        if node.name == "COALESCE":
            return n.Coalesce(arguments, kind, location=node.location)
        return n.MinMax(node.name == "GREATEST", arguments, kind, location=node.location)

    @bind.register
    def _(self, node: s.CaseCall) -> n.Node:
        argument = None if node.argument is None else self._case_argument(node.argument)
        conditions: list[n.Node] = []
        results: list[n.Node] = []
        for arm in node.arms:
            condition = self.bind(arm.condition)
            if argument is not None:
                stand_in = n.CaseArgument(type_of(argument), collation_of(argument))
                condition = self.calls.operator("=", stand_in, condition, arm.location)
            conditions.append(self.coercer.to_boolean(condition, "CASE/WHEN"))
            results.append(self.bind(arm.result))
        default = (
            n.Const(None, c.UNKNOWN, location=node.location)
            if node.default is None
            else self.bind(node.default)
        )
        kind = self.coercer.common_type([default, *results], "CASE")
        default = self.coercer.to_common(default, kind, "CASE/ELSE")
        arms = tuple(
            n.When(condition, self.coercer.to_common(result, kind, "CASE/WHEN"))
            for condition, result in zip(conditions, results, strict=True)
        )
        return n.Case(argument, arms, default, kind, location=node.location)

    def _case_argument(self, syntax: s.Syntax) -> n.Node:
        argument = self.bind(syntax)
        if type_of(argument) == c.UNKNOWN:
            argument = self.coercer.to_common(argument, c.TEXT, "CASE")
        return self.collator.assign(argument)

    @bind.register
    def _(self, node: s.ArrayList) -> n.Node:
        return self._array(node, 0, 0)

    def _array(self, node: s.ArrayList, array: int, element: int, typmod: int = -1) -> n.Node:
        """transformArrayExpr; a cast gives the types ``array`` and ``element``, else they are 0."""
        nodes: list[n.Node] = []
        is_nested = False
        for written in node.elements:
            if isinstance(written, s.ArrayList):
                element_node = self._array(written, array, element, typmod)
                is_nested = True
            else:
                element_node = self.bind(written)
                is_nested = is_nested or bool(self.catalog.type(type_of(element_node)).element)
            nodes.append(element_node)
        is_explicit = bool(array)
        if array:
            element = array if is_nested else element
        elif not nodes:
            raise SqlRefused(
                "cannot determine type of empty array",
                node.location,
                server_hint="Explicitly cast to the desired type, for example ARRAY[]::integer[].",
            )
        else:
            element = self.coercer.common_type(nodes, "ARRAY")
            array = element if is_nested else self.catalog.type(element).array
            if not array:
                raise SqlRefused(
                    f"could not find array type for data type {self.catalog.display(element)}",
                    node.location,
                )
        converted = tuple(self._element(written, element, typmod, is_explicit) for written in nodes)
        return n.Array(converted, array, is_nested, location=node.location)

    def _element(self, node: n.Node, target: int, typmod: int, is_explicit: bool) -> n.Node:
        if not is_explicit:
            return self.coercer.to_common(node, target, "ARRAY")
        converted = self.coercer.to_target(node, target, typmod, _EXPLICIT)
        if converted is None:
            raise self._no_cast(node, target)
        return converted

    @bind.register
    def _(self, node: s.RowList) -> n.Node:
        return n.Row(self._bind_all(node.fields), location=node.location)

    @bind.register
    def _(self, node: s.Subscript) -> n.Node:
        argument = self.bind(node.argument)
        bounds = self._bind_all(node.bounds)
        kind = type_of(argument)
        row = self.catalog.type(kind)
        if not row.is_subscriptable:
            raise refused_at(
                f"cannot subscript type {self.catalog.display(kind)} because it does not support"
                " subscripting",
                argument,
            )
        target = kind if node.is_slice or kind == c.JSONB else row.element or c.CHAR
        collation = self.catalog.type(target).collation
        operands = (argument, *bounds)
        return n.Disallowed(target, operands, collation=collation, location=argument.location)

    @bind.register
    def _(self, node: s.Field) -> n.Node:
        argument = self.bind(node.argument)
        kind = type_of(argument)
        if self.catalog.type(kind).kind != "c" and kind != c.RECORD:
            raise refused_at(
                f"column notation .{node.name} applied to type {self.catalog.display(kind)},"
                " which is not a composite type",
                argument,
            )
        raise SqlRefused(MESSAGE, location_of(argument), detail=NOT_SIMPLE)

    # -- casts and collations

    @bind.register
    def _(self, node: s.TypeCast) -> n.Node:
        target, typmod = self.names.type(node.type_name)
        row = self.catalog.type(target)
        if isinstance(node.argument, s.ArrayList) and row.element:
            array: n.Node = self._array(node.argument, target, row.element, typmod)
            if type_of(array) == target and typmod < 0:
                return array
            argument = array
        else:
            argument = self.bind(node.argument)
        converted = self.coercer.to_target(
            argument, target, typmod, replace(_EXPLICIT, location=node.location)
        )
        if converted is None:
            raise self._no_cast(argument, target, node.location)
        return converted

    def _no_cast(self, node: n.Node, target: int, location: int | None = None) -> SqlRefused:
        first, second = self.catalog.display(type_of(node)), self.catalog.display(target)
        location = location_of(node) if location is None else location
        return SqlRefused(f"cannot cast type {first} to {second}", location)

    @bind.register
    def _(self, node: s.CollateClause) -> n.Node:
        argument = self.bind(node.argument)
        kind = type_of(argument)
        if kind != c.UNKNOWN and not self.catalog.type(kind).collation:
            raise SqlRefused(
                f"collations are not supported by type {self.catalog.display(kind)}", node.location
            )
        return n.Collate(argument, self.names.collation(node), location=node.location)


def _constant(node: s.Literal) -> n.Const:
    """make_const: the narrowest of integer, bigint, numeric."""
    match node.kind:
        case "null":
            return n.Const(None, c.UNKNOWN)
        case "boolean":
            return n.Const("t" if node.value == "true" else "f", c.BOOL)
        case "integer":
            if len(node.value) > 20:  # the longest bigint has 19 digits and a sign
                return n.Const(node.value, c.NUMERIC)
            value = int(node.value)
            if -(1 << 31) <= value < 1 << 31:
                return n.Const(node.value, c.INT4)
            kind = c.INT8 if -(1 << 63) <= value < 1 << 63 else c.NUMERIC
            return n.Const(node.value, kind)
        case "number":
            return n.Const(read_numeric(node.value), c.NUMERIC)
        case _:
            return n.Const(node.value, c.UNKNOWN)
