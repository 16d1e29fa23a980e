"""A key is its exact text: the target has what the server shows, for every type of a key."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import psycopg
from tests.support.databases import Database, MakeDatabase
from tests.support.key_types import ANY_CASE, KeyType, key_types
from tests.support.segments import facts_message, segment

from pgsluice import wire
from pgsluice.catalog.tables.relations import fetch_relation_facts
from pgsluice.changes.net import net_changes
from pgsluice.columnar import RelationChanges, decode_segment
from pgsluice.facts import RelationFacts
from pgsluice.lsn import Lsn
from pgsluice.replication import connect_sql
from pgsluice.sinks.contract import TargetTable
from pgsluice.sinks.delta.sink import DeltaSink
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.target import TableOptions, target_table
from pgsluice.testing.sink_contract import identity
from pgsluice.types import TypeOptions
from pgsluice.verification import DeltaRows, compare

TRANSACTIONS = 24
BATCHES = 4


class Tables:
    """A database with a table for each type of a key, and its changes as the server sends them."""

    def __init__(self, database: Database) -> None:
        self.database = database
        ((version, extensions),) = database.execute(
            "SELECT current_setting('server_version_num')::int / 10000,"
            " array_agg(name::text) FROM pg_available_extensions"
        )
        self.types = key_types(version, {*extensions, *icu(database)})
        database.execute(
            *(statement for one in self.types for statement in one.statements),
            "CREATE PUBLICATION p FOR ALL TABLES",
            "SELECT pg_create_logical_replication_slot('s', 'pgoutput')",
        )

    def batches(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """The messages of one batch after the other in text and in binary form, while the tables
        are changed."""
        transactions = [one.random_changes(0, TRANSACTIONS) for one in self.types]
        for start in range(0, TRANSACTIONS, TRANSACTIONS // BATCHES):
            with self.database.connect() as connection:
                for statements in transactions:
                    for statement in statements[start : start + TRANSACTIONS // BATCHES]:
                        with connection.transaction():
                            connection.execute(statement.encode())
            binary = self._messages("peek", ", 'binary', 'true'")
            yield self._messages("get"), binary

    def _messages(self, verb: str, options: str = "") -> list[bytes]:
        query = (
            f"SELECT data FROM pg_logical_slot_{verb}_binary_changes('s', NULL, NULL,"
            f" 'proto_version', '1', 'publication_names', 'p'{options})"
        )
        with connect_sql(self.database.dsn) as connection:
            return [bytes(data) for (data,) in connection.execute(query.encode())]

    def facts(self) -> dict[str, RelationFacts]:
        with connect_sql(self.database.dsn) as connection:
            oids = connection.execute(
                "SELECT relname::text, oid::bigint FROM pg_class WHERE relname = ANY(%s)",
                [[one.name for one in self.types]],
            ).fetchall()
            facts = {name: fetch_relation_facts(connection, oid) for name, oid in oids}
        return {name: one for name, one in facts.items() if one is not None}


def icu(database: Database) -> list[str]:
    """Make a collation by which texts of other case are equal, if the server can."""
    try:
        database.execute(ANY_CASE)
    except psycopg.Error:
        return []
    return ["icu"]


def decoded(
    facts: dict[str, RelationFacts], messages: list[bytes], numeric: str
) -> dict[str, list[RelationChanges]]:
    """Each table's changes."""
    told = [facts_message(one.oid, one) for one in facts.values()]
    changes: dict[str, list[RelationChanges]] = {name: [] for name in facts}
    for run in decode_segment(segment([*told, *messages]), options=TypeOptions(numeric=numeric)):
        changes[run.relation.name].append(run)
    return changes


def target_of(facts: RelationFacts, kind: KeyType) -> TargetTable:
    keys = {f"public.{kind.name}": ("k",)}
    return target_table(facts, TableOptions(TypeOptions(numeric=kind.numeric), keys=keys))


def test_the_target_has_the_keys_that_the_server_shows(
    database: MakeDatabase, tmp_path: Path
) -> None:
    tables = Tables(database())
    batches = list(tables.batches())
    facts = tables.facts()
    at_once = [message for text, _ in batches for message in text]
    options = {kind.numeric for kind in tables.types}
    portions = {
        "batches": [{o: decoded(facts, binary, o) for o in options} for _, binary in batches],
        "at once": [{o: decoded(facts, at_once, o) for o in options}],
    }
    wrong = []
    with tables.database.connect() as connection:
        for (way, parts), kind in product(portions.items(), tables.types):
            sink = DeltaSink(f"{tmp_path}/{way}/{{table}}")
            table = target_of(facts[kind.name], kind)
            for number, part in enumerate(parts, start=1):
                apply(sink, table, part[kind.numeric][kind.name], Lsn(number))
            rows = DeltaRows(sink.location("public", kind.name))
            result = compare(connection, f"public.{kind.name}", rows, key=["k"])
            if not result.equal:
                wrong.append(f"{way}: {result}")
    assert not wrong, "\n".join(wrong)


def apply(sink: DeltaSink, table: TargetTable, runs: list[RelationChanges], position: Lsn) -> None:
    """The first batch is loaded as a copy is; the others are merged."""
    net = net_changes(runs, schema=table.schema, key=table.key)
    writer = TableWriter(sink, table, identity())
    if writer.position() is None:
        rows = net.rows.cast(table.schema).to_batches(max_chunksize=2)
        staged = [writer.stage_load([batch], position) for batch in rows]
        writer.commit_load(staged, position)
    else:
        writer.apply(net, position)


def test_messages_name_a_key(database: MakeDatabase) -> None:
    """The server sends the old key of an update that changes only how the key is printed."""
    shop = database()
    shop.execute(
        "CREATE TABLE t (k float8 PRIMARY KEY)",
        "INSERT INTO t VALUES ('0')",
        "CREATE PUBLICATION p FOR ALL TABLES",
        "SELECT pg_create_logical_replication_slot('s', 'pgoutput')",
        "UPDATE t SET k = '-0'",
    )
    rows = shop.execute(
        "SELECT data FROM pg_logical_slot_get_binary_changes('s', NULL, NULL,"
        " 'proto_version', '1', 'publication_names', 'p')"
    )
    updates = [wire.decode_message(bytes(data)) for (data,) in rows if bytes(data)[:1] == b"U"]
    assert [update.old is not None for update in updates] == [True]
