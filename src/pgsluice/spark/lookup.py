"""Looks up a table's columns, and the relations that carry its changes.

A query names a table; the spool identifies relations by OID. Changes of a partitioned table may
carry the OIDs of its leaves, whose facts name the root.
"""

from __future__ import annotations

from collections import deque
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
"""How many of the newest segments are searched for a table before the server is asked."""

_RELATION_TAG = ord("R")


@dataclass(frozen=True, slots=True)
class Definition:
    """One definition of a relation, and the catalog's facts about it if the spool has them."""

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
    """Every definition that is valid somewhere in a segment, in order for each relation."""
    relations: dict[int, Relation] = {}
    facts: dict[int, RelationFacts | None] = {}
    for oid, known in view.relations.items():
        relation = decode_message(known.relation)
        assert isinstance(relation, Relation)
        relations[oid], facts[oid] = relation, known.facts
        yield Definition(relation, known.facts)
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
    """The relations that are the table, or a leaf of it, somewhere in a segment."""
    return {each.relation.oid for each in definitions(view) if each.is_of(table)}


def table_columns(options: SourceOptions, table: TableName) -> list[tuple[str, str]]:
    """The table's columns and their Spark types.

    They come from the newest definition in the spool, or else from the server's catalog.

    Raises:
        ConfigError: neither the spool nor the server knows the table.
        SourceUnreachable: the catalog is needed and the server cannot be reached.
    """
    types = TypeOptions(numeric=options.numeric)
    newest = None
    # A spool without a start position is empty: its slot has not been created yet.
    if Spool.exists(options.spool) and Spool.open(options.spool).chain_start() is not None:
        reader = SpoolReader(options.spool)
        infos = reader.segments(reader.start())[::-1]
        # For a table without recent changes, asking the server is quicker than a long search.
        newest = _newest(reader, infos if options.dsn is None else infos[:NEWEST_SEGMENTS], table)
    if newest is not None:
        type_definitions = newest.facts.type_definitions() if newest.facts is not None else {}
        return [
            (
                column.name,
                resolve_type(column.type_oid, column.typmod, type_definitions, types).spark_ddl,
            )
            for column in newest.relation.columns
        ]
    facts = None if options.dsn is None else _from_catalog(options.dsn, table)
    if facts is None:
        raise ConfigError(
            f"table {table} is not in the spool {options.spool}"
            + ("" if options.dsn is None else " and not on the server"),
            hint="set the option dsn, so that the server can be asked for the table's columns"
            if options.dsn is None
            else "check the name; an unquoted name is folded to lower case",
            table=str(table),
        )
    type_definitions = facts.type_definitions()
    return [
        (
            column.name,
            resolve_type(column.type_oid, column.typmod, type_definitions, types).spark_ddl,
        )
        for column in facts.columns
        if not column.generated
    ]


def _newest(
    reader: SpoolReader, infos: Iterable[SegmentInfo], table: TableName
) -> Definition | None:
    """The table's last definition in the first of these segments that has one."""
    for info in infos:
        matching = (d for view in reader.views(info) for d in definitions(view) if d.is_of(table))
        if last := deque(matching, maxlen=1):
            return last[0]
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
