"""Which columns a target has to have before changes are applied to it.

A target's columns are those that it has and those that the changes bring. What a new column, or
one of another type, means is decided in :mod:`pgsluice.schema_rules` by what the last look at the
catalog knows.

Rows from before ``ADD COLUMN ... DEFAULT 7`` have 7, and no change carries it. The target's rows
get it once all changes from before the column are applied, and none from after it. So the changes
are divided there: the first one whose relation has the column begins a piece of its own. So does
the first one whose relation has another name than the target: that is for a look to decide.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from pgsluice.columnar import RelationChanges
from pgsluice.errors import Remedy, TableError
from pgsluice.facts import ColumnFacts, RelationFacts
from pgsluice.hints import keep_as_text
from pgsluice.lsn import Lsn
from pgsluice.schema_rules import (
    AddColumns,
    LeaveOut,
    LookFirst,
    Widen,
    raise_unless_possible,
    reconcile_column,
    reconcile_key,
    reconcile_name,
)
from pgsluice.sinks.contract import AddedColumn, TargetTable
from pgsluice.sinks.target import TableOptions, column_type, target_table
from pgsluice.subscription.base.work import TableWork


@dataclass(frozen=True, slots=True)
class TargetColumns:
    """What the first piece of a table's changes asks of its target.

    Attributes:
        table: the target as it has to be.
        through: where the piece ends; None: all changes are one piece.
        added, widened: what the target lacks.
        missing: columns -> what rows from before them have at the source.
        left_out: columns of the changes that the target does not get.
        doubt: why the changes may have other columns, for people; empty: they have not.
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
    """A target's columns while they are put together from the changes' relations.

    Attributes:
        fields: the target's, and those that are added, as they have to be.
        missing: likewise of :class:`TargetColumns`.
        first: added columns with a value for older rows -> position of the first change that
            has them.
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
    """What a table's changes ask of its target.

    Args:
        runs: its changes; at least one.
        existing: the target's columns; None: it does not exist yet.

    Raises:
        TableError: the table's facts are not known, or only a look at the catalog can say what a
            change of its definition means.
    """
    runs, renamed_at = _before_another_name(work, runs)
    columns = _Columns(
        fields={column.name: column for column in existing or ()},
        key=None if work.known is None else work.known.key,
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
    """The runs that begin before the table has another name than the target; and the position of
    the first change under the other name, if there is one.

    Names from before the last look do not matter: the target has the one that the look found.
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
    """Add the columns of a run's relation; its key."""
    if run.facts is None and run.relation.oid != work.relation_oid:
        # Dropped since, most likely: the next look finds that, and takes its rows away.
        raise TableError(
            f"{work.title}: what the catalog says of a partition could not be found any more",
            remedy=Remedy.LOOK,
            table=work.title,
            partitions=frozenset({run.relation.oid}),
        )
    if run.facts is None:
        raise TableError(
            f"{work.title}: what the catalog says of it could not be found any more",
            hint="if the table still exists, copy it again; if it was dropped, its target "
            "stays as it is",
            table=work.title,
        )
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


def _leave_out_dropped(
    columns: _Columns,
    work: TableWork,
    run: RelationChanges,
    known: Collection[str],
    source_types: Mapping[str, tuple[int, int]],
) -> None:
    """Leave out what can't be read of columns that were dropped after the run's changes."""
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
    """Note what rows from before a column have, and where the column comes first."""
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
    """The columns that a look found and that the target lacks, with the value of older rows.

    Raises:
        TableError: the target can't have them.
    """
    if existing is None or work.known is None:
        return []
    facts = RelationFacts.from_json(work.alter_facts)
    known = work.known
    table = target_table(facts, options, list(known.types))
    lacking = {name for name in known.added if name in known.types} - set(existing.names)
    return [
        AddedColumn(
            table.schema.field(column.name).with_nullable(True),
            missing_value(work.title, column, facts, known.added[column.name], options),
        )
        for column in _named(facts.columns, lacking)
    ]


def _named(columns: Iterable[ColumnFacts], names: set[str]) -> list[ColumnFacts]:
    return [column for column in columns if column.name in names]


def missing_value(
    table: str,
    column: ColumnFacts,
    facts: RelationFacts,
    text: str | None,
    options: TableOptions,
) -> pa.Scalar:
    """What rows from before a column have in it, as the target's type has it.

    Args:
        facts: of its table.
        text: the value as PostgreSQL prints it; None: NULL.

    Raises:
        TableError: the target's type cannot hold it.
    """
    kind = column_type(column, facts, options)
    values = pa.array([None if text is None else text.encode()], pa.large_binary())
    decoded = kind.decode_text(values)
    if decoded.unfit is not None and decoded.unfit.any():
        raise TableError(
            f"rows from before column {column.name!r} of {table} have a value that does not fit "
            "its target type",
            hint=keep_as_text(table, [column.name]),
            table=table,
            column=column.name,
        )
    return decoded.values[0]
