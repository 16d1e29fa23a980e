"""Differential test: each filter of ``row_filters.txt`` gets PostgreSQL 18's own verdict.

``CREATE PUBLICATION … WHERE (filter)`` runs on a real server and is rolled back; beside it runs
``bind_row_filter``. Either both refuse the filter, with the same message and detail at the same
position, or both accept it and print it alike. What PostgreSQL accepts and pgsluice does not is
listed in ``docs/row-filters.md``, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from tests.support.databases import MakeDatabase

from pgsluice.definitions.source_tables import SourceType
from pgsluice.embedded import EmbeddedServer
from pgsluice.row_filter import FilterColumn, FilterNotExact, bind_row_filter
from pgsluice.sql import SqlRefused

SCHEMA = """
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE DOMAIN posint AS int CHECK (VALUE > 0);
CREATE TYPE pair AS (x int, y int);
CREATE COLLATION usercoll (locale = 'C');
CREATE FUNCTION userfunc(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION usereq(int, int) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT $1 = $2';
CREATE OPERATOR === (leftarg = int, rightarg = int, function = usereq);
CREATE TABLE filtered (
    a int, b int, i2 smallint, i8 bigint, n numeric, n102 numeric(10,2), r4 real, r8 float8,
    f bool, c text, v varchar(10), ch char(5), nm name, qc "char", by bytea,
    cc text COLLATE "C", pc text COLLATE "POSIX", d date, ts timestamp, tz timestamptz, t time,
    ttz timetz, iv interval, js json, jb jsonb, u uuid, inn inet, cid cidr, mac macaddr,
    b3 bit(3), vb varbit, arr int[], carr text[], rng int4range, m money, oi oid, xx xml,
    tv tsvector, tq tsquery, p point, bx box, e mood, dm posint, comp pair,
    "Quoted Col" int, "select" int);
"""

# User-defined functions and operators are not in our catalog: the message differs, not the
# verdict. A user-defined collation likewise.
OTHER_WORDS = frozenset(
    (
        "userfunc(a)",
        "userfunc(a) = 1",
        "a OPERATOR(public.===) b",
        "a === b",
        "c COLLATE usercoll = 'x'",
    )
)
NOT_EXACT_DOCS = Path(__file__).resolve().parents[2] / "docs" / "row-filters.md"


@dataclass(frozen=True)
class Verdict:
    """``sql`` if the filter was accepted, else the refusal's message."""

    sql: str | None = None
    message: str | None = None
    detail: str | None = None
    position: int | None = None


def filters() -> list[str]:
    text = (Path(__file__).parent / "row_filters.txt").read_text(encoding="utf-8")
    lines = [line.replace("\\n", "\n") for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def server_verdict(connection: psycopg.Connection, text: str) -> Verdict:
    prefix = "CREATE PUBLICATION p FOR TABLE filtered WHERE ("
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(prefix + text + ")")
            (sql,) = connection.execute(
                "SELECT pg_get_expr(prqual, prrelid) FROM pg_publication_rel"
            ).fetchone()
            return Verdict(sql=sql)
    except psycopg.Error as error:
        diag = error.diag
        position = None
        if diag.statement_position is not None:
            position = int(diag.statement_position) - 1 - len(prefix)
        return Verdict(None, diag.message_primary, diag.message_detail, position)


@dataclass(frozen=True)
class Ours:
    """The table's columns and types, from the server's catalog."""

    columns: list[FilterColumn]
    types: list[SourceType]

    def verdict(self, text: str) -> Verdict:
        try:
            bound = bind_row_filter(text, self.columns, relation="filtered", types=self.types)
        except SqlRefused as error:
            return Verdict(None, error.message, error.detail, error.position)
        return Verdict(sql=bound.sql)

    def is_not_exact(self, text: str) -> bool:
        try:
            bind_row_filter(text, self.columns, relation="filtered", types=self.types)
        except FilterNotExact:
            return True
        except SqlRefused:
            return False
        return False


def read_table(connection: psycopg.Connection) -> Ours:
    columns = connection.execute(
        "SELECT attname, atttypid, atttypmod, attcollation FROM pg_attribute"
        " WHERE attrelid = 'filtered'::regclass AND attnum > 0 ORDER BY attnum"
    ).fetchall()
    types = connection.execute(
        "SELECT oid, typname, typtype, typcategory, 0, typarray, typbasetype, typcollation,"
        " format_type(oid, NULL),"
        " ARRAY(SELECT enumlabel::text FROM pg_enum WHERE enumtypid = t.oid)"
        " FROM pg_type t WHERE oid >= 16384"
    ).fetchall()
    return Ours(
        [FilterColumn(*row) for row in columns],
        [SourceType(*row, labels=tuple(labels)) for *row, labels in types],
    )


@pytest.fixture
def table(database: MakeDatabase, pg18: EmbeddedServer) -> Iterator[psycopg.Connection]:
    with database(pg18).connect() as connection:
        connection.execute("SET timezone = 'UTC'")
        connection.execute(SCHEMA)
        yield connection


def test_every_filter_gets_postgresqls_verdict(table: psycopg.Connection) -> None:
    ours = read_table(table)
    exceptions = NOT_EXACT_DOCS.read_text(encoding="utf-8")
    texts = filters()
    assert len(texts) >= 500
    differing: list[str] = []
    for text in texts:
        server, ours_verdict = server_verdict(table, text), ours.verdict(text)
        if ours.is_not_exact(text):
            is_listed = f"`{text}`" in exceptions
            if server.sql is None or not is_listed:
                differing.append(
                    f"{text}\n  listed: {is_listed}, server: {server}\n  ours: {ours_verdict}"
                )
        elif text in OTHER_WORDS:
            assert (server.sql is None) == (ours_verdict.sql is None), text
        elif server != ours_verdict:
            differing.append(f"{text}\n  server: {server}\n  ours:   {ours_verdict}")
    assert not differing, f"{len(differing)} differ:\n" + "\n".join(differing)


def test_what_the_docs_name_instead_of_a_refused_filter_is_accepted(
    table: psycopg.Connection,
) -> None:
    ours = read_table(table)
    page = NOT_EXACT_DOCS.read_text("utf-8")
    rows = page.partition("| filter | reason | instead |")[2].partition("\n\n")[0].splitlines()
    instead = [text for row in rows for text in re.findall("`([^`]+)`", row.split(" | ")[-1])]
    assert len(instead) >= 15
    for text in instead:
        verdict = ours.verdict(text)
        assert verdict.sql is not None, (text, verdict)
        assert verdict == server_verdict(table, text)
