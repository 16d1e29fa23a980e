"""Assign collations: which one each node has, and which one its function uses.

A collation is explicit (COLLATE) or implicit (a column's). Explicit wins over implicit, two
different explicit ones are an error, two different implicit ones leave it undetermined.

Source: src/backend/parser/parse_collate.c.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import IntEnum

from pgsluice.definitions.text_rules import DEFAULT_COLLATION
from pgsluice.row_filter import catalog as c
from pgsluice.row_filter import nodes as n
from pgsluice.row_filter.tree import collation_of, rebuilt, type_of
from pgsluice.sql import SqlRefused


class _Strength(IntEnum):
    NONE = 0
    IMPLICIT = 1
    CONFLICT = 2
    EXPLICIT = 3


@dataclass(slots=True)
class _State:
    collation: int = 0
    strength: _Strength = _Strength.NONE

    @property
    def result(self) -> int:
        return 0 if self.strength is _Strength.CONFLICT else self.collation


@dataclass(frozen=True, slots=True)
class Collator:
    """Assigns collations to the nodes of a bound row filter."""

    catalog: c.Catalog

    def assign(self, node: n.Node) -> n.Node:
        """assign_expr_collations: the same tree with its collations."""
        return self._visit(node, _State())

    def _visit(self, node: n.Node, parent: _State) -> n.Node:
        state = _State()
        if isinstance(node, n.Row):
            return rebuilt(node, self.assign)
        if isinstance(node, n.RowCompare):
            return self._row_compare(node)
        assigned = rebuilt(node, lambda child: self._visit(child, state))
        if isinstance(node, n.Collate):
            mine = _State(node.collation, _Strength.EXPLICIT)
        elif isinstance(node, n.Const | n.Column | n.CaseArgument):
            mine = _State(collation_of(node))
            mine.strength = _Strength.IMPLICIT if mine.collation else _Strength.NONE
        else:
            mine, own = _State(), self.catalog.type(type_of(node)).collation
            if own:
                is_given = state.strength > _Strength.NONE
                mine = state if is_given else _State(own, _Strength.IMPLICIT)
            assigned = _marked(assigned, mine.result, state.result)
        self._merge(parent, mine.collation, mine.strength, node)
        return assigned

    def _row_compare(self, node: n.RowCompare) -> n.Node:
        left, right, collations = [], [], []
        for a, b in zip(node.left, node.right, strict=True):
            state = _State()
            left.append(self._visit(a, state))
            right.append(self._visit(b, state))
            collations.append(state.result)
        return replace(
            node, left=tuple(left), right=tuple(right), input_collations=tuple(collations)
        )

    def _merge(self, parent: _State, collation: int, strength: _Strength, node: n.Node) -> None:
        if strength > parent.strength:
            parent.collation, parent.strength = collation, strength
        elif strength == parent.strength and collation != parent.collation:
            if strength is _Strength.IMPLICIT:
                if parent.collation == DEFAULT_COLLATION:
                    parent.collation = collation
                elif collation != DEFAULT_COLLATION:
                    parent.strength = _Strength.CONFLICT
            elif strength is _Strength.EXPLICIT:
                names = f'"{self._name(parent.collation)}" and "{self._name(collation)}"'
                raise SqlRefused(
                    f"collation mismatch between explicit collations {names}", node.location
                )

    def _name(self, oid: int) -> str:
        return self.catalog.rows.collations.get(oid, str(oid))


def _marked(node: n.Node, collation: int, input_collation: int) -> n.Node:
    given = {"collation": collation, "input_collation": input_collation}
    names = {field.name for field in fields(node)}
    values = {name: oid for name, oid in given.items() if name in names}
    return replace(node, **values) if values else node  # type: ignore[arg-type]
