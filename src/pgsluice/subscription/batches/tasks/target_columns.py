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
from pgsluice.schema_rules.target import check_key, check_name, reconcile_column
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
    """Collects a target's columns from the relations of a table's changes.

    Attributes:
        is_new: the target does not exist yet.
        first: added columns with a value for older rows -> the position of the first change that
            has the column.
    """

    work: TableWork
    options: TableOptions
    is_new: bool
    fields: dict[str, pa.Field]
    key: tuple[str, ...] | None
    added: dict[str, pa.Field] = field(default_factory=dict)
    widened: dict[str, pa.Field] = field(default_factory=dict)
    missing: dict[str, pa.Scalar] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)

    def add(self, run: RelationChanges) -> None:
        """Add the columns and the key of the changes' relation."""
        work, options, known = self.work, self.options, run.facts
        if known is None and run.relation.oid != work.relation_oid:
            # Dropped since, most likely: the next look finds that, and takes its rows away.
            raise TableError(
                "capture could not read the definition of a partition of table "
                f"{work.title} before it changed again or was dropped",
                remedy=Remedy.LOOK,
                table=work.title,
                partitions=frozenset({run.relation.oid}),
            )
        if known is None:
            raise TableError(
                f"capture could not read the definition of table {work.title} before it changed "
                "again or was dropped",
                hint="if the table still exists in PostgreSQL, copy it again: "
                f"{copy_again(work.title)}; if it was dropped, its target keeps its rows",
                table=work.title,
            )
        excluded = options.excluded_columns(known.root_namespace, known.root_name)
        self.left_out |= excluded & {*run.schema.names}
        if int(run.positions[-1]) > work.looked_at:
            # Else the refresh has found hidden columns, or they are newer than these changes.
            self._find_hidden(known)
        table = target_table(known, options, [column.name for column in run.relation.columns])
        # A leaf's own key is not that of a table without one, whose rows are only appended.
        is_appended = self.key == () and known.oid != known.root_oid
        key = () if is_appended else table.key
        check_key(work.title, self.key, key)
        self.key = key
        source_types = {c.name: (c.type_oid, c.typmod) for c in run.relation.columns}
        facts = {column.name: column for column in known.columns}
        self._leave_out_dropped(run.schema, facts.keys(), source_types)
        for column in table.schema:
            if self.is_new:
                self.fields.setdefault(column.name, column)
                continue
            # The relation's type, in which the values come: the facts may be newer than it.
            now = column.with_type(run.schema.field(column.name).type)
            name, have = now.name, self.fields.get(now.name)
            needed = reconcile_column(work.title, have, now, source_types[name], work.known)
            if needed is None:
                self.left_out.add(name)
            elif needed is not have:
                self.fields[name] = needed
                is_added = have is None or name in self.added
                (self.added if is_added else self.widened)[name] = needed
            self._add_missing(facts[name], known, int(run.positions[0]))

    def _find_hidden(self, facts: RelationFacts) -> None:
        """Wait for a refresh if a hidden column is gone: it may arrive under another name."""
        try:
            check_hidden(facts, self.options)
        except TableError as error:
            raise TableError(error.what, remedy=Remedy.LOOK, table=self.work.title) from error

    def _leave_out_dropped(
        self, sent: pa.Schema, known: Collection[str], source_types: Mapping[str, tuple[int, int]]
    ) -> None:
        """Ignore columns that were dropped after these changes and can no longer be read."""
        title, found = self.work.title, self.work.known
        for now in sent:
            have = self.fields.get(now.name)
            if now.name not in known and have is not None:
                type_ = source_types[now.name]
                if reconcile_column(title, have, now, type_, found, is_dropped=True) is None:
                    self.left_out.add(now.name)

    def _add_missing(self, column: ColumnFacts, facts: RelationFacts, position: int) -> None:
        """Note the value that older rows have in a column, and the column's first change."""
        name, known = column.name, self.work.known
        text = column.missing if known is None else known.added.get(name)
        if text is None or name in self.left_out:
            return
        if name not in self.missing:
            value = missing_value(self.work.title, column, facts, text, self.options)
            self.missing[name] = value
        if name in self.added:
            self.first[name] = min(position, self.first.get(name, position))


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
        work,
        options,
        is_new=existing is None,
        fields={column.name: column for column in existing or ()},
        key=None if work.known is None or options.mode.log is not None else work.known.key,
    )
    for run in runs:
        columns.add(run)
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
        table=TargetTable(work.namespace, work.name, pa.schema(fields), columns.key or ()),
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
    unseen: list[tuple[int, str]] = []
    for run in runs:
        later = run.positions[run.positions > work.looked_through]
        if len(later) and run.relation.oid == work.relation_oid and run.title != work.title:
            unseen.append((int(later[0]), run.title))
    if not unseen:
        return runs, []
    first, name = min(unseen, key=lambda found: found[0])
    before = [run for run in runs if int(run.positions[0]) < first]
    if not before:
        check_name(work.title, name)
    return before, [first]


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
