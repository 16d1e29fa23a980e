"""One server's changes, decoded once, and what pgsluice's publications make of them."""

from __future__ import annotations

import pickle

from tests.publication.native import Sent, encoded
from tests.support.databases import Database
from tests.support.segments import facts_message, segment

from pgsluice import wire
from pgsluice.catalog.tables.relations import fetch_relation_facts
from pgsluice.catalog.tables.source_tables import source_catalog
from pgsluice.columnar import RelationChanges, decode_segment
from pgsluice.definitions.source_tables import SourceCatalog
from pgsluice.publication import Publisher, load_publications, publish_all
from pgsluice.replication import connect_sql
from pgsluice.types import TypeOptions


class Stream:
    """One database's changes, as a server's publication of everything sends them."""

    def __init__(self, database: Database, setup: str, *changes: str, via_root: bool = False):
        options = " WITH (publish_via_partition_root)" if via_root else ""
        database.execute(
            setup,
            f"CREATE PUBLICATION everything FOR ALL TABLES{options}",
            "SELECT pg_create_logical_replication_slot('s', 'pgoutput')",
            *changes,
        )
        self.database = database

    def decode(
        self, binary: bool = False, numeric: str = "string"
    ) -> tuple[SourceCatalog, list[RelationChanges]]:
        with connect_sql(self.database.dsn) as connection:
            catalog = source_catalog(connection)
            form = ", 'binary', 'true'" if binary else ""
            rows = connection.execute(
                "SELECT data FROM pg_logical_slot_peek_binary_changes('s', NULL, NULL,"
                f" 'proto_version', '1', 'publication_names', 'everything'{form})".encode()
            ).fetchall()
            messages = [bytes(data) for (data,) in rows]
            told = [one for one in map(wire.decode_message, messages) if one.tag == "R"]
            facts = [
                facts_message(one.oid, fetch_relation_facts(connection, one.oid))
                for one in told
                if isinstance(one, wire.Relation)
            ]
        names = {
            column.name for one in told if isinstance(one, wire.Relation) for column in one.columns
        }
        view = segment([*facts, *messages])
        options = TypeOptions(numeric=numeric)
        return catalog, list(decode_segment(view, options=options, texts=names))

    def published(self, publications: str, **decoding: object) -> list[RelationChanges]:
        catalog, runs = self.decode(**decoding)  # type: ignore[arg-type]
        given = list(load_publications(publications, catalog))
        publishers = {}
        for run in runs:
            publisher = Publisher.of(given, catalog.tables[run.relation.oid], catalog)
            if publisher is not None:
                publishers[run.relation.oid] = pickle.loads(pickle.dumps(publisher))
        return publish_all(publishers, runs)

    def sent(self, publications: str, **decoding: object) -> list[Sent]:
        return encoded(self.published(publications, **decoding))


def plain(sent: list[Sent]) -> list[tuple[str, str, object, object]]:
    """Relation, action, old values, new values."""
    return [
        (one.relation, one.action, one.old and dict(one.old), one.new and dict(one.new))
        for one in sent
    ]
