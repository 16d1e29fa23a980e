"""Which columns a table has, and which relations a table's changes come under.

A table is named; what the spool holds is by OID. A partitioned table's changes may come under
its leaves, whose facts name the root.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pgsluice.errors import ConfigError
from pgsluice.facts import RelationFacts
from pgsluice.spark.options import SourceOptions, TableName
from pgsluice.spool import SegmentInfo, Spool, SpoolReader
from pgsluice.spool.block import FACTS_TAG, SegmentView
from pgsluice.types import TypeOptions, resolve_type
from pgsluice.wire import Relation, decode_message

NEWEST_SEGMENTS = 64
"""How many segments are searched for a table before the server is asked."""

_RELATION_TAG = ord("R")


@dataclass(frozen=True, slots=True)
class Definition:
    """A relation under one definition."""

    relation: Relation
    facts: RelationFacts | None

    def is_of(self, table: TableName) -> bool:
        """Whether it is the table, or a leaf of it."""
        if (self.relation.schema, self.relation.name) == (table.namespace, table.name):
            return True
        facts = self.facts
        return facts is not None and (facts.root_namespace, facts.root_name) == (
            table.namespace,
            table.name,
        )


def definitions(view: SegmentView) -> Iterator[Definition]:
    """Every definition that holds somewhere in a segment, in order for each relation."""
    relations: dict[int, Relation] = {}
    facts: dict[int, RelationFacts | None] = {}
    for oid, one in view.relations.items():
        relation = decode_message(one.relation)
        assert isinstance(relation, Relation)
        relations[oid], facts[oid] = relation, one.facts
        yield Definition(relation, one.facts)
    block = view.block
    tags = block.tags
    for index in ((tags == _RELATION_TAG) | (tags == FACTS_TAG)).nonzero()[0]:
        message, oid = block.message(int(index)), int(block.oids[index])
        if message[0] == FACTS_TAG:
            text = message[block.body_offset + 4 :].decode()
            facts[oid] = RelationFacts.from_json(text) if text else None
        else:
            relation = decode_message(message, in_stream=block.in_stream)
            assert isinstance(relation, Relation)
            relations[oid] = relation
        if oid in relations:
            yield Definition(relations[oid], facts.get(oid))


def oids_of(view: SegmentView, table: TableName) -> set[int]:
    """The relations in a segment that are, somewhere in it, the table or a leaf of it."""
    return {one.relation.oid for one in definitions(view) if one.is_of(table)}


def table_columns(options: SourceOptions, table: TableName) -> list[tuple[str, str]]:
    """The table's columns and their Spark types: the newest definition in the spool, else
    what the server's catalog says.

    Raises:
        ConfigError: neither knows the table.
        SourceUnreachable: the catalog is needed and the server is not there.
    """
    types = TypeOptions(numeric=options.numeric)
    found = None
    # A spool whose slot is only about to be made has no beginning yet, and nothing in it.
    if Spool.exists(options.spool) and Spool.open(options.spool).chain_start() is not None:
        reader = SpoolReader(options.spool)
        infos = reader.segments(reader.start())[::-1]
        # With a server to ask, a table that has been quiet for long is not searched for long.
        found = _first(reader, infos if options.dsn is None else infos[:NEWEST_SEGMENTS], table)
    if found is not None:
        known = found.facts.type_definitions() if found.facts is not None else {}
        return [
            (column.name, resolve_type(column.type_oid, column.typmod, known, types).spark_ddl)
            for column in found.relation.columns
        ]
    facts = None if options.dsn is None else _from_catalog(options.dsn, table)
    if facts is None:
        raise ConfigError(
            f"table {table} is not in the spool {options.spool}"
            + ("" if options.dsn is None else " and not on the server"),
            hint="give the option dsn, so that its columns can be looked up at the server"
            if options.dsn is None
            else "check the name; an unquoted name is folded to lower case",
            table=str(table),
        )
    known = facts.type_definitions()
    return [
        (column.name, resolve_type(column.type_oid, column.typmod, known, types).spark_ddl)
        for column in facts.columns
        if not column.generated
    ]


def _first(
    reader: SpoolReader, infos: Iterable[SegmentInfo], table: TableName
) -> Definition | None:
    """The last definition in the first segment that has one of the table."""
    for info in infos:
        found = None
        for view in reader.views(info):
            for one in definitions(view):
                found = one if one.is_of(table) else found
        if found is not None:
            return found
    return None


def _from_catalog(dsn: str, table: TableName) -> RelationFacts | None:
    from pgsluice.catalog import fetch_relation_facts
    from pgsluice.replication import connect_sql, source_errors

    with connect_sql(dsn) as connection, source_errors(f"looking up the columns of {table}"):
        row = connection.execute(
            "SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n "
            "ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s "
            "AND c.relkind IN ('r', 'p')",
            (table.namespace, table.name),
        ).fetchone()
        return None if row is None else fetch_relation_facts(connection, row[0])
