"""What is found of some tables is what is found of them among all."""

from __future__ import annotations

import itertools

import pytest
from tests.support.databases import MakeDatabase

from pgsluice.config.model import PublicationsConfig, SubscriptionConfig
from pgsluice.embedded import EmbeddedServer
from pgsluice.published.discovery import source_tables
from pgsluice.published.publication_rules import PublicationRules
from pgsluice.replication import connect_sql

_TABLES = """
CREATE TABLE plain (id int PRIMARY KEY, v text);
CREATE TABLE child (w int) INHERITS (plain);
CREATE TABLE keyless (v text);
CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (10);
CREATE TABLE mid PARTITION OF root FOR VALUES FROM (10) TO (90) PARTITION BY RANGE (id);
CREATE TABLE mid_1 PARTITION OF mid FOR VALUES FROM (10) TO (50);
CREATE TABLE mid_2 PARTITION OF mid FOR VALUES FROM (50) TO (90);
CREATE TABLE other (id int PRIMARY KEY) PARTITION BY HASH (id);
CREATE TABLE other_0 PARTITION OF other FOR VALUES WITH (MODULUS 1, REMAINDER 0);
"""
_SENT = {
    "by leaf": "FOR TABLE plain, child, keyless, root, other",
    "a partition under its own name": "FOR TABLE ONLY plain, mid WITH (publish_via_partition_root)",
    "by root": "FOR TABLE plain, root, other WITH (publish_via_partition_root)",
    "everything": "FOR ALL TABLES",
}
_OURS = """
CREATE PUBLICATION ours FOR TABLE plain, low WHERE (id > 3), mid, other
WITH (publish_via_partition_root);
"""


@pytest.mark.parametrize("has_rules", [False, True], ids=["all", "rules"])
@pytest.mark.parametrize("sent", _SENT)
@pytest.mark.pg(">= 13")
def test_some_tables_are_as_among_all(
    server: EmbeddedServer, database: MakeDatabase, sent: str, has_rules: bool
) -> None:
    shop = database(server)
    shop.execute(_TABLES, f"CREATE PUBLICATION p {_SENT[sent]}")
    rules = None
    if has_rules and sent in ("by leaf", "everything"):
        lake = SubscriptionConfig(
            name="lake",
            publications=("ours",),
            sink={"type": "delta", "path": "lake/{schema}/{table}"},
        )
        rules = PublicationRules(PublicationsConfig(sql=_OURS), lake)
    with connect_sql(shop.dsn) as connection:
        tables = {table.facts.oid: table for table in source_tables(connection, ["p"], rules)}
        assert tables
        for some in itertools.chain(
            [()], ([oid] for oid in tables), itertools.combinations(tables, 2)
        ):
            found = source_tables(connection, ["p"], rules, only=some)
            assert {table.facts.oid for table in found} >= {*some}
            assert found == [tables[table.facts.oid] for table in found]
            assert some or not found
