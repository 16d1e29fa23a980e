"""The documentation that row filters came with: its publications and what psql shows of them."""

from __future__ import annotations

import re

import pytest
from tests.support.databases import fresh_database

from pgsluice.catalog.tables.source_tables import source_catalog
from pgsluice.cli.psql_picture import publication_lines, publication_picture
from pgsluice.definitions.source_tables import SourceCatalog
from pgsluice.embedded import EmbeddedServer
from pgsluice.publication import OwnedPublication, load_publications, resolve
from pgsluice.replication import connect_sql

_TABLES = """
CREATE TABLE t1(a int, b int, c text, PRIMARY KEY(a,c));
CREATE TABLE t2(d int, e int, f int, PRIMARY KEY(d));
CREATE TABLE t3(g int, h int, i int, PRIMARY KEY(g));
CREATE TABLE parent(a int PRIMARY KEY) PARTITION BY RANGE(a);
CREATE TABLE child PARTITION OF parent DEFAULT;
"""
_PUBLICATIONS = """
CREATE PUBLICATION p1 FOR TABLE t1 WHERE (a > 5 AND c = 'NSW');
CREATE PUBLICATION p2 FOR TABLE t1, t2 WHERE (e = 99);
CREATE PUBLICATION p3 FOR TABLE t2 WHERE (d = 10), t3 WHERE (g = 10);
"""
# As printed there; a newer psql has one more column, "Generated columns".
_DRP = """
Publication p1
 Owner | All tables | Inserts | Updates | Deletes | Truncates | Via root
----------+------------+---------+---------+---------+-----------+----------
 postgres | f | t | t | t | t | f
Tables:
 "public.t1" WHERE ((a > 5) AND (c = 'NSW'::text))

 Publication p2
 Owner | All tables | Inserts | Updates | Deletes | Truncates | Via root
----------+------------+---------+---------+---------+-----------+----------
 postgres | f | t | t | t | t | f
Tables:
 "public.t1"
 "public.t2" WHERE (e = 99)

 Publication p3
 Owner | All tables | Inserts | Updates | Deletes | Truncates | Via root
----------+------------+---------+---------+---------+-----------+----------
 postgres | f | t | t | t | t | f
Tables:
 "public.t2" WHERE (d = 10)
 "public.t3" WHERE (g = 10)
"""
_D = {
    "t1": ["\"p1\" WHERE ((a > 5) AND (c = 'NSW'::text))", '"p2"'],
    "t2": ['"p2" WHERE (e = 99)', '"p3" WHERE (d = 10)'],
    "t3": ['"p3" WHERE (g = 10)'],
}


@pytest.fixture(scope="module")
def documented(pg18: EmbeddedServer) -> SourceCatalog:
    with fresh_database(pg18) as database:
        database.execute(_TABLES)
        with connect_sql(database.dsn) as connection:
            return source_catalog(connection)


def _cells(picture: str) -> list[list[str]]:
    """Lines as cells, without the rule and the newer column."""
    lines = [line for line in picture.strip().splitlines() if line and set(line) != {"-", "+"}]
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    return [row[:6] + row[7:] if len(row) == 8 else row for row in rows]


def test_publications_are_shown_as_in_the_documentation(documented: SourceCatalog) -> None:
    publications = load_publications(_PUBLICATIONS, documented)
    pictures = "".join(
        publication_picture(OwnedPublication(publication, "postgres"))
        for publication in publications
    )
    assert _cells(pictures) == _cells(_DRP)


@pytest.mark.parametrize("name", _D)
def test_tables_are_shown_as_in_the_documentation(documented: SourceCatalog, name: str) -> None:
    publications = load_publications(_PUBLICATIONS, documented)
    table = documented.table("public", name)
    assert table is not None
    lines = publication_lines(table, publications)
    assert lines[0] == "Publications:"
    assert [line.strip() for line in lines[1:]] == _D[name]


def test_filters_of_several_publications(documented: SourceCatalog) -> None:
    """A subscription to all three: p2 cancels t1's filter, t2's filters are ORed."""
    publications = list(load_publications(_PUBLICATIONS, documented))
    filters = {}
    for name in _D:
        table = documented.table("public", name)
        assert table is not None
        resolution = resolve(publications, table, documented)
        assert resolution is not None
        filters[name] = resolution.filters("insert")
        assert resolution.filters("update") == resolution.filters("delete") == filters[name]
        assert resolution.copy_filters == filters[name]
    assert filters == {"t1": (), "t2": ("(e = 99)", "(d = 10)"), "t3": ("(g = 10)",)}


_VIA_ROOT = """
CREATE PUBLICATION p4 FOR TABLE parent WHERE (a < 5), child WHERE (a >= 5)
WITH (publish_via_partition_root=true);
"""
_VIA_LEAF = """
DROP PUBLICATION p4;
CREATE PUBLICATION p4 FOR TABLE parent, child WHERE (a >= 5)
WITH (publish_via_partition_root=false);
"""


@pytest.mark.parametrize(
    ("statements", "relation", "row_filter"),
    [(_VIA_ROOT, "parent", "(a < 5)"), (_VIA_ROOT + _VIA_LEAF, "child", "(a >= 5)")],
    ids=["through the root", "through the leaf"],
)
def test_which_filter_acts_on_a_partition(
    documented: SourceCatalog, statements: str, relation: str, row_filter: str
) -> None:
    publications = list(load_publications(statements, documented))
    child = documented.table("public", "child")
    assert child is not None
    resolution = resolve(publications, child, documented)
    assert resolution is not None
    assert resolution.published_as.name == relation
    assert resolution.filters("insert") == (row_filter,)


def test_for_all_tables_in_schema_is_accepted_as_documented(documented: SourceCatalog) -> None:
    publications = load_publications(
        "CREATE PUBLICATION s FOR ALL TABLES IN SCHEMA public", documented
    )
    assert re.sub(r"\s+", " ", publications.sql).strip() == (
        "CREATE PUBLICATION s FOR TABLES IN SCHEMA public;"
    )
