"""Decides which columns a target needs before changes are applied to it.

The target needs the columns that it has and the columns of the changes.
:mod:`pgsluice.schema_rules` decides what a new column or another type means, from the last catalog
refresh.

``ADD COLUMN ... DEFAULT 7`` gives all older rows the value 7, without any change in the stream. The
target's rows have to get it exactly between the last change before the column and the first change
after it. So the changes are divided there: the first change with the new column starts a new piece.
A change under a new table name also starts a new piece, because a catalog refresh has to decide
about it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from pgsluice.columnar import RelationChanges
from pgsluice.errors import Remedy, TableError
from pgsluice.facts import ColumnFacts, RelationFacts
from pgsluice.hints import copy_again, keep_as_text
from pgsluice.lsn import Lsn
from pgsluice.schema_rules.target import reconcile_column, reconcile_key, reconcile_name
from pgsluice.schema_rules.verdicts import (
    AddColumns,
    LeaveOut,
    LookFirst,
    Widen,
    raise_unless_possible,
)
from pgsluice.sinks.contract import AddedColumn, TargetTable
from pgsluice.sinks.target import TableOptions, check_hidden, column_type, target_table
from pgsluice.subscription.base.work import TableWork


@dataclass(frozen=True, slots=True)
class TargetColumns:
    """What the first piece of a table's changes needs of its target.

    Attributes:
        table: the definition that the target needs.
        through: the end of the piece; None: all changes are one piece.
        added, widened: columns that the target lacks, and columns that need a wider type.
        missing: columns -> the value of older rows at the source.
        left_out: columns of the changes that the target does not get.
        doubt: why the changes may have other columns, as text for the user; empty: there is no
            doubt.
    """

    table: TargetTable
    through: Lsn | None
    added: tuple[AddedColumn, ...]
    widened: tuple[pa.Field, ...]
    missing: Mapping[str, pa.Scalar]
    left_out: frozenset[str]
    doubt: str = ""


@dataclass(slots=True)
class _Columns:
    """Collects a target's columns from the relations of the changes.

    Attributes:
        first: added columns with a value for older rows -> the position of the first change that
            has the column.
    """

    fields: dict[str, pa.Field]
    key: tuple[str, ...] | None
    added: dict[str, pa.Field] = field(default_factory=dict)
    widened: dict[str, pa.Field] = field(default_factory=dict)
    missing: dict[str, pa.Scalar] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)


def columns_of(
    work: TableWork,
    runs: Sequence[RelationChanges],
    existing: pa.Schema | None,
    options: TableOptions,
) -> TargetColumns:
    """The columns that a table's changes need at its target.

    Args:
        runs: the changes, grouped by relation; at least one group.
        existing: the target's columns; None: it does not exist yet.

    Raises:
        TableError: the table's metadata is unknown, or only a catalog refresh can tell what a
            change of its definition means.
    """
    runs, renamed_at = _before_another_name(work, runs)
    columns = _Columns(
        fields={column.name: column for column in existing or ()},
        key=None if work.known is None or options.mode.log is not None else work.known.key,
    )
    key: tuple[str, ...] = ()
    for run in runs:
        key = _add_run(columns, work, run, is_new=existing is None, options=options)
    begin = min(int(run.positions[0]) for run in runs)
    later = sorted({position for position in columns.first.values() if position > begin})
    ends = [*later[:1], *renamed_at]
    outside = {name for name, first in columns.first.items() if first in later}
    fields = [column for name, column in columns.fields.items() if name not in outside]
    added = (
        ()
        if existing is None
        else tuple(
            AddedColumn(column, columns.missing.get(name, pa.scalar(None, column.type)))
            for name, column in columns.added.items()
            if name not in outside
        )
    )
    return TargetColumns(
        table=TargetTable(work.namespace, work.name, pa.schema(fields), key),
        through=Lsn(min(ends) - 1) if ends else None,
        added=added,
        widened=tuple(columns.widened.values()),
        missing=columns.missing,
        left_out=frozenset(columns.left_out),
        doubt=next((run.doubt for run in runs if run.doubt), ""),
    )


def _before_another_name(
    work: TableWork, runs: Sequence[RelationChanges]
) -> tuple[Sequence[RelationChanges], list[int]]:
    """The changes before the first one under another table name, and that change's position.

    Names that are older than the last catalog refresh do not matter: the target has the new one.
    """
    unseen: list[tuple[int, LookFirst]] = []
    for run in runs:
        later = run.positions[run.positions > work.looked_through]
        verdict = reconcile_name(work.title, run.title)
        if len(later) and run.relation.oid == work.relation_oid and isinstance(verdict, LookFirst):
            unseen.append((int(later[0]), verdict))
    if not unseen:
        return runs, []
    first, verdict = min(unseen, key=lambda found: found[0])
    before = [run for run in runs if int(run.positions[0]) < first]
    if not before:
        raise_unless_possible(verdict, work.title)
    return before, [first]


def _add_run(
    columns: _Columns, work: TableWork, run: RelationChanges, *, is_new: bool, options: TableOptions
) -> tuple[str, ...]:
    """Add the columns of the changes' relation; returns its key."""
    if run.facts is None and run.relation.oid != work.relation_oid:
        # Dropped since, most likely: the next look finds that, and takes its rows away.
        raise TableError(
            f"capture could not read the definition of a partition of table {work.title} in time",
            remedy=Remedy.LOOK,
            table=work.title,
            partitions=frozenset({run.relation.oid}),
        )
    if run.facts is None:
        raise TableError(
            f"capture could not read the definition of table {work.title} in time",
            hint="if the table still exists in PostgreSQL, copy it again: "
            f"{copy_again(work.title)}; if it was dropped, its target keeps its rows",
            table=work.title,
        )
    excluded = options.excluded_columns(run.facts.root_namespace, run.facts.root_name)
    columns.left_out |= excluded & {*run.schema.names}
    _find_hidden(work, run, options)
    table = target_table(run.facts, options, [column.name for column in run.relation.columns])
    # A leaf's own key is not that of a table without one, whose rows are only appended.
    is_appended = columns.key == () and run.facts.oid != run.facts.root_oid
    key = () if is_appended else table.key
    raise_unless_possible(reconcile_key(work.title, columns.key, key), work.title)
    columns.key = key
    source_types = {c.name: (c.type_oid, c.typmod) for c in run.relation.columns}
    facts = {column.name: column for column in run.facts.columns}
    _leave_out_dropped(columns, work, run, facts.keys(), source_types)
    for column in table.schema:
        if is_new:
            columns.fields.setdefault(column.name, column)
            continue
        # The relation's type, in which the values come: the facts may be newer than it.
        now = column.with_type(run.schema.field(column.name).type)
        name, have = now.name, columns.fields.get(now.name)
        verdict = reconcile_column(work.title, have, now, source_types[name], work.known)
        raise_unless_possible(verdict, work.title)
        match verdict:
            case LeaveOut():
                columns.left_out.add(name)
            case AddColumns():
                columns.fields[name] = columns.added[name] = now.with_nullable(True)
            case Widen(wider):
                columns.fields[name] = wider
                (columns.added if name in columns.added else columns.widened)[name] = wider
        _add_missing(columns, work, facts[name], run, options)
    return key


def _find_hidden(work: TableWork, run: RelationChanges, options: TableOptions) -> None:
    """Wait for a refresh if a hidden column is gone: it may arrive under another name."""
    assert run.facts is not None
    if int(run.positions[-1]) <= work.looked_at:
        return  # the refresh has found it, or the column is newer than these changes
    try:
        check_hidden(run.facts, options)
    except TableError as error:
        raise TableError(error.what, remedy=Remedy.LOOK, table=work.title) from error


def _leave_out_dropped(
    columns: _Columns,
    work: TableWork,
    run: RelationChanges,
    known: Collection[str],
    source_types: Mapping[str, tuple[int, int]],
) -> None:
    """Ignore columns that were dropped after these changes and can no longer be read."""
    for now in run.schema:
        have = columns.fields.get(now.name)
        if now.name not in known and have is not None:
            source_type = source_types[now.name]
            verdict = reconcile_column(
                work.title, have, now, source_type, work.known, is_dropped=True
            )
            if isinstance(verdict, LeaveOut):
                columns.left_out.add(now.name)


def _add_missing(
    columns: _Columns,
    work: TableWork,
    column: ColumnFacts,
    run: RelationChanges,
    options: TableOptions,
) -> None:
    """Note the value that older rows have in a column, and the column's first change."""
    assert run.facts is not None
    name = column.name
    text = column.missing if work.known is None else work.known.added.get(name)
    if text is None or name in columns.left_out:
        return
    if name not in columns.missing:
        columns.missing[name] = missing_value(work.title, column, run.facts, text, options)
    if name in columns.added:
        position = int(run.positions[0])
        columns.first[name] = min(position, columns.first.get(name, position))


def due_columns(
    work: TableWork, existing: pa.Schema | None, options: TableOptions
) -> list[AddedColumn]:
    """The columns that a catalog refresh found and the target lacks, each with the value of older
    rows.

    Raises:
        TableError: the target cannot have them.
    """
    if existing is None or work.known is None:
        return []
    facts = RelationFacts.from_json(work.alter_facts)
    known = work.known
    table = target_table(facts, options, list(known.types))
    lacking = known.added.keys() & {*known.types} & {*table.schema.names} - {*existing.names}
    return [
        AddedColumn(
            table.schema.field(column.name).with_nullable(True),
            missing_value(work.title, column, facts, known.added[column.name], options),
        )
        for column in facts.columns
        if column.name in lacking
    ]


def missing_value(
    table: str,
    column: ColumnFacts,
    facts: RelationFacts,
    text: str | None,
    options: TableOptions,
) -> pa.Scalar:
    """The value that older rows have in a column, in the target's type.

    Args:
        facts: the table's relation metadata.
        text: the value as PostgreSQL prints it; None: NULL.

    Raises:
        TableError: the target's type cannot hold it.
    """
    kind = column_type(column, facts, options)
    values = pa.array([None if text is None else text.encode()], pa.large_binary())
    decoded = kind.decode_text(values)
    if decoded.unfit is not None and decoded.unfit.any():
        raise TableError(
            f"the default value of the new column {column.name!r} of table {table} does not fit "
            "the column's type in the target",
            hint=keep_as_text(table, [column.name]),
            table=table,
            column=column.name,
        )
    return decoded.values[0]
