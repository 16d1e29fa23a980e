"""The checks of our own publications, against real servers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.databases import Database, MakeDatabase, Servers

from pgsluice.catalog.publications.managed import ensure_publications
from pgsluice.config import load_config
from pgsluice.preflight.checks import run_checks
from pgsluice.preflight.findings import Finding, Level
from pgsluice.replication import connect_sql

Check = Callable[..., list[Finding]]
T = """
CREATE TABLE t (id int PRIMARY KEY, n int, region text,
                twice int GENERATED ALWAYS AS (n * 2) STORED)
"""


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Findings of the subscription ``s`` and of the publications, for these statements."""

    def findings(shop: Database, statements: str, more: str = "") -> list[Finding]:
        path = tmp_path / "pgsluice.toml"
        (tmp_path / "own.sql").write_text(statements)
        path.write_text(
            f"""
[source]
dsn = {json.dumps(shop.dsn)}
slot = "{shop.name}"
publications = ["server"]
[spool]
path = "spool"
[publications]
file = "own.sql"
[[subscription]]
name = "s"
publications = ["p"]
sink = {{ type = "delta", path = "lake/{{schema}}/{{table}}" }}
{more}
"""
        )
        subjects = ("s", "publications")
        return [f for f in run_checks(load_config(path)) if f.subject in subjects]

    return findings


def summary(findings: list[Finding]) -> list[tuple[Level, str]]:
    return [(finding.level, finding.what) for finding in findings]


@pytest.mark.pg(">= 12")
def test_publications_without_problems(database: MakeDatabase, check: Check) -> None:
    shop = database()
    shop.execute(
        T,
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF parts DEFAULT",
    )
    findings = check(shop, "CREATE PUBLICATION p FOR TABLE t (id, n) WHERE (id > 5), parts")
    assert summary(findings) == [
        (Level.OK, "the configuration's own publications: p"),
        (Level.OK, "2 tables published by p"),
    ]


def test_a_refused_statement_has_its_file_and_line(database: MakeDatabase, check: Check) -> None:
    shop = database()
    (finding,) = check(shop, "-- ours\nCREATE PUBLICATION p FOR TABLE nothing")
    assert finding.level is Level.ERROR
    assert finding.what.startswith('own.sql:2: ERROR:  relation "nothing" does not exist')


def test_an_unknown_publication(database: MakeDatabase, check: Check) -> None:
    shop = database()
    _, finding = check(shop, "CREATE PUBLICATION q FOR ALL TABLES")
    assert (finding.level, finding.what, finding.todo) == (
        Level.ERROR,
        'publication "p" does not exist in the configuration',
        "correct `publications` of the subscription; the publications are: q",
    )


def test_columns_outside_the_replica_identity(database: MakeDatabase, check: Check) -> None:
    shop = database()
    shop.execute(T, "CREATE TABLE log (n int)")
    _, finding = check(shop, "CREATE PUBLICATION p FOR TABLE t WHERE (n > 5), log WHERE (n > 5)")
    assert finding.level is Level.WARNING, "and log's updates are not sent at all"
    assert finding.what == (
        'table public.t: cannot update table "t": Column used in the publication WHERE expression'
        " is not part of the replica identity."
    )
    findings = check(
        shop, "CREATE PUBLICATION p FOR TABLE t WHERE (n > 5) WITH (publish = 'insert, truncate')"
    )
    assert [finding.level for finding in findings] == [Level.OK, Level.OK]
    _, finding = check(shop, "CREATE PUBLICATION p FOR TABLE t (n)")
    assert finding.level is Level.WARNING
    assert "does not cover the replica identity" in finding.what


@pytest.mark.parametrize("version", [18, 12])
def test_a_generated_column_that_is_not_sent(
    version: int, servers: Servers, database: MakeDatabase, check: Check
) -> None:
    shop = database(servers(version))
    shop.execute(T, "CREATE PUBLICATION server FOR TABLE t")
    for statement, use in (
        ("FOR TABLE t WHERE (twice > 5) WITH (publish = 'insert')", "the row filter reads"),
        ("FOR TABLE t (id, twice)", "the configuration's publications publish"),
    ):
        _, finding = check(shop, f"CREATE PUBLICATION p {statement}")
        assert finding.level is Level.ERROR
        assert finding.what.startswith(f"table public.t: {use} column 'twice'")
    assert [finding.level for finding in check(shop, "CREATE PUBLICATION p FOR TABLE t")] == [
        Level.OK,
        Level.OK,
    ]


@pytest.mark.pg(">= 18")
@pytest.mark.parametrize("has_server", [True, False])
def test_a_run_has_pgsluices_publications_at_the_server_send_generated_columns(
    database: MakeDatabase, check: Check, *, has_server: bool
) -> None:
    shop = database()
    shop.execute(T)
    if has_server:
        with connect_sql(shop.dsn) as connection:
            ensure_publications(connection, ["server"])
    for statement in (
        "FOR TABLE t WHERE (twice > 5) WITH (publish = 'insert')",
        "FOR TABLE t (id, twice)",
        "FOR TABLE t WITH (publish_generated_columns = stored)",
    ):
        findings = check(shop, f"CREATE PUBLICATION p {statement}")
        assert [finding.level for finding in findings] == [Level.OK, Level.OK]


@pytest.mark.pg(">= 15")
def test_what_the_server_does_not_send(database: MakeDatabase, check: Check) -> None:
    shop = database()
    shop.execute(
        T,
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE PUBLICATION server FOR TABLE t (id, n) WHERE (id > 0)",
    )
    _, finding = check(shop, "CREATE PUBLICATION p FOR TABLE t (id, region)")
    assert finding.level is Level.ERROR
    assert finding.what.startswith(
        "table public.t: the configuration's publications publish column 'region', which"
    )
    _, finding = check(
        shop, "CREATE PUBLICATION p FOR TABLE t WHERE (id > 5) WITH (publish = 'update')"
    )
    assert finding.level is Level.ERROR
    assert "turns UPDATEs into INSERTs and DELETEs" in finding.what
    _, finding = check(shop, "CREATE PUBLICATION p FOR TABLE t WHERE (id > 5), other")
    assert finding.level is Level.WARNING
    assert finding.what.startswith(
        "table public.other is in the configuration's publication p, but no publication of the"
    )
    assert len(check(shop, "CREATE PUBLICATION p FOR TABLE t (id, n) WHERE (id > 5)")) == 2


def test_a_key_that_is_not_published(database: MakeDatabase, check: Check) -> None:
    shop = database()
    shop.execute(T)
    findings = check(
        shop,
        "CREATE PUBLICATION p FOR TABLE t (id, n)",
        'key = { "public.t" = ["id", "region"] }',
    )
    assert summary(findings)[1:] == [
        (Level.ERROR, "table public.t: no publication sends the key column 'region'")
    ]
