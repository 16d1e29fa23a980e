"""The target's definition of a source table: columns, types and the key.

The key of a ``current`` table (contracts: net changes) is the subscription's ``key``, else the
primary key, else the columns of the replica identity's index. If updates or deletes of the
table are replicated, old tuples have to carry the key.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from pgsluice.config.values.target_names import TargetNames
from pgsluice.errors import ParkReason, TableError
from pgsluice.facts import ColumnFacts, RelationFacts
from pgsluice.hints import copy_again
from pgsluice.masks import ColumnMask
from pgsluice.shown import shown_json
from pgsluice.sinks.contract import TargetTable
from pgsluice.sinks.identity import CURRENT, TargetMode
from pgsluice.sql import quote_title
from pgsluice.types import ColumnType, TypeOptions, resolve_type


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The types and keys in a subscription's configuration.

    Attributes:
        types: the defaults for all columns.
        overrides: ``schema.table.column`` -> options of that column.
        keys: ``schema.table`` -> the key's columns.
        mode: what the targets have of the tables.
        excluded: ``schema.table.column`` of columns that targets do not have.
        names: the names at the target.
    """

    types: TypeOptions = field(default_factory=TypeOptions)
    overrides: Mapping[str, TypeOptions] = field(default_factory=dict)
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    mode: TargetMode = CURRENT
    excluded: frozenset[str] = frozenset()
    names: TargetNames = field(default_factory=TargetNames)

    def column_overrides(self, namespace: str, table: str) -> dict[str, TypeOptions]:
        """The options of types and masks of one table's columns, by column name; empty: all have
        the defaults."""
        prefix = f"{namespace}.{table}."
        return {
            name.removeprefix(prefix): options
            for name, options in self.overrides.items()
            if name.startswith(prefix)
        }

    def excluded_columns(self, namespace: str, table: str) -> frozenset[str]:
        """The names of one table's columns that its target does not have."""
        prefix = f"{namespace}.{table}."
        return frozenset(
            name.removeprefix(prefix) for name in self.excluded if name.startswith(prefix)
        )

    def masks(self, namespace: str, table: str) -> dict[str, ColumnMask]:
        """The masks of one table's columns, excluded ones among them, by column name."""
        overrides = self.column_overrides(namespace, table).items()
        return {name: each.mask for name, each in overrides if each.mask is not None}

    def hiding(self, namespace: str, table: str, columns: Collection[str] | None = None) -> str:
        """Which of these columns (None: of all) are masked or excluded, and how: equal texts hide
        the same."""
        masks, excluded = self.masks(namespace, table), self.excluded_columns(namespace, table)
        return " ".join(
            f"{name}={'excluded' if name in excluded else mask.fingerprint}"
            for name, mask in sorted(masks.items())
            if columns is None or name in columns
        )

    def mode_of(self, namespace: str, table: str) -> TargetMode:
        """What the target of one table has: the subscription's mode, with the table's masks and
        names."""
        renamed = self.names.columns(f"{namespace}.{table}")
        return replace(
            self.mode,
            hides=self.hiding(namespace, table),
            names=json.dumps(sorted(renamed.items())) if renamed else "",
        )


def replicated_columns(
    facts: RelationFacts, published: Sequence[str] | None = None
) -> tuple[ColumnFacts, ...]:
    """The columns in the stream: a generated one only if a publication lists it. A server (15+)
    lists the published columns; None before 15."""
    if published is None:
        return tuple(column for column in facts.columns if not column.generated)
    names = set(published)
    return tuple(column for column in facts.columns if column.name in names)


def column_type(column: ColumnFacts, facts: RelationFacts, options: TableOptions) -> ColumnType:
    """The type that one column of a source table gets at the target, by the configuration."""
    overrides = options.column_overrides(facts.root_namespace, facts.root_name)
    return resolve_type(
        column.type_oid,
        column.typmod,
        facts.type_definitions(),
        overrides.get(column.name, options.types),
    )


def key_columns(facts: RelationFacts, options: TableOptions) -> tuple[str, ...]:
    """The table's key; empty for a table without one.

    Raises:
        TableError: the configured key names a missing column, or old tuples do not carry the
            key.
    """
    table = f"{facts.root_namespace}.{facts.root_name}"
    key = options.keys.get(table) or facts.primary_key or facts.identity_key
    names = {column.name for column in facts.columns}
    missing = [name for name in key if name not in names]
    if missing:
        raise TableError(
            f"`key` of the subscription names columns that table {table} does not have: "
            + ", ".join(missing),
            hint=f"correct `key` in the subscription; then copy the table: {copy_again(table)}",
            table=table,
            reason=ParkReason.KEY,
        )
    carried = names if facts.replica_identity == "f" else set(facts.identity_key)
    hidden = [name for name in key if name not in carried]
    # Without an identity no update or delete is replicated: the server refuses or skips them.
    if hidden and facts.replica_identity != "n" and carried:
        raise TableError(
            f"updates and deletes of table {table} do not carry the key column "
            f"{', '.join(hidden)}: the table's replica identity has only "
            f"{', '.join(facts.identity_key)}",
            hint=f'set key = {{ "{table}" = [{", ".join(map(shown_json, facts.identity_key))}] }} '
            f"in the subscription, or ALTER TABLE {quote_title(table)} REPLICA IDENTITY DEFAULT; "
            f"then copy the table: {copy_again(table)}",
            table=table,
            reason=ParkReason.KEY,
        )
    return tuple(key)


def target_table(
    facts: RelationFacts, options: TableOptions, published: Sequence[str] | None = None
) -> TargetTable:
    """The target's definition of a table, or of a partitioned table's root; for a change log,
    which needs no key, without its change columns.

    Raises:
        TableError: see :func:`key_columns`; or two columns differ only by case, which a lake's
            tables do not distinguish; or different keys are equal in the target's type.
    """
    key = key_columns(facts, options) if options.mode.log is None else ()
    excluded = options.excluded_columns(facts.root_namespace, facts.root_name)
    columns = tuple(
        column for column in replicated_columns(facts, published) if column.name not in excluded
    )
    _check_excluded_key(facts, key, excluded)
    check_names(
        options.names,
        (facts.root_namespace, facts.root_name),
        [column.name for column in columns],
        own=options.mode.own_columns,
    )
    types = {column.name: column_type(column, facts, options) for column in columns}
    _check_choices(facts, columns, options)
    _check_key_types(facts, {name: types[name] for name in key if name in types}, options)
    fields = [pa.field(name, kind.arrow_type, name not in key) for name, kind in types.items()]
    return TargetTable(
        namespace=facts.root_namespace,
        name=facts.root_name,
        schema=pa.schema(fields),
        key=key,
        has_whole_rows=not key and facts.replica_identity == "f" and options.mode.log is None,
    )


def check_hidden(facts: RelationFacts, options: TableOptions) -> None:
    """Refuse masks and exclusions of columns that a table does not have in the catalog now: after a
    rename, a column's values would arrive under its new name.

    Raises:
        TableError: there is one.
    """
    table = f"{facts.root_namespace}.{facts.root_name}"
    names = {column.name for column in facts.columns}
    hidden = options.masks(facts.root_namespace, facts.root_name)
    if missing := sorted(hidden.keys() - names):
        raise TableError(
            f"`mask` or `exclude` of the subscription names column {missing[0]}, which table "
            f"{table} does not have",
            hint="correct `mask` or `exclude` in the subscription, since pgsluice would not hide a "
            "renamed column; restart `pgsluice run CONFIG`, then copy the table: "
            f"{copy_again(table)}",
            table=table,
            reason=ParkReason.COLUMNS,
            column=missing[0],
        )


def _check_excluded_key(
    facts: RelationFacts, key: Sequence[str], excluded: Collection[str]
) -> None:
    table = f"{facts.root_namespace}.{facts.root_name}"
    if hidden := [name for name in key if name in excluded]:
        raise TableError(
            f"the subscription excludes the key column {hidden[0]} of table {table}, but pgsluice "
            "needs the key to find rows",
            hint=f'set mask = {{ "{table}.{hidden[0]}" = "hash" }} in the subscription instead of '
            "the exclusion; restart `pgsluice run CONFIG`, then copy the table: "
            f"{copy_again(table)}",
            table=table,
            reason=ParkReason.KEY,
            column=hidden[0],
        )


def check_names(
    names: TargetNames, table: tuple[str, str], columns: Sequence[str], *, own: Collection[str] = ()
) -> None:
    """Refuse a table (schema and name) if another one, or two of its columns, could get the same
    name at the target; ``own``: columns that pgsluice adds.

    Raises:
        TableError: a name belongs to another entry of ``rename``, or two columns differ only by
            case, or an entry is about a column that pgsluice adds, or gives its name.
    """
    title = ".".join(table)
    if (entry := names.owner_of_table_name(*table)) is not None:
        raise _taken(f"table {title} would be {'.'.join(names.table(*table))}", entry, title)
    given = names.columns(title)
    added = {name.casefold(): name for name in own}
    for column, name in given.items():
        for each in (column, name):
            if each.casefold() in added:
                raise TableError(
                    f"`rename` of the subscription has {column} = {name} for table {title}, but "
                    f"pgsluice adds the column {added[each.casefold()]} to its target",
                    hint="choose another name in `rename`; restart `pgsluice run CONFIG`, then "
                    f"copy the table: {copy_again(title)}",
                    table=title,
                    reason=ParkReason.COLUMNS,
                    column=column,
                )
    owners = {name.casefold(): column for column, name in given.items()}
    for column in columns:
        owner = owners.get(column.casefold())
        if column not in given and owner is not None:
            what = f"column {column} of table {title} would have its name at the target"
            raise _taken(what, f"{title}.{owner}", title, column)
    refuse_other_case([given.get(column, column) for column in columns], title)


def _taken(what: str, entry: str, title: str, column: str | None = None) -> TableError:
    return TableError(
        f"{what}, but `rename` of the subscription gives this name to {entry}",
        hint="choose another name in `rename`, or give this table or column another name there; "
        f"restart `pgsluice run CONFIG`, then copy the table: {copy_again(title)}",
        table=title,
        reason=ParkReason.COLUMNS,
        column=column,
    )


def refuse_other_case(names: Iterable[str], table: str) -> None:
    """Refuse columns that Delta and Spark do not distinguish.

    Raises:
        TableError: two names differ only by case.
    """
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise TableError(
                f"the columns {other} and {name} of table {table} differ only by upper and lower "
                "case, which Delta and Spark do not distinguish",
                hint="rename one of them in PostgreSQL, or by `rename` in the subscription, or "
                f"publish only one of them; then copy the table: {copy_again(table)}",
                table=table,
                reason=ParkReason.COLUMNS,
                column=name,
            )


def _check_choices(
    facts: RelationFacts, columns: Sequence[ColumnFacts], options: TableOptions
) -> None:
    """Refuse numeric types for columns that are not numeric, where they would have no effect."""
    table, definitions = f"{facts.root_namespace}.{facts.root_name}", facts.type_definitions()
    chosen = options.column_overrides(facts.root_namespace, facts.root_name)
    for column in columns:
        choice = chosen.get(column.name)
        if choice is None or choice.is_text:
            continue
        if choice.nested:
            _check_nested(table, column, column_type(column, facts, options), choice.nested)
            continue
        double, decimal = (
            resolve_type(column.type_oid, column.typmod, definitions, TypeOptions(each, True))
            for each in ("double", "decimal(1,0)")
        )
        if double == decimal:
            raise TableError(
                f"`types` of the subscription has {choice.numeric} for column {column.name} of "
                f"table {table}, but this column is {double.name}, not numeric",
                hint=f'in `types` of the subscription, remove "{table}.{column.name}" or set it to '
                f'"string"; then copy the table: {copy_again(table)}',
                table=table,
                column=column.name,
            )


def _check_nested(table: str, column: ColumnFacts, kind: ColumnType, chosen: str) -> None:
    """Refuse structs and maps for columns that have none, where they would have no effect."""
    if not pa.types.is_string(kind.arrow_type) and chosen in kind.spark_ddl:
        return
    raise TableError(
        f"`types` of the subscription has {chosen} for column {column.name} of table {table}, but "
        f"a column of the type {kind.name} cannot be stored as that",
        hint=f'in `types` of the subscription, remove "{table}.{column.name}" or set it to '
        f'"string"; then copy the table: {copy_again(table)}',
        table=table,
        column=column.name,
    )


def _has_fields(kind: pa.DataType) -> bool:
    """Whether a type is a struct or a map, or a list of them."""
    while pa.types.is_list(kind):
        kind = kind.value_type
    return bool(pa.types.is_struct(kind) or pa.types.is_map(kind))


def _check_key_types(
    facts: RelationFacts, types: Mapping[str, ColumnType], options: TableOptions
) -> None:
    table = f"{facts.root_namespace}.{facts.root_name}"
    masks = options.masks(facts.root_namespace, facts.root_name)
    for name, kind in types.items():
        if name in masks and not kind.tells_values_apart:
            raise TableError(
                f'the mask "{masks[name].kind}" makes different values of column {name} equal, but '
                f"{name} is a key column of table {table}",
                hint=f'set mask = {{ "{table}.{name}" = "hash" }} in the subscription; restart '
                f"`pgsluice run CONFIG`, then copy the table: {copy_again(table)}",
                table=table,
                reason=ParkReason.KEY,
                column=name,
            )
        if name not in masks and _has_fields(kind.arrow_type):
            raise TableError(
                f"the key column {name} of table {table} ({kind.name}) is {kind.spark_ddl} in the "
                "target, which cannot be a key",
                hint=f'in `types` of the subscription, set "{table}.{name}" to "string"; then copy '
                f"the table: {copy_again(table)}",
                table=table,
                reason=ParkReason.KEY,
                column=name,
            )
        if not kind.tells_values_apart:
            raise TableError(
                f"the key column {name} of table {table} ({kind.name}) is {kind.spark_ddl} in the "
                "target, which makes some different values equal",
                hint=f'in `types` of the subscription, set "{table}.{name}" to "string" or '
                f'"decimal(p,s)"; then copy the table: {copy_again(table)}',
                table=table,
                column=name,
            )
