"""Find the operator or function that a name means for arguments of some types.

An exact match comes first, then candidates that implicit casts reach. Of several candidates those
with more exact matches win, then those with more preferred types, then those that fit a category
that all unknown literals can have.

Source: src/backend/parser/parse_func.c, parse_oper.c; the manual, "Type Conversion".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pgsluice.row_filter import catalog as c
from pgsluice.row_filter.bind.coerce import Coercer, Context

_Row = TypeVar("_Row", c.OperatorRow, c.FunctionRow)


class Ambiguous(Exception):
    """Several functions or operators of a name fit the arguments, and none is better."""


@dataclass(frozen=True, slots=True)
class Candidate(Generic[_Row]):
    """A function or operator, and the types that it takes for this number of arguments.

    Attributes:
        expanded: how many arguments belong to a VARIADIC parameter; 0: it is not expanded.
        defaulted: how many arguments are left to their defaults.
    """

    row: _Row
    types: tuple[int, ...]
    expanded: int = 0
    defaulted: int = 0


@dataclass(frozen=True, slots=True)
class Resolver:
    """Finds the built-in operator or function that a name means for arguments of some types."""

    catalog: c.Catalog
    coercer: Coercer

    def operator(self, name: str, left: int, right: int) -> c.OperatorRow | None:
        """oper() and left_oper(): ``left`` is 0 for a prefix operator.

        Raises:
            Ambiguous: no best candidate.
        """
        rows = [
            row
            for row in self.catalog.rows.operator_names.get(name, ())
            if bool(row.left) == bool(left)
        ]
        if exact := self._exact_operator(rows, left, right):
            return exact
        if left:
            candidates = [Candidate(row, (row.left, row.right)) for row in rows]
            inputs: tuple[int, ...] = (left, right)
        else:
            candidates = [Candidate(row, (row.right,)) for row in rows]
            inputs = (right,)
        candidate = self.best(inputs, candidates)
        return None if candidate is None else candidate.row

    def _exact_operator(
        self, rows: Sequence[c.OperatorRow], left: int, right: int
    ) -> c.OperatorRow | None:
        was_unknown = False
        if left == c.UNKNOWN and right != c.UNKNOWN:
            left, was_unknown = right, True
        elif right == c.UNKNOWN and left not in (0, c.UNKNOWN):
            right, was_unknown = left, True
        pairs = [(left, right)]
        if was_unknown and (base := self.catalog.base_type(left)) != left:
            pairs.append((base, base))
        for pair in pairs:
            for row in rows:
                if (row.left, row.right) == pair:
                    return row
        return None

    def function_candidates(
        self, name: str, count: int, *, expand_variadic: bool
    ) -> list[Candidate[c.FunctionRow]]:
        """FuncnameGetCandidates: functions that take ``count`` arguments."""
        by_types: dict[tuple[int, ...], Candidate[c.FunctionRow]] = {}
        for row in self.catalog.rows.function_names.get(name, ()):
            candidate = _candidate(row, count, expand_variadic)
            if candidate is None:
                continue
            earlier = by_types.get(candidate.types)
            if earlier is None or (earlier.expanded, earlier.defaulted) > (
                candidate.expanded,
                candidate.defaulted,
            ):
                by_types[candidate.types] = candidate
        return list(by_types.values())

    def best(
        self, inputs: Sequence[int], candidates: Sequence[Candidate[_Row]]
    ) -> Candidate[_Row] | None:
        """The best candidate that implicit casts reach.

        Raises:
            Ambiguous: no candidate is the best.
        """
        matching = [
            candidate
            for candidate in candidates
            if self.coercer.can(inputs, candidate.types, Context.IMPLICIT)
        ]
        if len(matching) <= 1:
            return matching[0] if matching else None
        return self._select(inputs, matching)

    def _select(self, inputs: Sequence[int], candidates: list[Candidate[_Row]]) -> Candidate[_Row]:
        """func_select_candidate."""
        base = [c.UNKNOWN if i == c.UNKNOWN else self.catalog.base_type(i) for i in inputs]
        known = [i for i, oid in enumerate(base) if oid != c.UNKNOWN]
        candidates = _best(
            candidates, lambda candidate: sum(candidate.types[i] == base[i] for i in known)
        )
        if len(candidates) == 1:
            return candidates[0]
        categories = [self.coercer.category(oid) for oid in base]

        def matches(candidate: Candidate[_Row]) -> int:
            types = [self.catalog.type(oid) for oid in candidate.types]
            return sum(
                types[i].oid == base[i]
                or (types[i].category == categories[i] and types[i].is_preferred)
                for i in known
            )

        candidates = _best(candidates, matches)
        if len(candidates) == 1:
            return candidates[0]
        if len(known) == len(base):
            raise Ambiguous
        candidates = self._by_unknowns(base, candidates)
        if len(candidates) == 1:
            return candidates[0]
        return self._as_the_known(base, known, candidates)

    def _by_unknowns(
        self, base: Sequence[int], candidates: list[Candidate[_Row]]
    ) -> list[Candidate[_Row]]:
        """Choose a category for each unknown argument: string if any candidate has it, else a
        shared one."""
        wanted: dict[int, tuple[str, bool]] = {}
        for i, oid in enumerate(base):
            if oid != c.UNKNOWN:
                continue
            rows = [self.catalog.type(candidate.types[i]) for candidate in candidates]
            categories = {row.category for row in rows}
            if "S" in categories:
                category = "S"
            elif len(categories) == 1:
                category = categories.pop()
            else:
                return candidates
            wanted[i] = (
                category,
                any(row.category == category and row.is_preferred for row in rows),
            )
        kept = [
            candidate
            for candidate in candidates
            if all(
                self.coercer.category(candidate.types[i]) == category
                and (not has_preferred or self.catalog.type(candidate.types[i]).is_preferred)
                for i, (category, has_preferred) in wanted.items()
            )
        ]
        return kept or candidates

    def _as_the_known(
        self, base: Sequence[int], known: Sequence[int], candidates: list[Candidate[_Row]]
    ) -> Candidate[_Row]:
        """The last rule: unknown arguments have the type that all known ones have."""
        types = {base[i] for i in known}
        if len(types) != 1:
            raise Ambiguous
        inputs = list(types) * len(base)
        fitting = [
            candidate
            for candidate in candidates
            if self.coercer.can(inputs, candidate.types, Context.IMPLICIT)
        ]
        if len(fitting) != 1:
            raise Ambiguous
        return fitting[0]


def _candidate(
    row: c.FunctionRow, count: int, expand_variadic: bool
) -> Candidate[c.FunctionRow] | None:
    declared = len(row.arguments)
    if row.variadic and expand_variadic and declared <= count:
        extra = count - declared + 1
        return Candidate(row, row.arguments[:-1] + (row.variadic,) * extra, expanded=extra)
    if declared == count:
        return Candidate(row, row.arguments)
    if declared - row.defaults <= count < declared:
        return Candidate(row, row.arguments[:count], defaulted=declared - count)
    return None


def _best(
    candidates: list[Candidate[_Row]], score: Callable[[Candidate[_Row]], int]
) -> list[Candidate[_Row]]:
    """The candidates with the highest score."""
    best = max(score(candidate) for candidate in candidates)
    return [candidate for candidate in candidates if score(candidate) == best]
