"""Bind calls of functions and operators, and refuse the calls that a filter cannot hold.

Source: src/backend/parser/parse_func.c (ParseFuncOrColumn), parse_oper.c, parse_expr.c
(make_row_comparison_op).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgsluice.row_filter import catalog as c
from pgsluice.row_filter import nodes as n
from pgsluice.row_filter.bind import polymorphic
from pgsluice.row_filter.bind.coerce import IMPLICIT, Coercer, Coercion, Context, Path
from pgsluice.row_filter.bind.resolve import Ambiguous, Candidate, Resolver
from pgsluice.row_filter.nodes import CallForm
from pgsluice.row_filter.parse import syntax as s
from pgsluice.row_filter.tree import type_of
from pgsluice.sql import SqlRefused

_NO_AGGREGATES = "aggregate functions are not allowed in WHERE"
_ADD_CASTS = "You might need to add explicit type casts."
_SYMBOLS = {1: "<", 2: "<=", 3: "=", 4: ">=", 5: ">", 6: "<>"}
_EQUAL, _NOT_EQUAL = 3, 6


@dataclass(frozen=True, slots=True)
class CallBinder:
    """Makes nodes for calls of functions and operators in a row filter."""

    catalog: c.Catalog
    coercer: Coercer
    resolver: Resolver

    # -- functions

    def bind(self, call: s.Call, arguments: Sequence[n.Node]) -> n.Node:
        types = [type_of(argument) for argument in arguments]
        if call.has_within_group:
            self._refuse_ordered_set(call)
        if any(argument.name for argument in call.arguments):
            return self._by_name(call, arguments)
        candidates = self._candidates(call, len(types))
        exact = next((known for known in candidates if known.types == tuple(types)), None)
        if exact is None and (cast := self._cast(call, arguments)):
            return cast
        return self._call(call, exact or self._best(call, types, candidates), arguments)

    def _refuse_ordered_set(self, call: s.Call) -> None:
        """Refuse an ordered-set aggregate early: its ORDER BY would count as arguments."""
        rows = self.catalog.rows.function_names.get(call.name, ())
        if any(row.kind == "o" for row in rows):
            raise SqlRefused(_NO_AGGREGATES, call.location)

    def _candidates(self, call: s.Call, count: int) -> list[Candidate[c.FunctionRow]]:
        if call.schema not in (None, "pg_catalog"):
            return []
        return self.resolver.function_candidates(
            call.name, count, expand_variadic=not call.is_variadic
        )

    def _best(
        self, call: s.Call, types: Sequence[int], candidates: list[Candidate[c.FunctionRow]]
    ) -> Candidate[c.FunctionRow]:
        shown = self._shown(call, types)
        try:
            best = self.resolver.best(types, candidates)
        except Ambiguous:
            raise SqlRefused(
                f"function {shown} is not unique",
                call.location,
                server_hint=f"Could not choose a best candidate function. {_ADD_CASTS}",
            ) from None
        if best is None:
            raise _unknown(shown, call.location)
        return best

    def _shown(self, call: s.Call, types: Sequence[int]) -> str:
        names = ", ".join(
            (f"{argument.name} => " if argument.name else "") + self.catalog.display(oid)
            for argument, oid in zip(call.arguments, types, strict=True)
        )
        return f"{_qualified(call)}({names})"

    def _cast(self, call: s.Call, arguments: Sequence[n.Node]) -> n.Node | None:
        """A call such as ``text(c)`` may be a cast."""
        if len(arguments) != 1 or call.is_star or call.is_distinct or call.has_over:
            return None
        row = self.catalog.type_named(call.name)
        if row is None or row.kind == "c" or call.schema not in (None, "pg_catalog"):
            return None
        (argument,) = arguments
        source = type_of(argument)
        if source != c.UNKNOWN or not isinstance(argument, n.Const):
            path = self.coercer.pathway(row.oid, source, Context.EXPLICIT)
            if path is None or path[0] not in (Path.RELABEL, Path.TEXT):
                return None
            if path[0] is Path.TEXT and row.category == "S" and source == c.RECORD:
                return None
        return self.coercer.coerce(
            argument, row.oid, -1, Coercion(Context.EXPLICIT, CallForm.CALL, call.location)
        )

    def _by_name(self, call: s.Call, arguments: Sequence[n.Node]) -> n.Node:
        """Look up the name only: a call with named arguments is refused later, anyway."""
        names = {argument.name for argument in call.arguments if argument.name}
        for row in self.catalog.rows.function_names.get(call.name, ()):
            if len(arguments) <= len(row.arguments) and names <= set(row.names):
                nodes = tuple(
                    n.Disallowed(type_of(node), (node,), location=written.location)
                    if written.name
                    else node
                    for node, written in zip(arguments, call.arguments, strict=True)
                )
                function = self.catalog.function(row.oid)
                return n.FunctionCall(function, nodes, row.result, location=call.location)
        shown = self._shown(call, [type_of(argument) for argument in arguments])
        raise _unknown(shown, call.location)

    def _call(
        self, call: s.Call, candidate: Candidate[c.FunctionRow], arguments: Sequence[n.Node]
    ) -> n.Node:
        row = candidate.row
        self._refuse_kind(call, row)
        nodes, result = self.arguments(arguments, candidate.types, row.result)
        if candidate.expanded and row.variadic != c.ANY:
            nodes = self._merged(nodes, candidate)
        if row.returns_set:
            raise SqlRefused("set-returning functions are not allowed in WHERE", call.location)
        return n.FunctionCall(
            self.catalog.function(row.oid), nodes, result, form=call.form,
            is_variadic=call.is_variadic or bool(row.variadic and row.variadic != c.ANY),
            location=call.location,
        )  # fmt: skip

    def _merged(
        self, nodes: tuple[n.Node, ...], candidate: Candidate[c.FunctionRow]
    ) -> tuple[n.Node, ...]:
        """Put the arguments of a VARIADIC parameter into one array."""
        kept, rest = nodes[: -candidate.expanded], nodes[-candidate.expanded :]
        array = self.catalog.type(type_of(rest[0])).array
        return (*kept, n.Array(rest, array, location=rest[0].location))

    def _refuse_kind(self, call: s.Call, row: c.FunctionRow) -> None:
        name, location = _qualified(call), call.location

        def refuse(message: str, hint: str | None = None) -> None:
            raise SqlRefused(message, location, server_hint=hint)

        if row.kind == "p":
            refuse(
                f"{self._shown(call, row.arguments)} is a procedure",
                "To call a procedure, use CALL.",
            )
        if row.kind == "o" and not call.has_within_group:
            refuse(f"WITHIN GROUP is required for ordered-set aggregate {name}")
        if row.kind in ("a", "o"):
            if row.kind == "a" and not (call.arguments or call.is_star):
                refuse(f"{name}(*) must be used to call a parameterless aggregate function")
            if call.has_over:
                refuse("window functions are not allowed in WHERE")
            refuse(_NO_AGGREGATES)
        if row.kind == "w":
            if not call.has_over:
                refuse(f"window function {name} requires an OVER clause")
            refuse("window functions are not allowed in WHERE")
        if call.is_star:
            refuse(f"{name}(*) specified, but {name} is not an aggregate function")
        for is_used, word in (
            (call.is_distinct, "DISTINCT"), (call.has_within_group, "WITHIN GROUP"),
            (call.has_order, "ORDER BY"), (call.has_filter, "FILTER"),
        ):  # fmt: skip
            if is_used:
                refuse(f"{word} specified, but {name} is not an aggregate function")
        if call.has_over:
            refuse(f"OVER specified, but {name} is not a window function nor an aggregate function")

    # -- operators

    def operator(
        self, name: str, left: n.Node | None, right: n.Node, location: int
    ) -> n.OperatorCall:
        """The call of an operator with one or two arguments (PostgreSQL's make_op)."""
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
        shown = self.shown_operator(name, left, right)
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

    def shown_operator(self, name: str, left: int, right: int) -> str:
        """An operator with the types of its arguments, for errors; ``left`` is 0 without one."""
        shown = f"{name} {self.catalog.display(right)}"
        return f"{self.catalog.display(left)} {shown}" if left else shown

    def distinct(self, left: n.Node, right: n.Node, location: int) -> n.Node:
        """make_distinct_op; rows become an OR over their fields."""
        if isinstance(left, n.Row) and isinstance(right, n.Row):
            if len(left.fields) != len(right.fields):
                raise SqlRefused("unequal number of entries in row expressions", location)
            parts = [
                self.distinct(a, b, location)
                for a, b in zip(left.fields, right.fields, strict=True)
            ]
            if len(parts) < 2:
                return parts[0] if parts else n.Const("f", c.BOOL)
            return n.Bool(n.Connective.OR, tuple(parts), location=location)
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
        """The node of ``scalar operator ANY (array)`` or ``ALL`` (make_scalar_array_op)."""
        array_type, scalar_type = type_of(array), type_of(scalar)
        if array_type == c.UNKNOWN:
            element = c.UNKNOWN
        else:
            element = self.catalog.type(self.catalog.base_type(array_type)).element
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
                f"could not find array type for data type {self.catalog.display(targets[1])}",
                location,
            )
        left, right = (
            self.coercer.coerce(node, target, -1, IMPLICIT)
            for node, target in ((scalar, targets[0]), (array, goal))
        )
        operator = self.catalog.operator(row)
        return n.ScalarArray(operator, left, right, is_any, location=location)

    def rows(self, name: str, left: n.Row, right: n.Row, location: int) -> n.Node:
        """The comparison of two rows, as in ``(a, b) < (1, 2)`` (make_row_comparison_op)."""
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
                shown = self.catalog.display(call.type_oid)
                raise SqlRefused(
                    f"row comparison operator must yield type boolean, not type {shown}", location
                )
        if len(calls) == 1:
            return calls[0]
        strategy = self._strategy(calls, name, location)
        if strategy in (_EQUAL, _NOT_EQUAL):
            connective = n.Connective.AND if strategy == _EQUAL else n.Connective.OR
            return n.Bool(connective, tuple(calls), location=location)
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


def _unknown(shown: str, location: int) -> SqlRefused:
    return SqlRefused(
        f"function {shown} does not exist",
        location,
        server_hint=f"No function matches the given name and argument types. {_ADD_CASTS}",
    )


def _qualified(call: s.Call) -> str:
    return call.name if call.schema is None else f"{call.schema}.{call.name}"
