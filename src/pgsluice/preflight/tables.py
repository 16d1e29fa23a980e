"""Checks of the published tables: privileges, replica identities and names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pgsluice.catalog.rights import TableRights, grants
from pgsluice.config import Config
from pgsluice.config.configured_names import unknown_names
from pgsluice.monitor.wording import counted
from pgsluice.preflight.facts import ConfiguredKey, PublishedTable, SourceFacts
from pgsluice.preflight.findings import Finding, error, ok, warning
from pgsluice.shown import first_names, shown
from pgsluice.sql import quote_identifier

_SHOWN_TABLES = 5
_RENAME = "rename one of them in PostgreSQL, or by `rename` in the subscription"


def check_privileges(facts: SourceFacts) -> Iterator[Finding]:
    """Whether a copy can read every table."""
    if not facts.tables:
        yield warning(
            "tables",
            "the publications in [source] have no table",
            "add tables to one of these publications",
        )
        return
    unreadable = [table for table in facts.rights if not table.may_read]
    if not unreadable:
        # A partitioned table is one table for its user, and for a copy.
        count = len(facts.rights) or len(facts.tables)
        yield ok("privileges", f"{counted(count, 'table')} published, all readable")
        return
    yield error(
        "privileges",
        f"role {facts.server.user} cannot read these tables, so pgsluice cannot copy them: "
        f"{_list_rights(unreadable)}",
        "\n".join(grants(replace(table, sees_all_rows=True) for table in unreadable)),
    )


def check_row_security(facts: SourceFacts) -> Iterator[Finding]:
    """Whether row level security lets a copy read all rows."""
    hidden = [table for table in facts.rights if not table.sees_all_rows]
    if hidden:
        yield error(
            "row level security",
            f"row level security hides rows from role {facts.server.user}, so pgsluice cannot copy "
            f"these tables: {_list_rights(hidden)}",
            "\n".join(
                grants(replace(table, may_use_schema=True, may_select=True) for table in hidden)
            ),
        )


def check_replica_identity(facts: SourceFacts) -> Iterator[Finding]:
    """Whether updates and deletes are published, and identify their row."""
    without = [table for table in facts.tables if not table.has_identity]
    for table in without:
        if table.sends_updates:
            yield error(
                "replica identity",
                f"table {table.shown} has no replica identity, but its updates are published: the "
                "server refuses the application's updates and deletes of this table",
                f"ALTER TABLE {table.sql_name} REPLICA IDENTITY FULL;  -- or give the table a "
                "primary key",
            )
    insert_only = [table for table in without if not table.sends_updates]
    if insert_only:
        yield warning(
            "replica identity",
            "the server sends only the inserts of these tables, which have no replica identity: "
            f"{_list_tables(insert_only)}",
            "\n".join(_ways_to_an_identity(insert_only)),
        )
    keyless = [
        table
        for table in facts.tables
        if table.is_full and not table.has_key and not _finds_rows(table, facts.config)
    ]
    if keyless:
        yield warning(
            "replica identity",
            "these tables have REPLICA IDENTITY FULL, but no key: in mode history or with "
            "deleted_column, the first update or delete parks the table: "
            f"{_list_tables(keyless)}",
            "\n".join(_ways_to_a_key(keyless)),
        )


def check_keys(facts: SourceFacts) -> Iterator[Finding]:
    """Whether configured keys are proved to be unique."""
    for key in facts.keys:
        what = (
            f'subscription "{key.subscription}": the key ({", ".join(key.columns)}) of table '
            f"{shown(f'{key.schema}.{key.name}')}"
        )
        if key.index is not None:
            yield ok("key", f"{what} is unique by index {shown(key.index)}")
        elif key.is_shared:
            yield error(
                "key",
                f"{what} is not unique: the server's statistics show a value that several rows "
                "have, so pgsluice refuses to copy the table",
                "set `key` in the subscription to columns that identify each row",
            )
        else:
            yield warning(
                "key",
                f"{what} has no unique index that is valid and NOT DEFERRABLE (rows can share a "
                "deferrable key within a transaction), without WHERE, and on columns that are NOT "
                "NULL: if two rows have the same key, the copy or the merge that finds them parks "
                "the table",
                "\n".join(_unique_statements(key)),
            )


def _unique_statements(key: ConfiguredKey) -> Iterator[str]:
    """SQL that makes a key unique."""
    table = f"{quote_identifier(key.schema)}.{quote_identifier(key.name)}"
    columns = [*map(quote_identifier, (*key.columns, *key.lacking))]
    not_null = ", ".join(f"ALTER {column} SET NOT NULL" for column in columns)
    if key.lacking:
        names = json.dumps([*key.columns, *key.lacking])
        yield f"add the partition columns to `key` in the subscription: {names}; then"
    yield f"ALTER TABLE {table} {not_null};"
    yield f"CREATE UNIQUE INDEX ON {table} ({', '.join(columns)});"


def _ways_to_a_key(tables: Sequence[PublishedTable]) -> Iterator[str]:
    """Ways to give tables a key; only suitable columns are proposed."""
    unique = [(table, table.unique) for table in tables if table.unique][:_SHOWN_TABLES]
    if unique:
        keys = (
            f"{json.dumps(f'{table.schema}.{table.name}')} = {json.dumps(index.columns)}"
            for table, index in unique
        )
        yield f"set key = {{ {', '.join(keys)} }} in the subscription"
    others = [table for table in tables if not table.unique]
    for table in others[:_SHOWN_TABLES]:
        yield _choose_a_key(table)


def _ways_to_an_identity(tables: Sequence[PublishedTable]) -> Iterator[str]:
    """Ways to have updates and deletes of tables sent."""
    yield "to receive the updates and deletes of a table:"
    for table in tables[:_SHOWN_TABLES]:
        if table.unique:
            index = quote_identifier(table.unique.name)
            yield f"ALTER TABLE {table.sql_name} REPLICA IDENTITY USING INDEX {index};"
        else:
            yield f"{_choose_a_key(table)}. If there are none:"
            yield f"ALTER TABLE {table.sql_name} REPLICA IDENTITY FULL;"


def _choose_a_key(table: PublishedTable) -> str:
    return (
        f"choose columns that identify each row of {table.sql_name}, and make them its primary "
        "key: no unique index has only columns that are NOT NULL"
    )


def _finds_rows(table: PublishedTable, config: Config) -> bool:
    """Whether all enabled subscriptions have a configured key for the table, or need none."""
    enabled = [subscription for subscription in config.subscriptions if subscription.enabled]
    title = f"{table.schema}.{table.name}"
    return all(
        subscription.mode == "changelog"
        or (subscription.mode == "current" and subscription.deleted_column is None)
        or subscription.key.get(title)
        for subscription in enabled
    )


def check_column_names(facts: SourceFacts) -> Iterator[Finding]:
    """Whether a table's columns differ in more than case, as Spark and Delta require."""
    for table in facts.tables:
        if table.same_names and not _are_renamed(table, facts.config):
            yield error(
                "column names",
                f"table {table.shown}: the columns {', '.join(table.same_names)} differ only in "
                "upper and lower case, which Delta and Spark do not distinguish",
                _RENAME,
            )


def _are_renamed(table: PublishedTable, config: Config) -> bool:
    """Whether each subscription gives columns that differ by case other names."""
    return all(
        {*pair.split(" and ")} & subscription.names.columns(f"{table.schema}.{table.name}").keys()
        for subscription in config.subscriptions
        for pair in table.same_names
        if subscription.enabled
    )


def check_table_names(facts: SourceFacts) -> Iterator[Finding]:
    """Whether tables' names differ in more than case, as some file systems require."""
    by_lower_name: dict[tuple[str, str], PublishedTable] = {}
    for table in facts.tables:
        lower_name = (table.schema.lower(), table.name.lower())
        other = by_lower_name.setdefault(lower_name, table)
        if other is not table:
            yield warning(
                "table names",
                f"the names of the tables {other.shown} and {table.shown} differ only in upper and "
                "lower case: on some file systems both tables would share one folder",
                _RENAME,
            )


def check_targets_of_tables(facts: SourceFacts) -> Iterator[Finding]:
    """Whether tables can have the names, partitions and order that are configured."""
    yield from facts.unfit


def check_configured_names(facts: SourceFacts) -> Iterator[Finding]:
    """Whether the names in subscriptions' settings match published tables and columns."""
    relations = facts.catalog.tables
    sent = {oid for oid in facts.sent if oid in relations}
    sent |= {above for oid in sent for above in relations[oid].ancestors}
    tables = {
        f"{table.namespace}.{table.name}": [column.name for column in table.columns]
        for oid, table in relations.items()
        if oid in sent
    }
    for subscription in facts.config.subscriptions:
        for unknown in unknown_names(subscription, tables):
            what = f'subscription "{subscription.name}": {unknown.what}: it has no effect'
            find = error if unknown.hides else warning
            yield find("configuration", what, unknown.hint)


def _list_rights(tables: Sequence[TableRights]) -> str:
    return first_names([shown(f"{table.namespace}.{table.name}") for table in tables])


def _list_tables(tables: Sequence[PublishedTable]) -> str:
    return first_names([table.shown for table in tables])
