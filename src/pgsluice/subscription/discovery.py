"""Which tables a subscription has: what the server's publications send, by root.

A partitioned table is one target, mapped from its leaves' facts; the copy reads the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from pgsluice.catalog import PublishedRelation, fetch_many, relations_of
from pgsluice.catalog.facts import RelationFacts


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table to replicate, a partitioned table's root for all of its leaves.

    Attributes:
        facts: of the table or root.
        columns: what the publications send; None: all columns that are not generated.
        row_filter: the publications' filters, ORed; None: all rows.
    """

    facts: RelationFacts
    columns: tuple[str, ...] | None
    row_filter: str | None


def source_tables(
    connection: psycopg.Connection[tuple[object, ...]], publications: Sequence[str]
) -> list[SourceTable]:
    """The tables that the publications send now, by name."""
    published = relations_of(connection, publications)
    facts = fetch_many(connection, [one.oid for one in published])
    by_root: dict[int, list[PublishedRelation]] = {}
    for one in published:
        known = facts.get(one.oid)
        if known is not None:
            by_root.setdefault(known.root_oid, []).append(one)
    roots = {**facts, **fetch_many(connection, [oid for oid in by_root if oid not in facts])}
    tables = [
        SourceTable(roots[oid], _columns(relations), _row_filter(relations))
        for oid, relations in by_root.items()
        if oid in roots
    ]
    return sorted(tables, key=lambda one: (one.facts.namespace, one.facts.name))


def _columns(relations: Sequence[PublishedRelation]) -> tuple[str, ...] | None:
    """Lists of one table agree over the publications (PostgreSQL's rule); the first decides."""
    lists = [one.columns for one in relations if one.columns is not None]
    return tuple(lists[0]) if len(lists) == len(relations) and lists else None


def _row_filter(relations: Sequence[PublishedRelation]) -> str | None:
    """Filters are ORed; a publication without one cancels the others."""
    filters = {one.row_filter for one in relations}
    if None in filters or not filters:
        return None
    return " OR ".join(f"({one})" for one in sorted(str(one) for one in filters))
