"""Which tables a subscription has: what the server's publications send, by root.

A partitioned table is one target, mapped from its leaves' facts; the copy reads the root.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from pgsluice.catalog import PublishedRelation, fetch_many, leaf_filenodes, relations_of
from pgsluice.catalog.facts import RelationFacts
from pgsluice.subscription.shape import Shape


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table to replicate, a partitioned table's root for all of its leaves.

    Attributes:
        facts: of the table or root.
        columns: what the publications send; None: all columns that are not generated.
        row_filter: what a copy has to read, as an SQL condition; None: all rows.
        shape: what later looks are compared with.
    """

    facts: RelationFacts
    columns: tuple[str, ...] | None
    row_filter: str | None
    shape: Shape


# Made by the transaction that made them partitions. (ATTACH writes pg_class and pg_attribute
# anew; the row type in pg_type is as old as the table.)
_BORN = """
SELECT i.inhrelid, i.xmin::text, n.nspname, c.relname
FROM pg_catalog.pg_inherits i
JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_type t ON t.oid = c.reltype
WHERE i.inhrelid = ANY(%s) AND t.xmin::text = i.xmin::text
"""


def born_as_partitions(
    connection: psycopg.Connection[Any], leaves: Collection[int]
) -> frozenset[int]:
    """Which tables were empty when they became partitions: all rows came with the stream.

    A table that was made, filled and attached in one transaction has rows of that transaction
    (savepoints inside it would hide them, and are not looked for).
    """
    if not leaves:
        return frozenset()
    born = set()
    for oid, xid, namespace, name in connection.execute(_BORN, [list(leaves)]).fetchall():
        filled = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE xmin::text = {})").format(
            sql.Identifier(namespace, name), sql.Literal(xid)
        )
        try:
            (row,) = connection.execute(filled).fetchall()
        except psycopg.errors.InsufficientPrivilege:
            continue  # unknown is not born: a copy says what is missing
        if not row[0]:
            born.add(int(oid))
    return frozenset(born)


def source_tables(
    connection: psycopg.Connection[Any], publications: Collection[str]
) -> list[SourceTable]:
    """The tables that the publications send now, by name."""
    published = relations_of(connection, publications)
    facts = fetch_many(connection, published)
    by_root: dict[int, list[PublishedRelation]] = {}
    for oid, relation in published.items():
        if oid in facts:
            by_root.setdefault(facts[oid].root_oid, []).append(relation)
    roots = {**facts, **fetch_many(connection, [oid for oid in by_root if oid not in facts])}
    leaves = leaf_filenodes(connection, by_root)
    tables = [
        SourceTable(
            roots[oid],
            _columns(relations),
            _rows(oid, relations, leaves[oid]),
            Shape(
                {leaf: file.in_snapshot for leaf, file in leaves[oid].items()},
                {column.name: column.row_version for column in roots[oid].columns},
                {column.name: column.attnum for column in roots[oid].columns},
                frozenset().union(*(relation.actions for relation in relations)),
            ),
        )
        for oid, relations in by_root.items()
        if oid in roots
    ]
    return sorted(tables, key=lambda one: (one.facts.namespace, one.facts.name))


def _columns(relations: Sequence[PublishedRelation]) -> tuple[str, ...] | None:
    """Lists of one table agree over its publications (PostgreSQL's rule): any of them will do."""
    lists = [by.columns for relation in relations for by in relation.by]
    return None if None in lists else lists[0]


def _rows(
    root: int, relations: Sequence[PublishedRelation], leaves: Mapping[int, object]
) -> str | None:
    """The condition for a copy of the root.

    Where leaves are published on their own, each has its own filters, and those that are not
    published stay out.
    """
    filters = {relation.oid: _row_filter(relation) for relation in relations}
    if root in filters:
        return filters[root]
    if set(filters) >= set(leaves) and not any(filters.values()):
        return None
    return " OR ".join(
        f"tableoid = {oid}" if one is None else f"(tableoid = {oid} AND ({one}))"
        for oid, one in sorted(filters.items())
    )


def _row_filter(relation: PublishedRelation) -> str | None:
    """Filters are ORed; a publication without one cancels the others. Whatever they publish:
    a copy has the rows of all of them."""
    filters = {by.row_filter for by in relation.by}
    if None in filters:
        return None
    return " OR ".join(f"({one})" for one in sorted(str(one) for one in filters))
