"""How a source's table becomes a target table: columns, types and the key.

The key of a ``current`` table (contracts, section 7) is the subscription's ``key``, else the
primary key, else the columns of the replica identity's index. Where the table's updates or
deletes are replicated, the key has to be in what old tuples carry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from pgsluice.errors import TableError
from pgsluice.facts import ColumnFacts, RelationFacts
from pgsluice.sinks.contract import TargetTable
from pgsluice.types import ColumnType, TypeOptions, resolve_type


@dataclass(frozen=True, slots=True)
class TableOptions:
    """What a subscription's configuration says of how tables travel.

    Attributes:
        types: the defaults of every column.
        overrides: ``schema.table.column`` -> options of that column.
        keys: ``schema.table`` -> the key's columns.
    """

    types: TypeOptions = field(default_factory=TypeOptions)
    overrides: Mapping[str, TypeOptions] = field(default_factory=dict)
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def column_overrides(self, namespace: str, table: str) -> dict[str, TypeOptions]:
        """One table's overrides by column name."""
        prefix = f"{namespace}.{table}."
        return {
            name.removeprefix(prefix): options
            for name, options in self.overrides.items()
            if name.startswith(prefix)
        }


def replicated_columns(
    facts: RelationFacts, published: Sequence[str] | None = None
) -> tuple[ColumnFacts, ...]:
    """The columns that the stream carries: not generated ones, unless a publication names them.

    Args:
        published: the publication's columns as the server lists them (15+); None before.
    """
    if published is None:
        return tuple(column for column in facts.columns if not column.generated)
    names = set(published)
    return tuple(column for column in facts.columns if column.name in names)


def column_type(column: ColumnFacts, facts: RelationFacts, options: TableOptions) -> ColumnType:
    """How one column's values travel."""
    overrides = options.column_overrides(facts.root_namespace, facts.root_name)
    return resolve_type(
        column.type_oid,
        column.typmod,
        facts.type_definitions(),
        overrides.get(column.name, options.types),
    )


def key_columns(facts: RelationFacts, options: TableOptions) -> tuple[str, ...]:
    """The table's key; empty where it has none and can only take inserts.

    Raises:
        TableError: the configured key names a column that is not there, or old tuples will
            not carry the key.
    """
    table = f"{facts.root_namespace}.{facts.root_name}"
    key = options.keys.get(table) or facts.primary_key or facts.identity_key
    names = {column.name for column in facts.columns}
    missing = [name for name in key if name not in names]
    if missing:
        raise TableError(
            f"{table}: the configured key names no column of it: {', '.join(missing)}",
            hint="correct `key` of the subscription",
            table=table,
        )
    carried = names if facts.replica_identity == "f" else set(facts.identity_key)
    hidden = [name for name in key if name not in carried]
    # Without any identity no update or delete can come: the server refuses or skips them.
    if hidden and facts.replica_identity != "n" and carried:
        raise TableError(
            f"{table}: updates and deletes do not carry the key column {', '.join(hidden)}: the "
            f"replica identity has only {', '.join(facts.identity_key)}",
            hint=f'set key = {{ "{table}" = [{", ".join(repr(n) for n in facts.identity_key)}] }} '
            f"in the subscription, or ALTER TABLE {table} REPLICA IDENTITY DEFAULT; then copy it",
            table=table,
        )
    return tuple(key)


def target_table(
    facts: RelationFacts, options: TableOptions, published: Sequence[str] | None = None
) -> TargetTable:
    """The target of a table, or of a partitioned table's root.

    Raises:
        TableError: see :func:`key_columns`; or two columns differ only by case, which a lake's
            tables do not tell apart.
    """
    key = key_columns(facts, options)
    columns = replicated_columns(facts, published)
    _check_names(facts, columns)
    fields = [
        pa.field(
            column.name, column_type(column, facts, options).arrow_type, column.name not in key
        )
        for column in columns
    ]
    return TargetTable(
        namespace=facts.root_namespace,
        name=facts.root_name,
        schema=pa.schema(fields),
        key=key,
    )


def _check_names(facts: RelationFacts, columns: Sequence[ColumnFacts]) -> None:
    table = f"{facts.root_namespace}.{facts.root_name}"
    seen: dict[str, str] = {}
    for column in columns:
        other = seen.setdefault(column.name.casefold(), column.name)
        if other != column.name:
            raise TableError(
                f"{table}: the columns {other} and {column.name} are equal but for upper and lower "
                "case, and a lake's columns must not be",
                hint="rename one at the source, or publish only one of them; then copy the table: "
                f"pgsluice copy CONFIG {table}",
                table=table,
                column=column.name,
            )
