"""Bind operators and comparisons of rows and arrays.

Source: src/backend/parser/parse_oper.c, parse_expr.c (make_row_comparison_op).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgsluice.row_filter import catalog as c
from pgsluice.row_filter import nodes as n
from pgsluice.row_filter.bind import polymorphic
from pgsluice.row_filter.bind.coerce import IMPLICIT, Coercer
from pgsluice.row_filter.bind.resolve import Ambiguous, Resolver
from pgsluice.row_filter.bind.type_names import display
from pgsluice.row_filter.tree import type_of
from pgsluice.sql import SqlRefused

_ADD_CASTS = "You might need to add explicit type casts."
_SYMBOLS = {1: "<", 2: "<=", 3: "=", 4: ">=", 5: ">", 6: "<>"}
_EQUAL, _NOT_EQUAL = 3, 6


@dataclass(frozen=True, slots=True)
class OperatorBinder:
    """Makes operator nodes from bound operands."""

    catalog: c.Catalog
    coercer: Coercer
    resolver: Resolver

    def operator(
        self, name: str, left: n.Node | None, right: n.Node, location: int
    ) -> n.OperatorCall:
        """make_op."""
        types = [0 if left is None else type_of(left), type_of(right)]
        row = self._find(name, types[0], types[1], location)
        operands = (right,) if left is None else (left, right)
        declared = [row.right] if left is None else [row.left, row.right]
        arguments, result = self.arguments(operands, declared, row.result)
        return n.OperatorCall(self.catalog.operator(row), arguments, result, location=location)

    def arguments(
        self, nodes: Sequence[n.Node], declared: Sequence[int], result: int
    ) -> tuple[tuple[n.Node, ...], int]:
        """Coerce arguments to the types that a function or operator declares; and its result's
        type."""
        actual = [type_of(node) for node in nodes]
        targets, result = polymorphic.resolve(
            self.catalog, actual, declared, result, self.coercer.common_type_or_none
        )
        arguments = tuple(
            self.coercer.coerce(node, target, -1, IMPLICIT)
            for node, target in zip(nodes, targets, strict=False)
        )
        return arguments, result

    def _find(self, name: str, left: int, right: int, location: int) -> c.OperatorRow:
        shown = " ".join(
            ([display(self.catalog, left)] if left else []) + [name, display(self.catalog, right)]
        )
        try:
            row = self.resolver.operator(name, left, right)
        except Ambiguous:
            raise SqlRefused(
                f"operator is not unique: {shown}",
                location,
                server_hint=f"Could not choose a best candidate operator. {_ADD_CASTS}",
            ) from None
        if row is None:
            hint = (
                f"No operator matches the given name and argument types. {_ADD_CASTS}"
                if left
                else "No operator matches the given name and argument type."
                " You might need to add an explicit type cast."
            )
            raise SqlRefused(f"operator does not exist: {shown}", location, server_hint=hint)
        return row

    def distinct(self, left: n.Node, right: n.Node, location: int) -> n.Node:
        """make_distinct_op; rows become an OR over their fields."""
        if isinstance(left, n.Row) and isinstance(right, n.Row):
            if len(left.fields) != len(right.fields):
                raise SqlRefused("unequal number of entries in row expressions", location)
            parts = [
                self.distinct(a, b, location)
                for a, b in zip(left.fields, right.fields, strict=True)
            ]
            return self._any_of(n.Connective.OR, parts, location, n.Const("f", c.BOOL))
        call = self.operator("=", left, right, location)
        if call.type_oid != c.BOOL:
            raise SqlRefused("IS DISTINCT FROM requires = operator to yield boolean", location)
        a, b = call.arguments
        return n.DistinctFrom(call.operator, (a, b), location=location)

    def null_if(self, left: n.Node, right: n.Node, location: int) -> n.Node:
        call = self.operator("=", left, right, location)
        if call.type_oid != c.BOOL:
            raise SqlRefused("NULLIF requires = operator to yield boolean", location)
        a, b = call.arguments
        return n.NullIf(call.operator, (a, b), type_of(a), location=location)

    def scalar_array(
        self, name: str, scalar: n.Node, array: n.Node, is_any: bool, location: int
    ) -> n.Node:
        """make_scalar_array_op."""
        array_type, scalar_type = type_of(array), type_of(scalar)
        if array_type == c.UNKNOWN:
            element = c.UNKNOWN
        else:
            element = self.catalog.element_type(self.catalog.base_type(array_type))
            if not element:
                raise SqlRefused("op ANY/ALL (array) requires array on right side", location)
        row = self._find(name, scalar_type, element, location)
        if row.result != c.BOOL:
            raise SqlRefused("op ANY/ALL (array) requires operator to yield boolean", location)
        declared = [row.left, row.right]
        actual, common_type = [scalar_type, element], self.coercer.common_type_or_none
        targets, _ = polymorphic.resolve(self.catalog, actual, declared, c.BOOL, common_type)
        if row.right in (c.ANYELEMENT, c.ANYNONARRAY, c.ANYCOMPATIBLE, c.ANYCOMPATIBLENONARRAY):
            goal = array_type
        elif not (goal := self.catalog.type(targets[1]).array):
            raise SqlRefused(
                f"could not find array type for data type {display(self.catalog, targets[1])}",
                location,
            )
        left, right = (
            self.coercer.coerce(node, target, -1, IMPLICIT)
            for node, target in ((scalar, targets[0]), (array, goal))
        )
        operator = self.catalog.operator(row)
        return n.ScalarArray(operator, left, right, is_any, location=location)

    def rows(self, name: str, left: n.Row, right: n.Row, location: int) -> n.Node:
        """make_row_comparison_op."""
        if len(left.fields) != len(right.fields):
            raise SqlRefused("unequal number of entries in row expressions", location)
        if not left.fields:
            raise SqlRefused("cannot compare rows of zero length", location)
        calls = [
            self.operator(name, a, b, location)
            for a, b in zip(left.fields, right.fields, strict=True)
        ]
        for call in calls:
            if call.type_oid != c.BOOL:
                shown = display(self.catalog, call.type_oid)
                raise SqlRefused(
                    f"row comparison operator must yield type boolean, not type {shown}", location
                )
        if len(calls) == 1:
            return calls[0]
        strategy = self._strategy(calls, name, location)
        if strategy == _EQUAL:
            return self._any_of(n.Connective.AND, calls, location, calls[0])
        if strategy == _NOT_EQUAL:
            return self._any_of(n.Connective.OR, calls, location, calls[0])
        return n.RowCompare(
            _SYMBOLS[strategy],
            tuple(call.operator for call in calls),
            tuple(call.arguments[0] for call in calls),
            tuple(call.arguments[1] for call in calls),
            (0,) * len(calls),
            location=location,
        )

    def _strategy(self, calls: Sequence[n.OperatorCall], name: str, location: int) -> int:
        """The strategy that the operators have in common in their btree families."""
        meanings = [{s for _, s in self._meanings(call.operator.oid)} for call in calls]
        if shared := set.intersection(*meanings):
            return min(shared)
        raise SqlRefused(
            f"could not determine interpretation of row comparison operator {name}",
            location,
            server_hint="Row comparison operators must be associated with btree operator families.",
        )

    def _meanings(self, oid: int) -> set[tuple[int, int]]:
        families = self.catalog.rows.families
        if meanings := families.get(oid):
            return set(meanings)
        negator = self.catalog.rows.operators[oid].negator
        return {(f, _NOT_EQUAL) for f, s in families.get(negator, ()) if s == _EQUAL}

    def _any_of(
        self, connective: n.Connective, parts: Sequence[n.Node], location: int, empty: n.Node
    ) -> n.Node:
        if len(parts) < 2:
            return parts[0] if parts else empty
        return n.Bool(connective, tuple(parts), location=location)
