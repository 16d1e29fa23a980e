"""Matches the columns of a table's changes with the target's columns: by attribute number, not by
name.

A Relation message has the column names at the time of its changes. The target has the names that
the last catalog refresh found. The metadata beside the message gives the attribute numbers of its
columns (:mod:`pgsluice.schema_rules.alignment`), and the last catalog refresh gives the target's
name for each number. So changes are renamed to the target's names first: configured types, row
filters, column lists, keys and unsent values all use these names.

A column is ignored only if the catalog proves that it was dropped and the target does not have it.
If several assignments of numbers are possible, the changes get the likeliest one, and the table is
compared with the source. Metadata of earlier versions, and metadata that may be older than the
message, has no numbers: then columns are matched by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pgsluice.columnar import Definition
from pgsluice.errors import Remedy, TableError
from pgsluice.facts import RelationFacts
from pgsluice.schema_rules.alignment import Slot, alignments
from pgsluice.schema_rules.known import KnownColumns
from pgsluice.wire import Relation


@dataclass(frozen=True, slots=True)
class _Column:
    """An attribute number at the target (0: unknown, a leaf's dropped column), and its slot."""

    number: int
    slot: Slot


def identified(
    definition: Definition, known: KnownColumns | None, relation_oid: int, *, is_later: bool
) -> Definition:
    """Rename the columns of a definition to the names that the target has for them.

    Args:
        known: the result of the table's last catalog refresh; None: there was none.
        relation_oid: the target's relation: the table, or the partitioned table above a leaf.
        is_later: the first change is newer than the last catalog refresh.

    Raises:
        TableError: only a catalog refresh can identify a column.
    """
    relation, facts = definition.relation, definition.facts
    if relation is None or facts is None or known is None or not known.names:
        return definition
    is_own = facts.oid == relation_oid
    own = tuple(column.attnum for column in facts.columns)
    numbers = own if is_own else dict(facts.above).get(relation_oid)  # those at the target
    if facts.dropped is None or numbers is None:
        return _by_name(definition, relation, known, is_later=is_later)
    columns = _columns_of(facts, numbers, known, is_own=is_own, is_later=is_later)
    sent = tuple((column.name, column.type_oid) for column in relation.columns)
    ways = alignments(sent, tuple(column.slot for column in columns))
    if not ways:
        title = f"{facts.root_namespace}.{facts.root_name}"
        raise TableError(
            f"table {title}: the changes have other columns than the catalog",
            table=title,
            remedy=Remedy.LOOK,
        )
    named = [_names_of(relation, columns, way, known) for way in ways]
    _check_known(facts, columns, {at for way in ways for at in way}, known)
    doubt = "" if all(names == named[0] for names in named) else _doubt(facts)
    kept = {
        column.name: name
        for column, number in zip(facts.columns, numbers, strict=True)
        if (name := known.name_at_target(number)) is not None
    }
    return _renamed(definition, relation, facts, named[0], kept, doubt)


def _columns_of(
    facts: RelationFacts,
    numbers: Sequence[int],
    known: KnownColumns,
    *,
    is_own: bool,
    is_later: bool,
) -> list[_Column]:
    """The attribute numbers that the message's columns can have, in order."""
    found: list[tuple[int, _Column]] = []
    for column, number in zip(facts.columns, numbers, strict=True):
        is_sent = number not in known.unsent if number in known.names else not column.generated
        was_there = known.was_there(number, is_later=is_later)
        slot = Slot(column.name, column.type_oid, None, was_there, is_sent)
        found.append((column.attnum, _Column(number, slot)))
    for dropped in facts.dropped or ():
        if is_own and known.was_dropped(dropped.attnum, is_later=is_later):
            continue
        slot = Slot("", storage=(dropped.length, dropped.align))
        found.append((dropped.attnum, _Column(dropped.attnum if is_own else 0, slot)))
    return [column for _, column in sorted(found, key=lambda each: each[0])]


def _names_of(
    relation: Relation, columns: Sequence[_Column], way: Sequence[int], known: KnownColumns
) -> tuple[str, ...]:
    """The target's names for a message's columns; an empty name: the target has no such column."""
    names = [known.name_at_target(columns[at].number) or "" for at in way]
    live = {column.number for column in columns if column.slot.name}
    gone = {name for number, name in known.names.items() if number not in live}
    free = {*gone, *known.gone.values()} - set(names)
    for index, at in enumerate(way):
        sent = relation.columns[index].name
        if not columns[at].number and sent in free:  # a leaf's, and it was the root's, too
            names[index] = sent
    return tuple(names)


def _check_known(
    facts: RelationFacts, columns: Sequence[_Column], used: Collection[int], known: KnownColumns
) -> None:
    """Request a catalog refresh if a column may have been added since the last one."""
    for at in used:
        column = columns[at]
        if column.slot.name and column.number > known.attnums:
            title = f"{facts.root_namespace}.{facts.root_name}"
            why = (
                f"column {column.slot.name!r} of {title} arrived before a catalog refresh found it"
            )
            raise TableError(why, remedy=Remedy.LOOK, table=title)


def _by_name(
    definition: Definition, relation: Relation, known: KnownColumns, *, is_later: bool
) -> Definition:
    """Match columns by name; a name that the last refresh lacks was dropped or renamed."""
    facts = definition.facts
    assert facts is not None
    names = {*known.names.values(), *known.gone.values()}
    if is_later or all(column.name in names for column in relation.columns):
        return definition
    found = tuple(column.name if column.name in names else "" for column in relation.columns)
    kept = {column.name: column.name for column in facts.columns if column.name in names}
    return _renamed(definition, relation, facts, found, kept, _doubt(facts))


def _doubt(facts: RelationFacts) -> str:
    title = f"{facts.root_namespace}.{facts.root_name}"
    return f"table {title}: the catalog does not prove which columns some changes had"


def _renamed(
    definition: Definition,
    relation: Relation,
    facts: RelationFacts,
    names: Sequence[str],
    kept: Mapping[str, str],
    doubt: str,
) -> Definition:
    """A definition with other names of the relation's columns (empty: remove the column), and
    ``kept``: the metadata's columns that the target has, by their names in the metadata."""
    columns = tuple(  # no live column can have such a name; PostgreSQL names dropped ones like this
        column
        if column.name == name
        else replace(column, name=name or f"........pg.dropped.{at}........")
        for at, (column, name) in enumerate(zip(relation.columns, names, strict=True), 1)
    )
    left_out = frozenset(c.name for c, name in zip(columns, names, strict=True) if not name)
    if any(kept.get(column.name) != column.name for column in facts.columns):
        facts = replace(
            facts,
            columns=tuple(
                replace(column, name=kept[column.name])
                for column in facts.columns
                if column.name in kept
            ),
            primary_key=tuple(kept.get(name, name) for name in facts.primary_key),
            identity_key=tuple(kept.get(name, name) for name in facts.identity_key),
        )
    if columns != relation.columns:
        relation = replace(relation, columns=columns)
    return replace(definition, relation=relation, facts=facts, left_out=left_out, doubt=doubt)
