"""Which rules act on a relation: pgoutput of PostgreSQL 18 is the oracle.

There are some twenty publications of a partition tree and of plain tables, and random
subscriptions to some of them. What the server sends for the same changes has to be what the
resolution says: the relation's name, its columns, and the rows that pass, for each action.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from tests.support.databases import fresh_database

from pgsluice import wire
from pgsluice.catalog.tables.source_tables import source_catalog
from pgsluice.definitions.source_tables import SourceCatalog, SourceTable
from pgsluice.embedded import EmbeddedServer
from pgsluice.errors import TableError
from pgsluice.publication import (
    ACTIONS,
    Action,
    Publications,
    Resolution,
    fingerprint,
    load_publications,
    resolve,
    subscribed,
)
from pgsluice.publication.publishing.resolution import Unfiltered
from pgsluice.replication import connect_sql
from pgsluice.sql import SqlRefused, any_of

_TABLES = """
CREATE TABLE root (a int, b text, c int, PRIMARY KEY (a)) PARTITION BY RANGE (a);
CREATE TABLE mid (c int, a int NOT NULL, b text) PARTITION BY RANGE (a);
ALTER TABLE root ATTACH PARTITION mid FOR VALUES FROM (0) TO (100);
CREATE TABLE leaf1 (gone int, b text, a int NOT NULL, c int);
ALTER TABLE leaf1 DROP COLUMN gone;
ALTER TABLE mid ATTACH PARTITION leaf1 FOR VALUES FROM (0) TO (50);
CREATE TABLE leaf2 PARTITION OF mid FOR VALUES FROM (50) TO (100);
CREATE SCHEMA apart;
CREATE TABLE apart.leaf3 PARTITION OF root FOR VALUES FROM (100) TO (200);
CREATE TABLE plain (a int PRIMARY KEY, b text, c int GENERATED ALWAYS AS (a + 1) STORED);
CREATE TABLE apart.other (a int PRIMARY KEY, b text, c int);
"""

_PUBLICATIONS = """
CREATE PUBLICATION leaf_filter FOR TABLE leaf1 WHERE (a % 2 = 0), plain WHERE (a % 2 = 0);
CREATE PUBLICATION leaf_other FOR TABLE leaf1 WHERE (a % 3 = 0), plain WHERE (a % 3 = 0)
    WITH (publish = 'insert');
CREATE PUBLICATION leaf_deletes FOR TABLE leaf1 WHERE (a > 20), leaf2, plain WHERE (a > 20)
    WITH (publish = 'delete, truncate');
CREATE PUBLICATION leaf_all FOR TABLE leaf1, leaf2 WITH (publish = 'update');
CREATE PUBLICATION leaf_columns FOR TABLE leaf1 (a, c), plain (a, b);
CREATE PUBLICATION leaf_columns_too FOR TABLE leaf1 (c, a) WHERE (a < 30), plain (b, a);
CREATE PUBLICATION root_leaves FOR TABLE root;
CREATE PUBLICATION root_leaves_filtered FOR TABLE root, leaf2 WHERE (a > 60);
CREATE PUBLICATION root_filter FOR TABLE root WHERE (a % 5 = 0)
    WITH (publish_via_partition_root);
CREATE PUBLICATION root_filter_updates FOR TABLE root WHERE (a < 120)
    WITH (publish_via_partition_root, publish = 'update');
CREATE PUBLICATION root_columns FOR TABLE root (a, b) WITH (publish_via_partition_root);
CREATE PUBLICATION root_and_leaf FOR TABLE root WHERE (a < 40), leaf1 WHERE (a >= 40)
    WITH (publish_via_partition_root);
CREATE PUBLICATION mid_root FOR TABLE mid WHERE (a > 30) WITH (publish_via_partition_root);
CREATE PUBLICATION mid_all FOR TABLE mid WITH (publish_via_partition_root, publish = 'insert');
CREATE PUBLICATION everything FOR ALL TABLES WITH (publish = 'insert, delete');
CREATE PUBLICATION everything_root FOR ALL TABLES
    WITH (publish = 'insert', publish_via_partition_root);
CREATE PUBLICATION schema_public FOR TABLES IN SCHEMA public WITH (publish = 'update');
CREATE PUBLICATION schema_public_root FOR TABLES IN SCHEMA public, TABLE plain WHERE (a < 3)
    WITH (publish_via_partition_root);
CREATE PUBLICATION schema_apart FOR TABLES IN SCHEMA apart;
CREATE PUBLICATION generated FOR TABLE plain WITH (publish_generated_columns = stored);
CREATE PUBLICATION generated_list FOR TABLE plain (a, b, c);
CREATE PUBLICATION nothing_at_all FOR TABLE leaf1 WITH (publish = '');
CREATE PUBLICATION empty;
"""

_ROWS = (1, 2, 3, 4, 6, 10, 15, 24, 30, 33, 45, 48, 50, 55, 60, 66, 75, 90, 99, 100, 105, 120, 150)
_ARRAY = f"ARRAY[{', '.join(map(str, _ROWS))}]"
_CHANGES = f"""
INSERT INTO root SELECT a, 'x', a FROM unnest({_ARRAY}) a;
INSERT INTO plain SELECT a, 'x' FROM unnest({_ARRAY}) a;
INSERT INTO apart.other SELECT a, 'x' FROM unnest({_ARRAY}) a;
UPDATE root SET b = 'y'; UPDATE plain SET b = 'y'; UPDATE apart.other SET b = 'y';
DELETE FROM root; DELETE FROM plain; DELETE FROM apart.other;
"""
_LEAVES = ("leaf1", "leaf2", "leaf3", "plain", "other")


@dataclass
class Scene:
    """The server after the changes, and its catalog."""

    connection: psycopg.Connection[Any]
    catalog: SourceCatalog
    publications: Publications

    def table(self, name: str) -> SourceTable:
        namespace = "apart" if name in ("leaf3", "other") else "public"
        table = self.catalog.table(namespace, name)
        assert table is not None
        return table

    def resolve(self, names: list[str], table: str) -> Resolution | None:
        return resolve(subscribed(self.publications, names), self.table(table), self.catalog)


@pytest.fixture(scope="module")
def scene(pg18: EmbeddedServer) -> Iterator[Scene]:
    with fresh_database(pg18) as oracle:
        oracle.execute(_TABLES, _PUBLICATIONS)
        oracle.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        oracle.execute(*_CHANGES.strip().splitlines())
        with connect_sql(oracle.dsn) as connection:
            catalog = source_catalog(connection)
            yield Scene(connection, catalog, load_publications(_PUBLICATIONS, catalog))


Sent = dict[tuple[str, Action], set[tuple[int, tuple[str, ...]]]]
"""(relation, action) -> the keys that were sent, and the columns they were sent with."""


def _sent_by_server(scene: Scene, names: list[str]) -> Sent | str:
    sent: Sent = {}
    relations: dict[int, wire.Relation] = {}
    query = (
        "SELECT data FROM pg_logical_slot_peek_binary_changes("
        "'s', NULL, NULL, 'proto_version', '1', 'publication_names', %s)"
    )
    listed = ",".join(f'"{name}"' for name in names)
    try:
        messages = scene.connection.execute(query, [listed]).fetchall()
    except psycopg.Error as error:
        return str(error.diag.message_primary)
    for (data,) in messages:
        message = wire.decode_message(bytes(data))
        match message:
            case wire.Relation():
                relations[message.oid] = message
            case wire.Insert() | wire.Update() | wire.Delete():
                relation = relations[message.oid]
                columns = tuple(column.name for column in relation.columns)
                tuple_ = message.old.data if isinstance(message, wire.Delete) else message.new
                key = int(tuple_.values[columns.index("a")] or b"")
                action: Any = type(message).__name__.lower()
                sent.setdefault((relation.name, action), set()).add((key, columns))
    return sent


def _sent_by_ours(scene: Scene, names: list[str]) -> Sent | str:
    sent: Sent = {}
    try:
        resolutions = {name: scene.resolve(names, name) for name in _LEAVES}
    except SqlRefused as error:
        return error.message
    for name, resolution in resolutions.items():
        if resolution is None:
            continue
        order = [column.name for column in resolution.published_as.columns]
        columns = tuple(sorted(resolution.published_columns, key=order.index))
        for action in ACTIONS[:3]:
            keys = (
                _passing(scene, name, resolution.filters(action))
                if action in resolution.published
                else ()
            )
            if keys:
                add = sent.setdefault((resolution.published_as.name, action), set())
                add.update((key, columns) for key in keys)
    return sent


def _passing(scene: Scene, name: str, filters: tuple[str, ...]) -> set[int]:
    """The rows of a leaf that pass the filters, as the server evaluates them."""
    low, high = {"leaf1": (0, 50), "leaf2": (50, 100), "leaf3": (100, 200)}.get(name, (0, 999))
    condition = " OR ".join(f"({text})" for text in filters) or "true"
    query = f"SELECT a FROM unnest({_ARRAY}) a WHERE a >= {low} AND a < {high} AND ({condition})"
    return {a for (a,) in scene.connection.execute(query).fetchall()}


def _subscriptions(count: int) -> list[list[str]]:
    names = [line.split()[2].rstrip(";") for line in _PUBLICATIONS.split("\n") if "CREATE" in line]
    draw = random.Random(5)
    return [[name] for name in names] + [
        draw.sample(names, draw.choice((2, 2, 2, 3, 3, 4))) for _ in range(count)
    ]


@pytest.mark.parametrize("names", _subscriptions(180), ids=" ".join)
def test_the_server_sends_what_the_resolution_says(scene: Scene, names: list[str]) -> None:
    server, ours = _sent_by_server(scene, names), _sent_by_ours(scene, names)
    if isinstance(server, str) or isinstance(ours, str):
        # The server reports errors at a table's first change; each is one of ours.
        assert isinstance(server, str) is isinstance(ours, str), (server, ours)
        assert str(server).split(" for table ")[0] == str(ours).split(" for table ")[0]
    else:
        assert ours == server


@pytest.mark.parametrize("names", _subscriptions(60), ids=" ".join)
def test_a_copy_reads_what_a_subscriber_of_postgres_reads(scene: Scene, names: list[str]) -> None:
    query = (
        "SELECT relid, array_agg(qual IS NULL), array_agg(pg_get_expr(qual, relid))"
        " FROM pg_get_publication_tables(VARIADIC %s::text[]) GROUP BY relid"
    )
    rows = scene.connection.execute(query, [names]).fetchall()
    server = {oid: set() if any(none) else set(quals) for oid, none, quals in rows}
    ours: dict[int, set[str]] = {}
    try:
        for name in _LEAVES:
            if resolution := scene.resolve(names, name):
                filters = set(resolution.copy_filters)
                assert ours.setdefault(resolution.published_as.oid, filters) == filters
    except SqlRefused:
        return  # the test above covers it
    assert ours.keys() == server.keys()
    for oid, filters in ours.items():
        assert len(filters) == len(server[oid])


def test_why_a_filter_is_cancelled(scene: Scene) -> None:
    def reasons(names: list[str], table: str, action: Action) -> list[tuple[str, Any]]:
        resolution = scene.resolve(names, table)
        assert resolution is not None
        assert resolution.filters(action) == ()
        return [(rule.publication, rule.row_filter) for rule in resolution.cancelled(action)]

    assert reasons(["leaf_filter", "leaf_all"], "leaf1", "update") == [
        ("leaf_all", Unfiltered.NO_WHERE)
    ]
    assert reasons(["leaf_filter", "everything"], "plain", "insert") == [
        ("everything", Unfiltered.ALL_TABLES)
    ]
    assert reasons(["leaf_filter", "schema_public"], "plain", "update") == [
        ("schema_public", Unfiltered.SCHEMA)
    ]
    assert reasons(["leaf_filter", "root_leaves"], "leaf1", "delete") == [
        ("root_leaves", Unfiltered.ANCESTOR)
    ]
    # Without filters nothing is cancelled, and TRUNCATE never has a filter.
    assert reasons(["root_leaves"], "leaf1", "insert") == []
    assert reasons(["leaf_filter"], "leaf1", "truncate") == []


def test_the_server_publishes_through_the_root(scene: Scene) -> None:
    """The server sends the partitioned table, so rules of partitions cannot act."""
    resolution = scene.resolve(["root_filter"], "root")
    assert resolution is not None
    assert resolution.published_as.name == "root"
    assert len(resolution.filters("insert")) == 1

    whole = scene.resolve(["root_leaves"], "root")
    assert whole is not None
    assert (whole.published_as.name, whole.filters("insert")) == ("root", ())

    with pytest.raises(TableError, match=r'"leaf_filter" of the .* partition "leaf1"'):
        scene.resolve(["leaf_filter"], "root")
    with pytest.raises(
        TableError,
        match=r'"root_leaves_filtered" of the .* partition "leaf2"',
    ):
        scene.resolve(["root_leaves_filtered"], "root")
    # Through the root the partition's own rules never act, here or on the server.
    assert scene.resolve(["root_and_leaf"], "root") is not None


def test_a_copy_reads_what_any_filter_lets_pass(scene: Scene) -> None:
    own = scene.resolve(["leaf_filter", "leaf_other"], "plain")
    assert own is not None
    query = f"SELECT a FROM unnest({_ARRAY}) a WHERE {any_of(own.copy_filters)}"
    copied = {a for (a,) in scene.connection.execute(query).fetchall()}
    assert copied == {a for a in _ROWS if a % 2 == 0 or a % 3 == 0}


def test_a_fingerprint_changes_with_what_acts(scene: Scene) -> None:
    def of(names: list[str], table: str = "leaf1") -> str:
        return fingerprint(scene.resolve(names, table))

    assert of(["leaf_filter", "leaf_other"]) == of(["leaf_other", "leaf_filter"])
    assert of(["leaf_filter"]) != of(["leaf_other"]) != of(["root_filter"])
    assert of(["root_filter"]) == of(["root_filter", "leaf_filter"])
    assert of(["leaf_columns"]) != of(["root_leaves"])
    assert of(["root_leaves"]) == of(["leaf_all"])  # publish plays no part by itself
    assert of(["empty"]) == fingerprint(None)
