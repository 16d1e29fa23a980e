"""Bind function calls, and refuse the calls that a filter cannot hold.

Source: src/backend/parser/parse_func.c (ParseFuncOrColumn).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgsluice.row_filter import catalog as c
from pgsluice.row_filter import nodes as n
from pgsluice.row_filter.bind.coerce import Coercion, Context, Path
from pgsluice.row_filter.bind.operators import OperatorBinder
from pgsluice.row_filter.bind.resolve import Ambiguous, Candidate
from pgsluice.row_filter.bind.type_names import display
from pgsluice.row_filter.nodes import CallForm
from pgsluice.row_filter.parse import syntax as s
from pgsluice.row_filter.tree import disallowed, type_of
from pgsluice.sql import SqlRefused

_NO_AGGREGATES = "aggregate functions are not allowed in WHERE"
_ADD_CASTS = "You might need to add explicit type casts."


@dataclass(frozen=True, slots=True)
class CallBinder:
    """Makes call nodes from bound arguments."""

    operators: OperatorBinder

    @property
    def catalog(self) -> c.Catalog:
        return self.operators.catalog

    def bind(self, call: s.Call, arguments: Sequence[n.Node]) -> n.Node:
        types = [type_of(argument) for argument in arguments]
        if call.has_within_group:
            self._refuse_ordered_set(call)
        if any(argument.name for argument in call.arguments):
            return self._by_name(call, arguments)
        candidate = self._candidate(call, types)
        if candidate is None and (cast := self._cast(call, arguments)):
            return cast
        if candidate is None:
            candidate = self._best(call, types)
        return self._call(call, candidate, arguments)

    def _refuse_ordered_set(self, call: s.Call) -> None:
        """Refuse an ordered-set aggregate early: its ORDER BY would count as arguments."""
        rows = self.catalog.rows.function_names.get(call.name, ())
        if any(row.kind == "o" for row in rows):
            raise SqlRefused(_NO_AGGREGATES, call.location)

    def _candidates(self, call: s.Call, count: int) -> list[Candidate[c.FunctionRow]]:
        if call.schema not in (None, "pg_catalog"):
            return []
        return self.operators.resolver.function_candidates(
            call.name, count, expand_variadic=not call.is_variadic
        )

    def _candidate(self, call: s.Call, types: Sequence[int]) -> Candidate[c.FunctionRow] | None:
        candidates = self._candidates(call, len(types))
        return next((known for known in candidates if known.types == tuple(types)), None)

    def _best(self, call: s.Call, types: Sequence[int]) -> Candidate[c.FunctionRow]:
        shown = self._shown(call, types)
        try:
            candidates = self._candidates(call, len(types))
            best = self.operators.resolver.best(types, candidates)
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
            (f"{argument.name} => " if argument.name else "") + display(self.catalog, oid)
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
            path = self.operators.coercer.pathway(row.oid, source, Context.EXPLICIT)
            if path is None or path[0] not in (Path.RELABEL, Path.TEXT):
                return None
            if path[0] is Path.TEXT and row.category == "S" and source == c.RECORD:
                return None
        return self.operators.coercer.coerce(
            argument, row.oid, -1, Coercion(Context.EXPLICIT, CallForm.CALL, call.location)
        )

    def _by_name(self, call: s.Call, arguments: Sequence[n.Node]) -> n.Node:
        """Look up the name only: a call with named arguments is refused later, anyway."""
        names = {argument.name for argument in call.arguments if argument.name}
        for row in self.catalog.rows.function_names.get(call.name, ()):
            if len(arguments) <= len(row.arguments) and names <= set(row.names):
                nodes = tuple(
                    disallowed(type_of(node), (node,), location=written.location)
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
        nodes, result = self.operators.arguments(arguments, candidate.types, row.result)
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


def _unknown(shown: str, location: int) -> SqlRefused:
    return SqlRefused(
        f"function {shown} does not exist",
        location,
        server_hint=f"No function matches the given name and argument types. {_ADD_CASTS}",
    )


def _qualified(call: s.Call) -> str:
    return call.name if call.schema is None else f"{call.schema}.{call.name}"
