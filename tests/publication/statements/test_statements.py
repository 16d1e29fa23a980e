"""CREATE, ALTER and DROP PUBLICATION: PostgreSQL 18 is the oracle of every case.

The cases are the lines of ``statements.sql``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.databases import Database

from pgsluice.definitions.source_tables import SourceCatalog
from pgsluice.publication import Publications, Statements, load_publications
from pgsluice.publication.statements.execute import execute
from pgsluice.publication.statements.parse import parse_statements
from pgsluice.row_filter import FilterNotExact
from pgsluice.sql import SqlRefused

_LINES = Path(__file__).with_name("statements.sql").read_text("utf-8").splitlines()
CASES = [line for line in _LINES if not line.startswith("--")]
#: The server reports these errors at the statement's first character, pgsluice at the object.
UNPLACED = (
    "CREATE PUBLICATION n FOR ONLY t1",
    "CREATE PUBLICATION n FOR TABLES IN SCHEMA sch, ONLY t1",
    "CREATE PUBLICATION n FOR TABLES IN SCHEMA sch, t1 *",
)
#: The server reads its own output as another tree: (a AND b) AND c becomes one AND.
REPARSED = (
    "CREATE PUBLICATION n FOR TABLE t1 WHERE (a BETWEEN 1 AND 5 AND NOT b IS NULL AND c LIKE 'x%')",
)
_STATE = """
SELECT p.pubname, p.puballtables, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate,
       p.pubviaroot, p.pubgencols,
       ARRAY(SELECT (n.nspname, c.relname,
                     (SELECT string_agg(quote_ident(attname), ',' ORDER BY attnum)
                      FROM pg_attribute
                      WHERE attrelid = r.prrelid AND attnum = ANY (r.prattrs::int2[])),
                     pg_get_expr(r.prqual, r.prrelid))::text
             FROM pg_publication_rel r JOIN pg_class c ON c.oid = r.prrelid
             JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE r.prpubid = p.oid ORDER BY 1),
       ARRAY(SELECT nspname FROM pg_publication_namespace JOIN pg_namespace n ON n.oid = pnnspid
             WHERE pnpubid = p.oid ORDER BY 1)
FROM pg_publication p ORDER BY p.pubname COLLATE "C"
"""


@pytest.fixture(scope="module")
def session(oracle: Database) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(oracle.dsn) as connection:
        yield connection


def _of_server(session: psycopg.Connection[Any], text: str, query: str = _STATE) -> Any:
    try:
        session.execute(text)
        return session.execute(query).fetchall()
    except psycopg.Error as error:
        diagnostics = error.diag
        position = (
            None
            if diagnostics.statement_position is None
            else int(diagnostics.statement_position) - 1
        )
        return (
            diagnostics.message_primary,
            diagnostics.message_detail,
            diagnostics.message_hint,
            position,
        )
    finally:
        session.rollback()


_FILTERS = """
SELECT p.pubname, n.nspname, c.relname, pg_get_expr(r.prqual, r.prrelid)
FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
"""


def _execute_all(text: str, publications: Publications, catalog: SourceCatalog) -> Publications:
    for statement, _ in parse_statements(text):
        publications = execute(publications, statement, catalog)
    return publications


def _of_ours(text: str, publications: Publications, catalog: SourceCatalog) -> Any:
    try:
        return _execute_all(text, publications, catalog)
    except SqlRefused as error:
        return (error.message, error.detail, error.server_hint, error.position)


def _filters(publications: Publications) -> set[tuple[str, str, str, str | None]]:
    return {
        (publication.name, table.namespace, table.name, table.where)
        for publication in publications
        for table in publication.tables
    }


@pytest.mark.parametrize("text", CASES, ids=range(len(CASES)))
def test_a_statement_has_the_same_effect_as_on_the_server(
    text: str,
    session: psycopg.Connection[Any],
    publications: Publications,
    catalog: SourceCatalog,
) -> None:
    expected = _of_server(session, text)
    ours = _of_ours(text, publications, catalog)
    if not isinstance(ours, Publications):
        if text in UNPLACED:
            assert expected[3] == 0 < ours[3]
            expected, ours = expected[:3], ours[:3]
        assert ours == expected
        return
    assert isinstance(expected, list), expected
    assert _filters(ours) == set(_of_server(session, text, _FILTERS))
    if text in REPARSED:
        return
    # On the server, our canonical SQL makes the publications that we have.
    names = [name for (name,) in session.execute("SELECT quote_ident(pubname) FROM pg_publication")]
    again = f"DROP PUBLICATION {', '.join(names)}; {ours.sql}"
    assert _of_server(session, again) == expected
    # Executing that SQL again changes nothing.
    assert _execute_all(ours.sql, Publications(), catalog) == ours


def test_there_are_enough_cases() -> None:
    assert len(CASES) == len(set(CASES)) >= 250


def test_a_statement_with_a_filter_nested_too_deeply_is_refused(
    catalog: SourceCatalog,
) -> None:
    nested = "(" * 5_000 + "a" + ")" * 5_000
    with pytest.raises(FilterNotExact, match="nested this deeply"):
        load_publications(f"CREATE PUBLICATION n FOR TABLE t1 WHERE ({nested})", catalog)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", set()),
        (
            "CREATE PUBLICATION p FOR TABLE t (id, g), u; ALTER PUBLICATION p ADD TABLE v (w)",
            {"id", "g", "w"},
        ),
        ('CREATE PUBLICATION p FOR TABLE t WHERE ("G" > 5 AND a)', {"G", "a", "and"}),
        ("CREATE PUBLICATION p WITH (publish_generated_columns = stored)", None),
        ("ALTER PUBLICATION p SET (publish_generated_columns = stored)", None),
        ("CREATE PUBLICATION p WITH (publish_generated_columns = none)", set()),
        ("CREATE PUBLICATION p FOR TABLE t (id,", set()),  # the run says so
    ],
)
def test_columns_that_are_needed_even_if_they_are_generated(
    text: str, names: set[str] | None
) -> None:
    assert Statements(text).generated_columns() == names
