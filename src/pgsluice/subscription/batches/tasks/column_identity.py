"""Which columns of a target the changes of a table bring: a column is its number, not its name.

A Relation message has names of the moment of its changes, the target those that the last look
found. The facts beside the message say which numbers its columns have
(:mod:`pgsluice.schema_rules.alignment`), what the last look knows says how the target calls them.
So a run of changes gets the target's names before anything else is done with it: types that the
configuration chooses, row filters, column lists, keys and unsent values all go by these.

A column is left out only if the catalog proves that it was dropped, and the target does not have
it. Where the numbers can be given in several ways, the changes get the likeliest, and the table is
compared with the source. Facts of earlier versions, and those that may be older than the message,
have no numbers: then names are taken for what they were.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pgsluice.columnar import Definition
from pgsluice.errors import Remedy, TableError
from pgsluice.facts import RelationFacts
from pgsluice.schema_rules import (
    KnownColumns,
    LookFirst,
    Slot,
    alignments,
    raise_unless_possible,
)
from pgsluice.wire import Relation


@dataclass(frozen=True, slots=True)
class _Column:
    """A number of the relation.

    Attributes:
        number: at the target's relation; 0: not known, of a leaf's dropped column.
        slot: what is known of it.
    """

    number: int
    slot: Slot


def identified(
    definition: Definition, known: KnownColumns | None, relation_oid: int, *, is_later: bool
) -> Definition:
    """A definition with the names that the target has for the columns.

    Args:
        known: what the last look knows of the table; None: nobody looked.
        relation_oid: the target's relation: the table, or a partitioned one above a leaf.
        is_later: the first change is from after the last look.

    Raises:
        TableError: only a look at the catalog can say what a column is.
    """
    relation, facts = definition.relation, definition.facts
    if relation is None or facts is None or known is None or not known.names:
        return definition
    numbers = _numbers_at_target(facts, relation_oid)
    if facts.dropped is None or numbers is None:
        return _by_name(definition, relation, known, is_later=is_later)
    is_own = facts.oid == relation_oid
    columns = _columns_of(facts, numbers, known, is_own=is_own, is_later=is_later)
    sent = tuple((column.name, column.type_oid) for column in relation.columns)
    ways = alignments(sent, tuple(column.slot for column in columns))
    if not ways:
        title = f"{facts.root_namespace}.{facts.root_name}"
        raise TableError(
            f"{title}: the columns of its changes differ from those in the catalog",
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


def _numbers_at_target(facts: RelationFacts, relation_oid: int) -> tuple[int, ...] | None:
    """The numbers that the facts' columns have at the target's relation; None: not known."""
    if facts.oid == relation_oid:
        return tuple(column.attnum for column in facts.columns)
    return dict(facts.above).get(relation_oid)


def _columns_of(
    facts: RelationFacts,
    numbers: Sequence[int],
    known: KnownColumns,
    *,
    is_own: bool,
    is_later: bool,
) -> list[_Column]:
    """The numbers that the message's columns may have, in order."""
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
    """The target's names for a message's columns; empty: the target has no such column."""
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
    """Ask for a look if there may be a column that came after the last one, and was not dropped."""
    for at in used:
        column = columns[at]
        if column.slot.name and column.number > known.attnums:
            title = f"{facts.root_namespace}.{facts.root_name}"
            why = f"column {column.slot.name!r} of {title} arrived before a catalog refresh found"
            raise_unless_possible(LookFirst(f"{why} it"), title)


def _by_name(
    definition: Definition, relation: Relation, known: KnownColumns, *, is_later: bool
) -> Definition:
    """Without numbers: what the last look did not find was dropped, or had another name."""
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
    return f"{title}: the catalog does not prove which columns some changes had"


def _renamed(
    definition: Definition,
    relation: Relation,
    facts: RelationFacts,
    names: Sequence[str],
    kept: Mapping[str, str],
    doubt: str,
) -> Definition:
    """A definition with other names.

    Args:
        names: of the relation's columns; empty: it is left out.
        kept: of the facts' columns, by their names there; the others are not the target's.
    """
    columns = tuple(
        column if column.name == name else replace(column, name=name or _dropped_name(at))
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


def _dropped_name(place: int) -> str:
    """A name that no column has, as PostgreSQL calls a dropped one."""
    return f"........pg.dropped.{place}........"
