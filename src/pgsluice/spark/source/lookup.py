"""Looks up a table's columns, and the relations whose changes belong to it.

A query has a table's name; the spool identifies relations by OID. Changes of a partitioned table
may have the OIDs of its leaf partitions, whose metadata has the root.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pgsluice.columnar.definitions import (
    Definition,
    column_types,
    definition_after,
    definition_before,
)
from pgsluice.errors import ConfigError, PgsluiceError, SourceUnreachable
from pgsluice.facts import RelationFacts
from pgsluice.spark.source.options import NOW, SNAPSHOT, SourceOptions, TableName
from pgsluice.spool import SegmentInfo, Spool, SpoolReader
from pgsluice.spool.segments.block import FACTS_TAG, SegmentView
from pgsluice.types import ColumnType, TypeOptions, resolve_type

if TYPE_CHECKING:
    import psycopg

_LOG = logging.getLogger("pgsluice.spark")
_FEW_SEGMENTS = 8
"""How many of the newest segments to search for names that may be typos."""
NEWEST_SEGMENTS = 64
"""How many of the newest segments to search for a table before querying the server."""


def is_of(definition: Definition, table: TableName) -> bool:
    """Whether a relation is the table, or a leaf partition of it."""
    names = (table.namespace, table.name)
    relation, facts = definition.relation, definition.facts
    return (relation is not None and (relation.schema, relation.name) == names) or (
        facts is not None and (facts.root_namespace, facts.root_name) == names
    )


def _definitions(view: SegmentView) -> Iterator[Definition]:
    """Every definition of a relation in a segment, in order."""
    known = {oid: definition_before(view, oid) for oid in view.relations}
    yield from known.values()
    tags = view.block.tags
    for index in ((tags == ord("R")) | (tags == FACTS_TAG)).nonzero()[0].tolist():
        oid = int(view.block.oids[index])
        before = known.get(oid, Definition(None, None))
        known[oid] = definition_after(view, before, index)
        if known[oid].relation is not None:
            yield known[oid]


def oids_of(view: SegmentView, is_wanted: Callable[[Definition], bool]) -> set[int]:
    """The relations in a segment that match by at least one of their definitions."""
    matching = (each.relation for each in _definitions(view) if is_wanted(each))
    return {relation.oid for relation in matching if relation is not None}


def table_columns(options: SourceOptions, table: TableName) -> list[tuple[str, str]]:
    """The table's columns and their Spark types.

    They come from the newest definition in the spool, and then from the server's catalog: a column
    that was added since is not in the spool yet. If a new stream reads nothing that the spool has
    now, they come from the catalog alone.

    Raises:
        ConfigError: neither the spool nor the server knows the table.
        SourceUnreachable: the spool does not know it, and the server cannot be reached.
    """
    types = TypeOptions(numeric=options.numeric)
    columns: dict[str, str] = {}
    # A spool without a start position is empty: its slot has not been created yet.
    if SpoolReader.is_there(options.spool) and not _begins_later(options):
        reader = SpoolReader(options.spool)
        infos = reader.segments(reader.start())[::-1]
        # For a table without recent changes, asking the server is quicker than a long search.
        newest = _newest(reader, infos if options.dsn is None else infos[:NEWEST_SEGMENTS], table)
        if newest is not None and newest.relation is not None:
            own_types = column_types(newest.relation, newest.facts, types)
            pairs = zip(newest.relation.columns, own_types, strict=True)
            columns = {column.name: own_type.spark_ddl for column, own_type in pairs}
    try:
        facts = None if options.dsn is None else _from_catalog(options, options.dsn, table)
    except SourceUnreachable:
        if not columns:
            raise
        facts = None
    if facts is not None:
        of_catalog = catalog_types(facts, types)
        for column in facts.columns:
            if not column.generated:
                columns.setdefault(column.name, of_catalog[column.name].spark_ddl)
    elif not columns:
        raise ConfigError(
            f"the spool {options.spool} has no changes of table {table}"
            + ("" if options.dsn is None else ", and the server has no such table"),
            hint="set the option dsn, so that pgsluice reads the table's columns from the server"
            if options.dsn is None
            else "correct the option table; PostgreSQL folds an unquoted name to lower case",
            table=str(table),
        )
    return [*columns.items()]


def _begins_later(options: SourceOptions) -> bool:
    """Whether the query is a new stream, which gets only changes that the spool does not have."""
    name, begins = options.subscription, options.starting_position
    if options.dsn is None or name is None or begins not in (NOW, SNAPSHOT):
        return False
    return Spool.open(options.spool).subscription(name) is None


def catalog_types(facts: RelationFacts, types: TypeOptions) -> dict[str, ColumnType]:
    """The type of each column of a table at the target, by the column's name, including generated
    columns."""
    definitions = facts.type_definitions()
    return {
        column.name: resolve_type(column.type_oid, column.typmod, definitions, types)
        for column in facts.columns
    }


def relation_named(connection: psycopg.Connection[Any], table: TableName) -> tuple[int, str] | None:
    """The OID and the ``relkind`` of the relation of this name; None: there is none."""
    return connection.execute(
        "SELECT c.oid::int8, c.relkind::text FROM pg_catalog.pg_class c "
        "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname = %s",
        [table.namespace, table.name],
    ).fetchone()


def is_sent(
    connection: psycopg.Connection[Any], table: TableName, publications: Collection[str]
) -> bool:
    """Whether the publications send changes of the table under its name, or there is no table."""
    from pgsluice.catalog.publications.published import relations_of
    from pgsluice.catalog.tables.relations import fetch_many

    oid, _ = relation_named(connection, table) or (0, "")
    sent_as = {each.sent_as for each in relations_of(connection, publications).values()}
    roots = {facts.root_oid for facts in fetch_many(connection, sent_as).values()}
    return not oid or oid in sent_as | roots


def warn_of_unknown_exclusions(options: SourceOptions) -> None:
    """Log the names in ``exclude_tables`` that match no table: they may be typos.

    The names are compared with the server's tables, and with those in the newest segments of the
    spool.
    """
    if not options.exclude_tables:
        return
    from pgsluice.config.values.table_names import nearest_table

    titles: set[str] = set()
    if options.dsn is not None:
        try:
            titles |= _titles_at(options.dsn)
        except PgsluiceError:
            return  # what needs the server says so
    excluded = {str(table) for table in options.exclude_tables}
    for found in _titles_in(SpoolReader(options.spool)) if excluded - titles else ():
        titles |= found
        if excluded <= titles:
            break
    for title in sorted(excluded - titles) if titles else ():
        hint = nearest_table(title, titles)
        _LOG.warning("option exclude_tables: no table is called %s; %s", title, hint)


def _titles_in(reader: SpoolReader) -> Iterator[set[str]]:
    """The names of the tables in each of the newest segments, the newest first."""
    for info in reader.segments(reader.start())[: -_FEW_SEGMENTS - 1 : -1]:
        titles = set()
        for definition in (each for view in reader.views(info) for each in _definitions(view)):
            relation, facts = definition.relation, definition.facts
            if relation is not None:
                titles.add(f"{relation.schema}.{relation.name}")
            if facts is not None:
                titles.add(f"{facts.root_namespace}.{facts.root_name}")
        yield titles


def _titles_at(dsn: str) -> set[str]:
    from pgsluice.catalog.tables.tables import user_tables
    from pgsluice.replication import connect_sql

    with connect_sql(dsn, "looking for the excluded tables") as connection:
        return {f"{table.namespace}.{table.name}" for table in user_tables(connection)}


def _newest(
    reader: SpoolReader, infos: Iterable[SegmentInfo], table: TableName
) -> Definition | None:
    """The table's last definition in the first of these segments that has one."""
    for info in infos:
        matching = (d for v in reader.views(info) for d in _definitions(v) if is_of(d, table))
        if last := deque(matching, maxlen=1):
            return last[0]
    return None


def _from_catalog(options: SourceOptions, dsn: str, table: TableName) -> RelationFacts | None:
    """The table, without columns that the publications do not send; None: there is none."""
    from pgsluice.catalog.publications.published import relations_of
    from pgsluice.catalog.tables.relations import fetch_many, fetch_relation_facts
    from pgsluice.replication import connect_sql

    names = options.publications or ()
    if Spool.exists(options.spool):
        names = names or Spool.open(options.spool).identity.publications
    with connect_sql(dsn, f"looking up the columns of {table}") as connection:
        oid, kind = relation_named(connection, table) or (0, "")
        if kind not in ("r", "p"):
            return None
        facts = fetch_relation_facts(connection, oid)
        published = relations_of(connection, names) if names else {}
        lists = {of: {each.columns for each in sent.by} for of, sent in published.items()}
        if facts is None or all(None in columns for columns in lists.values()):
            return facts
        roots = {of: known.root_oid for of, known in fetch_many(connection, published).items()}
        own = [lists[of] for of in published if oid in (of, roots.get(of))]
        if not own or any(None in columns for columns in own):
            return facts
        listed = {name for columns in own for each in columns for name in each or ()}
        columns = tuple(column for column in facts.columns if column.name in listed)
        return replace(facts, columns=columns)
