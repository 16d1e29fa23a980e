"""A role that may read single columns copies tables that are published with these columns only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from psycopg.conninfo import make_conninfo
from tests.pipeline.own_publications import publishing
from tests.support.commands import Command
from tests.support.databases import Database, MakeDatabase, Servers
from tests.support.local_spark import use_local_spark
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.rights import printed_rights

from pgsluice.catalog.publications.managed import ensure_publications
from pgsluice.errors import TablesUnfinished

pytest_plugins = ["tests.support.commands"]

LISTED = "wide (id, v)"
FILTERED = """parted (id, v) WHERE (id < 250 AND "Region's" = 'eu')"""
TABLES = (
    "CREATE TABLE wide (id int PRIMARY KEY, v text, secret text)",
    "INSERT INTO wide SELECT i, repeat('v', 50), 'secret' FROM generate_series(1, 3000) i",
    """CREATE TABLE parted (id int PRIMARY KEY, "Region's" text, v text, secret text)
        PARTITION BY RANGE (id)""",
    "CREATE TABLE parted_0 PARTITION OF parted FOR VALUES FROM (-9) TO (200)",
    "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (200) TO (400)",
    """INSERT INTO parted SELECT i, CASE WHEN i % 2 = 0 THEN 'eu' ELSE 'us' END, 'v', 'secret'
        FROM generate_series(0, 399) i""",
)
OPTIONS = "publish_via_partition_root, publish = insert"


@contextmanager
def role_of_columns(shop: Database) -> Iterator[str]:
    """A role that may replicate, and read columns."""
    role = f"columns_of_{shop.name}"
    shop.execute(
        f"CREATE ROLE {role} LOGIN REPLICATION",
        f"GRANT SELECT (id, v) ON wide TO {role}",
        f"GRANT SELECT (id, v) ON parted TO {role}",
    )
    try:
        yield role
    finally:
        shop.execute(f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}")


def rows_of_lake(one: Pipeline, table: str) -> list[tuple[object, ...]]:
    found = one.delta(table).to_pyarrow_table().to_pylist()
    return sorted(tuple(row.values()) for row in found)


@pytest.mark.parametrize("version", [18, 16, 14, 12])
def test_a_role_that_may_read_only_what_is_published(
    version: int,
    database: MakeDatabase,
    pipeline: MakePipeline,
    servers: Servers,
    pgsluice: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The filter's columns have to be readable, too, and the right that is missing is printed."""
    use_local_spark(monkeypatch)
    monkeypatch.setattr("pgsluice.snapshots.plan.PORTION_BYTES", 50_000)
    monkeypatch.setattr("pgsluice.verification.page_ranges.LEAST_PAGES", 1)
    one = pipeline(shop := database(servers(version)))
    shop.execute(*TABLES)
    if version < 15:  # the server has no lists and filters
        shop.execute(f'CREATE PUBLICATION "{shop.name}" FOR TABLE wide, parted_0, parted_1')
        publication = f"CREATE PUBLICATION p FOR TABLE {LISTED}, {FILTERED} WITH ({OPTIONS});"
        publishing(one, publication, lake=("p",))
    else:
        tables = f"{LISTED}, {FILTERED} WITH ({OPTIONS})"
        shop.execute(f'CREATE PUBLICATION "{shop.name}" FOR TABLE {tables}')
    with role_of_columns(shop) as role:
        dsn = make_conninfo(shop.dsn, user=role)
        text = one.path.read_text()
        one.path.write_text(text.replace(json.dumps(shop.dsn), json.dumps(dsn)))
        (statement,) = printed_rights(pgsluice("check", one.path).out)
        assert statement == f"""GRANT SELECT ("Region's") ON public.parted TO {role};"""
        with pytest.raises(TablesUnfinished, match="1 table is parked") as unfinished:
            one.once()
        assert statement in str(unfinished.value)
        shop.execute(statement)
        assert "published, all readable" in pgsluice("check", one.path).out
        shop.execute(
            "INSERT INTO wide VALUES (9999, 'streamed', 'secret')",
            """INSERT INTO parted VALUES (-1, 'eu', 'streamed', 'secret')""",
        )
        one.once()
        verified = pgsluice("verify", one.path)
        assert verified.code == 0, verified.out + verified.err
    assert rows_of_lake(one, "wide") == sorted(shop.execute("SELECT id, v FROM wide"))
    filtered = """SELECT id, v FROM parted WHERE id < 250 AND "Region's" = 'eu'"""
    assert rows_of_lake(one, "parted") == sorted(shop.execute(filtered))


def test_check_before_the_first_run_and_of_tables_that_send_only_inserts(
    database: MakeDatabase, pipeline: MakePipeline, pgsluice: Command
) -> None:
    one = pipeline(shop := database())
    shop.execute(*TABLES, "CREATE TABLE keyless (id int, v text, secret text)")
    publication = (
        f"CREATE PUBLICATION p FOR TABLE {LISTED}, {FILTERED}, keyless (id, v) WITH ({OPTIONS});"
    )
    publishing(one, publication, lake=("p",))
    with role_of_columns(shop) as role:
        shop.execute(f"GRANT SELECT (id) ON keyless TO {role}")
        dsn = make_conninfo(shop.dsn, user=role)
        text = one.path.read_text()
        one.path.write_text(text.replace(json.dumps(shop.dsn), json.dumps(dsn)))

        def lacking() -> list[str]:
            out = pgsluice("check", one.path).out
            return sorted(line for line in printed_rights(out) if line.startswith("GRANT SELECT"))

        expected = [
            f"""GRANT SELECT ("Region's") ON public.parted TO {role};""",
            f"GRANT SELECT (v) ON public.keyless TO {role};",
        ]
        assert lacking() == expected
        with shop.connect() as connection:
            ensure_publications(connection, [shop.name])
        assert lacking() == expected
        shop.execute(*expected)
        assert "published, all readable" in pgsluice("check", one.path).out
