"""The partition bounds of a table, as SQL conditions on its columns.

The conditions outlive the partitions: they still select the rows of a dropped partition. They are
built from the catalog tables, because pg_get_partition_constraintdef() waits for ACCESS EXCLUSIVE
locks on the partition.

A bound has no condition if column values do not decide the partition, or if a comparison of the
columns differs from the one with which the server chooses a partition:

- a hash partition;
- a partition key with an expression, with an operator class that is not the type's default, or with
  another collation than the column's.

Such a partition, and those below it, get the condition of the nearest partitioned table above that
has one; that condition is also true for rows of other partitions.

Source: get_qual_for_range() and get_qual_for_list() in partbounds.c; get_const_expr() in
ruleutils.c, which prints the bounds.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple

from pgsluice.catalog import Connection
from pgsluice.catalog.partitions.leaves import below_cte
from pgsluice.catalog.tables.relations import fetch_many
from pgsluice.facts import LeafBound, RelationFacts
from pgsluice.sql import quote_identifier


@dataclass(frozen=True, slots=True)
class PartitionBound:
    """The bound of a partition, as a condition.

    Attributes:
        condition: an SQL condition that is true for the rows in the bound, if none of its columns
            is NULL.
        columns: the names of the columns in the condition.
        is_fixed: the condition is true for no other row, and does not change when other partitions
            are added or removed, as that of a default partition does.
        parent: the partition directly above; 0: the table itself is directly above.
    """

    condition: str
    columns: frozenset[str]
    is_fixed: bool = True
    parent: int = 0


class _Partition(NamedTuple):
    parent: int
    bound: str


class _PartitionKey(NamedTuple):
    """The partition key; ``columns`` has None for a column that the server compares by other rules
    than the column's own."""

    strategy: str
    columns: Sequence[str | None]


_BOUNDS = """
WITH RECURSIVE {below}
SELECT b.root, c.oid, i.inhparent, pg_catalog.pg_get_expr(c.relpartbound, 0)
FROM below b
JOIN pg_catalog.pg_class c ON c.oid = b.oid AND c.relispartition AND c.relkind IN ('r', 'p')
JOIN pg_catalog.pg_inherits i ON i.inhrelid = c.oid
WHERE b.oid <> b.root
"""
_KEYS = """
SELECT p.partrelid, p.partstrat::text,
       array_agg(CASE WHEN o.opcdefault THEN a.attname::text END ORDER BY k.place)
FROM pg_catalog.pg_partitioned_table p
CROSS JOIN LATERAL unnest(p.partattrs::int2[], p.partclass::oid[], p.partcollation::oid[])
    WITH ORDINALITY AS k(attnum, opclass, collated, place)
JOIN pg_catalog.pg_opclass o ON o.oid = k.opclass
LEFT JOIN pg_catalog.pg_attribute a
    ON a.attrelid = p.partrelid AND a.attnum = k.attnum AND a.attcollation = k.collated
WHERE p.partrelid = ANY (%s::oid[])
GROUP BY p.partrelid, p.partstrat
"""


def partition_bounds(
    connection: Connection, oids: Collection[int]
) -> dict[int, dict[int, PartitionBound]]:
    """The bounds of all partitions below each table by their OIDs, as conditions on the table's
    rows."""
    query = _BOUNDS.format(below=below_cte(connection.info.server_version))
    trees: defaultdict[int, dict[int, _Partition]] = defaultdict(dict)
    for root, oid, *partition in connection.execute(query.encode(), [list(oids)]).fetchall():
        trees[int(root)][int(oid)] = _Partition(*partition)
    parents = {int(part.parent) for tree in trees.values() for part in tree.values()}
    keys = _partition_keys(connection, parents)
    return {root: _bounds_of(tree, keys) for root, tree in trees.items()}


def _partition_keys(connection: Connection, oids: Collection[int]) -> dict[int, _PartitionKey]:
    rows = connection.execute(_KEYS, [list(oids)]).fetchall() if oids else ()
    return {int(oid): _PartitionKey(strategy, columns) for oid, strategy, columns in rows}


# The row of a system column is written once, with the table. ATTACH and DETACH write those of the
# others again (pgsluice.catalog.partitions.new_partitions).
_OF_LEAVES = """
SELECT c.oid, i.inhparent, pg_catalog.pg_get_expr(c.relpartbound, 0),
    made.xmin::text = i.xmin::text AND EXISTS (
        SELECT FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0
        AND a.xmin::text = made.xmin::text AND a.cmin::text = made.cmin::text
    )
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_inherits i ON i.inhrelid = c.oid
JOIN pg_catalog.pg_attribute made ON made.attrelid = c.oid AND made.attname = 'ctid'
WHERE c.oid = ANY (%s::oid[]) AND c.relispartition
"""


def fetch_with_bounds(connection: Connection, oids: Collection[int]) -> dict[int, RelationFacts]:
    """The metadata of relations, as :func:`fetch_many` reads it, with the bounds of leaf
    partitions."""
    facts = fetch_many(connection, oids)
    leaves = [oid for oid, each in facts.items() if each.root_oid != oid]
    if not leaves:
        return facts
    rows = connection.execute(_OF_LEAVES, [leaves]).fetchall()
    keys = _partition_keys(connection, {int(parent) for _, parent, _, _ in rows})
    for oid, parent, text, is_only in rows:
        own = _bounds_below(keys.get(int(parent)), {0: text})[0]
        bound = LeafBound(int(parent), is_only=is_only)
        if own is not None and own.is_fixed:
            bound = bound._replace(condition=own.condition, columns=tuple(sorted(own.columns)))
        facts[int(oid)] = replace(facts[int(oid)], bound=bound)
    return facts


def _bounds_of(
    tree: Mapping[int, _Partition], keys: Mapping[int, _PartitionKey]
) -> dict[int, PartitionBound]:
    """The bounds of one table's partitions."""
    siblings: defaultdict[int, list[int]] = defaultdict(list)
    for oid, partition in tree.items():
        siblings[partition.parent].append(oid)
    bounds: dict[int, PartitionBound | None] = {}
    for parent, children in siblings.items():
        bounds.update(_bounds_below(keys.get(parent), {oid: tree[oid].bound for oid in children}))
    complete = {}
    for oid, partition in tree.items():
        path = [oid]
        while path[-1] in tree:
            path.append(tree[path[-1]].parent)
        known = list(takewhile(bool, (bounds[each] for each in reversed(path[:-1]))))
        if known:
            is_own = len(known) == len(path) - 1
            parent = partition.parent if partition.parent in tree else 0
            complete[oid] = _all_of(known, is_own=is_own, parent=parent)
    return complete


def _all_of(
    bounds: Sequence[PartitionBound | None], *, is_own: bool, parent: int
) -> PartitionBound:
    """A partition's bound, combined from its own and those above it, the topmost first."""
    known = [bound for bound in reversed(bounds) if bound is not None]
    condition = known[0].condition
    if len(known) > 1:
        condition = " AND ".join(f"({bound.condition})" for bound in known)
    columns = frozenset[str]().union(*(bound.columns for bound in known))
    is_fixed = is_own and all(bound.is_fixed for bound in known)
    return PartitionBound(condition, columns, is_fixed, parent)


def _bounds_below(
    key: _PartitionKey | None, texts: Mapping[int, str]
) -> dict[int, PartitionBound | None]:
    """The bounds of the partitions directly below one table, from its partition key.

    Args:
        texts: partition -> its bound, as the server prints it.
    """
    if key is None or None in key.columns or key.strategy not in "rl":
        return dict.fromkeys(texts)
    columns = [column for column in key.columns if column is not None]
    names = [quote_identifier(column) for column in columns]
    others = {oid: _condition(names, text) for oid, text in texts.items() if text != "DEFAULT"}
    conditions = dict(others)
    for oid, text in texts.items():
        if text == "DEFAULT":
            # In an order that is the same at each look.
            known = sorted(condition for condition in others.values() if condition is not None)
            is_known = known and len(known) == len(others)
            conditions[oid] = f"NOT ({' OR '.join(f'({each})' for each in known)})" * bool(is_known)
    return {
        oid: PartitionBound(condition, frozenset(columns), oid in others) if condition else None
        for oid, condition in conditions.items()
    }


_TOKEN = re.compile(r"\s*('(?:[^']|'')*'|[(),]|[^\s(),']+)")


def _condition(names: Sequence[str], text: str) -> str | None:
    """A bound as a condition on quoted columns; None: it has no condition."""
    tokens = _TOKEN.findall(text)
    if _TOKEN.sub("", text).strip() or "\\" in text:
        return None
    lists = list(_lists(tokens))
    match [token for token in tokens if token.isupper()][:3]:
        case ["FOR", "VALUES", "FROM"] if [len(each) for each in lists] == [len(names)] * 2:
            lower, upper = lists
            sides = [_side(names, lower, ">", "MAXVALUE"), _side(names, upper, "<", "MINVALUE")]
            return " AND ".join(f"({side})" for side in sides if side) or None
        case ["FOR", "VALUES", "IN"] if len(lists) == len(names) == 1:
            values = [value for value in lists[0] if value != "NULL"]
            is_one = f"{names[0]} IN ({', '.join(values)})" if values else "false"
            return is_one if values == lists[0] else f"{is_one} OR {names[0]} IS NULL"
    return None


def _lists(tokens: Sequence[str]) -> Iterator[list[str]]:
    """The values of each pair of parentheses."""
    values: list[str] = []
    for token in tokens:
        match token:
            case "(":
                values = []
            case ")":
                yield values
                values = []
            case ",":
                continue
            case _:
                values.append(token)


def _side(names: Sequence[str], values: Sequence[str], operator: str, nothing: str) -> str:
    """The condition for one side of a bound; empty: all rows.

    Args:
        operator: ``>`` for a lower bound, which is inclusive; ``<`` for an upper one, which is
            exclusive.
        nothing: the bound value (MINVALUE or MAXVALUE) for which no row is on this side.
    """
    name, value = names[0], values[0]
    if value == nothing:
        return "false"
    if value in ("MINVALUE", "MAXVALUE"):
        return ""
    if len(names) == 1:
        return f"{name} {operator}{'=' * (operator == '>')} {value}"
    rest = _side(names[1:], values[1:], operator, nothing)
    if not rest:
        return f"{name} {operator}= {value}"
    return f"{name} {operator} {value} OR ({name} = {value} AND ({rest}))"
