"""The rows and columns to read of a published table, from how the server publishes its relations.

A copy has to read the rows and values that the stream would send. So each leaf partition is read by
the rules of the relation under whose name its changes are sent: the topmost published partitioned
table above it, else the leaf itself. Leaves without such a relation are not read. A column that is
missing in a leaf's column list is NULL in that leaf's rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pgsluice.definitions.published import PublishedRelation
from pgsluice.facts import RelationFacts


@dataclass(frozen=True, slots=True)
class PublishedContent:
    """The published content of a table, read through its root.

    Attributes:
        columns: the columns in the table's order; None: all columns that are not generated.
        row_filter: an SQL condition; None: all rows.
        unlisted: column -> leaf partitions whose column lists lack it, while others have it.
    """

    columns: tuple[str, ...] | None
    row_filter: str | None
    unlisted: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def published_content(
    facts: RelationFacts,
    relations: Sequence[PublishedRelation],
    leaves: Mapping[int, Collection[int]],
) -> PublishedContent:
    """The rows and columns that a copy of a table has to read.

    Args:
        facts: the metadata of the table or partition root.
        relations: its published relations: itself, partitioned tables below it, or leaf partitions.
        leaves: the leaf partitions of the table, and of each partitioned table of ``relations``.
    """
    of_leaf: dict[int, PublishedRelation] = {}
    # The topmost relation has the most leaves: it comes first and takes them.
    for relation in sorted(relations, key=lambda one: -len(leaves.get(one.oid, ()))):
        for leaf in leaves.get(relation.oid, (relation.oid,)) or ():
            of_leaf.setdefault(leaf, relation)
    sources = {relation.oid: relation for relation in relations}
    if facts.oid in sources:
        root = sources[facts.oid]
        return PublishedContent(_columns(root), _row_filter(root))
    by_relation: dict[int, list[int]] = {}
    for leaf, relation in sorted(of_leaf.items()):
        by_relation.setdefault(relation.oid, []).append(leaf)
    columns, unlisted = _lists(facts, {leaf: _columns(of_leaf[leaf]) for leaf in sorted(of_leaf)})
    filters = {oid: _row_filter(sources[oid]) for oid in by_relation}
    is_whole = set(of_leaf) >= set(leaves[facts.oid]) and not any(filters.values())
    row_filter = None if is_whole else _any_leaf(by_relation, filters)
    return PublishedContent(columns, row_filter, unlisted)


def _any_leaf(by_relation: Mapping[int, list[int]], filters: Mapping[int, str | None]) -> str:
    conditions = []
    for oid, own_leaves in by_relation.items():
        is_here = f"tableoid IN ({', '.join(map(str, own_leaves))})"
        condition = filters[oid]
        conditions.append(is_here if condition is None else f"({is_here} AND ({condition}))")
    return " OR ".join(conditions) or "false"


def _lists(
    facts: RelationFacts, lists: Mapping[int, tuple[str, ...] | None]
) -> tuple[tuple[str, ...] | None, dict[str, tuple[int, ...]]]:
    """All columns of the leaf partitions' column lists, and the leaves whose lists lack one of
    them."""
    if all(names is None for names in lists.values()):
        return None, {}
    plain = tuple(column.name for column in facts.columns if not column.generated)
    sent = {leaf: set(plain if names is None else names) for leaf, names in lists.items()}
    union = set[str]().union(*sent.values())
    columns = tuple(column.name for column in facts.columns if column.name in union)
    unlisted = {
        name: tuple(leaf for leaf, names in sent.items() if name not in names) for name in columns
    }
    return columns, {name: without for name, without in unlisted.items() if without}


def _columns(relation: PublishedRelation) -> tuple[str, ...] | None:
    """The column list of one relation; it is the same in all publications (PostgreSQL's rule)."""
    lists = [by.columns for by in relation.by]
    return None if None in lists else lists[0]


def _row_filter(relation: PublishedRelation) -> str | None:
    """The relation's row filters, combined with OR; a publication without a filter cancels the
    others.

    The published actions do not matter: a copy has the rows of all publications.
    """
    filters = {by.row_filter for by in relation.by}
    if None in filters:
        return None
    return " OR ".join(
        f"({condition})" for condition in sorted(str(filter_) for filter_ in filters)
    )
