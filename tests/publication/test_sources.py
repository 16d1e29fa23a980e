"""pgsluice's publications on servers without row filters."""

from __future__ import annotations

import psycopg
import pytest

import pgsluice
from pgsluice.catalog.publications.publications import server_publications
from pgsluice.catalog.tables.source_tables import source_catalog
from pgsluice.definitions.source_tables import SourceCatalog
from pgsluice.embedded import EmbeddedServer
from pgsluice.publication import Publication, PublicationTable, load_publications, resolve
from pgsluice.replication import connect_sql
from pgsluice.sql import SqlRefused


def _catalog(db) -> SourceCatalog:
    with connect_sql(db.dsn) as connection:
        return source_catalog(connection)


def test_filters_and_columns_on_any_server(each_server: EmbeddedServer, database) -> None:
    db = database(each_server)
    db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, region text, n numeric(10,2))",
        "CREATE TABLE parts (id int, region text) PARTITION BY RANGE (id)",
        "CREATE TABLE part1 PARTITION OF parts FOR VALUES FROM (0) TO (10)",
        "CREATE PUBLICATION theirs FOR TABLE t, part1 WITH (publish = 'insert, delete')",
    )
    catalog = _catalog(db)
    publications = load_publications(
        "CREATE PUBLICATION eu FOR TABLE t (id, region) WHERE (region = 'EU'),"
        " parts WHERE (id > 5) WITH (publish_via_partition_root)",
        catalog,
    )
    resolutions = {}
    for name in ("t", "part1"):
        table = catalog.table("public", name)
        assert table is not None
        resolution = resolve(list(publications), table, catalog)
        assert resolution is not None
        resolutions[name] = (
            resolution.published_as.name,
            resolution.filters("update"),
            resolution.published_columns,
        )
    assert resolutions == {
        "t": ("t", ("(region = 'EU'::text)",), ("id", "region")),
        "part1": ("parts", ("(id > 5)",), ("id", "region")),
    }
    with connect_sql(db.dsn) as connection:
        (server_publication,) = server_publications(connection)
    assert server_publication.owner == "postgres"
    assert server_publication.publication.publish == ("insert", "delete")
    assert [resolution.name for resolution in server_publication.publication.tables] == [
        "part1",
        "t",
    ]


def test_user_defined_types_are_refused_in_filters(pg18: EmbeddedServer, database) -> None:
    db = database(pg18)
    db.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'happy')",
        "CREATE DOMAIN positive AS int CHECK (value > 0)",
        "CREATE TABLE t (id int PRIMARY KEY, m mood, p positive, ms mood[])",
    )
    catalog = _catalog(db)
    for where in ("m = 'sad'", "p > 1", "m IN ('sad', 'happy')", "ms = '{sad}'", "m = 'angry'"):
        statement = f"CREATE PUBLICATION x FOR TABLE t WHERE ({where})"
        with pytest.raises(SqlRefused) as ours:
            load_publications(statement, catalog)
        with db.connect() as connection, pytest.raises(psycopg.Error) as server:
            connection.execute(statement)
        diag = server.value.diag
        assert (ours.value.message, ours.value.detail) == (
            diag.message_primary,
            diag.message_detail,
        )


def test_unqualified_names_follow_the_search_path(pg18: EmbeddedServer, database) -> None:
    db = database(pg18)
    db.execute(
        "CREATE SCHEMA app",
        "CREATE TABLE app.t (id int PRIMARY KEY)",
        "CREATE TABLE public.t (id int PRIMARY KEY)",
        f"ALTER DATABASE {db.name} SET search_path = nothing, app, public",
    )
    publications = load_publications(
        "CREATE PUBLICATION p FOR TABLE t; CREATE PUBLICATION s FOR TABLES IN SCHEMA"
        " CURRENT_SCHEMA",
        _catalog(db),
    )
    assert publications.sql == (
        "CREATE PUBLICATION p FOR TABLE app.t;\nCREATE PUBLICATION s FOR TABLES IN SCHEMA app;\n"
    )


def test_a_publication_written_in_python() -> None:
    publication = pgsluice.Publication(
        "Eu",
        tables=[
            pgsluice.PublicationTable("orders", columns=("id", "Total"), where="region = 'EU'"),
            PublicationTable("log", "audit"),
        ],
        schemas=["sales"],
        publish=("delete", "insert"),
        publish_via_partition_root=True,
    )
    assert str(publication) == (
        'CREATE PUBLICATION "Eu" FOR TABLE public.orders (id, "Total") WHERE (region = \'EU\'),'
        " audit.log, TABLES IN SCHEMA sales"
        " WITH (publish = 'insert, delete', publish_via_partition_root = true);"
    )
    assert str(Publication("all", all_tables=True)) == 'CREATE PUBLICATION "all" FOR ALL TABLES;'
    with pytest.raises(ValueError, match="not 'upsert'"):
        Publication("p", publish=("upsert",))  # type: ignore[arg-type]
