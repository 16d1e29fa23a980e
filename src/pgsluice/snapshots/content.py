"""What is read of a table that publications send, from what the server publishes of its relations.

A read has to have the rows and values that the stream would have sent, so each leaf is read by
the rules of the relation that its changes are sent as: the topmost published partitioned table
above it, else the leaf itself. Leaves without such a relation are not read. A column that a
leaf's list leaves out is NULL in that leaf's rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pgsluice.definitions.published import PublishedRelation
from pgsluice.facts import RelationFacts


@dataclass(frozen=True, slots=True)
class PublishedContent:
    """What the server publishes of a table, read through its root.

    Attributes:
        columns: in the table's order; None: all columns that are not generated.
        row_filter: an SQL condition; None: all rows.
        unlisted: column -> the leaves whose lists leave it out, where others list it.
    """

    columns: tuple[str, ...] | None
    row_filter: str | None
    unlisted: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def published_content(
    facts: RelationFacts,
    relations: Sequence[PublishedRelation],
    leaves: Mapping[int, Collection[int]],
) -> PublishedContent:
    """What a copy of a table has to read.

    Args:
        facts: of the table, or of a partitioned table's root.
        relations: what is published of it: itself, partitioned tables below it, or leaves.
        leaves: the leaves of the table, and of each partitioned table of ``relations``.
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
    """All columns that some leaf's list has, and the leaves that leave one of them out."""
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
    """The lists of one relation agree over its publications (PostgreSQL's rule): any will do."""
    lists = [by.columns for by in relation.by]
    return None if None in lists else lists[0]


def _row_filter(relation: PublishedRelation) -> str | None:
    """The relation's filters, ORed; a publication without a filter cancels the others.

    Whichever actions they publish: a copy has the rows of all of them.
    """
    filters = {by.row_filter for by in relation.by}
    if None in filters:
        return None
    return " OR ".join(
        f"({condition})" for condition in sorted(str(filter_) for filter_ in filters)
    )
