"""Properties of a bound expression: its type, modifier, collation, location, children.

Source: src/backend/nodes/nodeFuncs.c.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import Any, cast

from pgsluice.row_filter import catalog as c
from pgsluice.row_filter import nodes as n
from pgsluice.sql import SqlRefused

_BOOLEAN = n.DistinctFrom | n.ScalarArray | n.Bool | n.NullTest | n.BooleanTest | n.RowCompare


def type_of(node: n.Node) -> int:
    """OID of the type of an expression's value (PostgreSQL's exprType)."""
    if isinstance(node, _BOOLEAN):
        return c.BOOL
    if isinstance(node, n.Collate):
        return type_of(node.argument)
    if isinstance(node, n.Row):
        return c.RECORD
    return node.type_oid


def typmod_of(node: n.Node) -> int:
    """Type modifier of an expression's value, -1 if it has none (PostgreSQL's exprTypmod)."""
    match node:
        case n.Collate():
            return typmod_of(node.argument)
        case n.NullIf():
            return typmod_of(node.arguments[0])
        case n.Case():
            return _common_typmod(node.type_oid, [node.default, *(arm.result for arm in node.arms)])
        case n.Coalesce() | n.MinMax():
            return _common_typmod(node.type_oid, node.arguments)
        case n.Array() if node.elements:
            typmods = {typmod_of(element) for element in node.elements}
            return typmods.pop() if len(typmods) == 1 else -1
        case _:
            return cast(int, getattr(node, "typmod", -1))


def _common_typmod(type_oid: int, results: Iterable[n.Node]) -> int:
    typmods = {(type_of(result), typmod_of(result)) for result in results}
    (first, *others) = typmods
    return first[1] if not others and first[0] == type_oid else -1


def collation_of(node: n.Node) -> int:
    """OID of the collation of an expression's value, 0 if it has none (exprCollation)."""
    return cast(int, getattr(node, "collation", 0))


def location_of(node: n.Node) -> int | None:
    """exprLocation: the leftmost location of a node and the nodes below it; None without any."""
    if isinstance(node, n.Array):
        return node.location  # the array that IN (...) makes is written nowhere
    locations = [node.location, *map(location_of, children(node))]
    return min((location for location in locations if location is not None), default=None)


def refused_at(message: str, node: n.Node) -> SqlRefused:
    """PostgreSQL's error with this message, at a node's place in the filter's text."""
    return SqlRefused(message, location_of(node))


def _below(node: n.Node) -> dict[str, Any]:
    """The fields that hold the nodes right below, in PostgreSQL's order."""
    values = {field.name: getattr(node, field.name) for field in fields(node)}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value[0] if value and isinstance(value, tuple) else value, n.Located)
    }


def children(node: n.Node) -> tuple[n.Node, ...]:
    """The nodes right below, in PostgreSQL's order."""
    if isinstance(node, n.Case):
        arms = [part for arm in node.arms for part in (arm.condition, arm.result)]
        first = () if node.argument is None else (node.argument,)
        return (*first, *arms, node.default)
    nodes: list[n.Node] = []
    for value in _below(node).values():
        nodes += value if isinstance(value, tuple) else (value,)
    return tuple(nodes)


def rebuilt(node: n.Node, change: Callable[[n.Node], n.Node]) -> n.Node:
    """The same node with changed children (the argument of a CASE is left alone)."""
    if isinstance(node, n.Case):
        arms = tuple(n.When(change(arm.condition), change(arm.result)) for arm in node.arms)
        return replace(node, arms=arms, default=change(node.default))
    values: dict[str, Any] = {
        name: tuple(map(change, value)) if isinstance(value, tuple) else change(value)
        for name, value in _below(node).items()
    }
    return replace(node, **values) if values else node


def walk(node: n.Node) -> Iterable[n.Node]:
    """The node and all nodes below, parents first."""
    yield node
    for child in children(node):
        yield from walk(child)


def is_deeper_than(node: n.Node, levels: int) -> bool:
    """Whether an expression has more levels; it needs no more of Python's stack for that."""
    waiting = [(node, 1)]
    while waiting:
        current, level = waiting.pop()
        if level > levels:
            return True
        waiting += [(child, level + 1) for child in children(current)]
    return False


def columns_of(node: n.Node) -> frozenset[str]:
    """The names of the columns that an expression reads."""
    return frozenset(child.name for child in walk(node) if isinstance(child, n.Column))


def functions_called(node: n.Node) -> list[n.Function]:
    """The functions that the node itself calls (check_functions_in_node)."""
    match node:
        case n.FunctionCall():
            return [node.function]
        case n.OperatorCall() | n.DistinctFrom() | n.NullIf() | n.ScalarArray():
            return [node.operator.function]
        case n.RowCompare():
            return [operator.function for operator in node.operators]
        case _:
            return []


def functions_of(node: n.Node) -> list[n.Function]:
    """All functions that an expression calls, on any level."""
    return [function for child in walk(node) for function in functions_called(child)]
