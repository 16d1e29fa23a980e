"""``pgsluice describe`` and ``explain``, compared with the output of psql 18 itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.support.publication_statements import PUBLICATIONS, SETUP

from pgsluice.cli.app import run_command
from pgsluice.embedded import EmbeddedServer

_MORE = '''
CREATE PUBLICATION "ü wide" FOR TABLE "Odd ""name""" ("A b", "select"), base;
CREATE PUBLICATION changed FOR TABLE t1, child WHERE (a >= 5), TABLES IN SCHEMA "Big One"
    WITH (publish = 'insert, delete', publish_generated_columns = stored);
'''


def _psql(server: EmbeddedServer, dsn: str, command: str) -> str:
    psql = server.programs.path("psql")
    call = [psql, "-X", "-d", dsn, "-c", command]
    return subprocess.run(call, capture_output=True, text=True, check=True).stdout


def _configure(folder: Path, dsn: str, rest: str = "") -> str:
    path = folder / "pgsluice.toml"
    source = f'[source]\ndsn = "{dsn}"\npublications = ["everything"]\n'
    path.write_text(f'{source}[spool]\npath = "spool"\n{rest}')
    return str(path)


def test_the_servers_publications_look_as_in_psql(
    pg18: EmbeddedServer, database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = database(pg18)
    db.execute(SETUP, PUBLICATIONS, _MORE)
    assert run_command(["describe", _configure(tmp_path, db.dsn)]) == 0
    shown = capsys.readouterr().out
    publications = _psql(pg18, db.dsn, r"\dRp+")
    assert shown.startswith(publications.rstrip("\n"))
    for table in ("t1", "t3", "parent", "child", "derived", '"Odd ""name"""', "sch.t1"):
        assert _without_other_footers(_psql(pg18, db.dsn, rf"\d {table}")) in shown


def _without_other_footers(picture: str) -> str:
    """psql's output without indexes, inheritance and the like."""
    head, footers = [], []
    is_publication = False
    for line in picture.rstrip("\n").splitlines():
        if line.endswith(":") or line.startswith(("Partition", "Number", "Inherits")):
            is_publication = line == "Publications:"
        if "|" in line or set(line) == {"-", "+"} or not head:
            head.append(line)
        elif is_publication:
            footers.append(line)
    return "\n".join([*head, *footers])


_OWN = '''
[publications]
sql = """
CREATE PUBLICATION p1 FOR TABLE t1 WHERE (a > 5 AND c = 'NSW');
CREATE PUBLICATION p2 FOR TABLE t1, t2 WHERE (e = 99) WITH (publish = 'insert');
CREATE PUBLICATION p4 FOR TABLE parent WHERE (a < 5), child WHERE (a >= 5)
    WITH (publish_via_partition_root = true);
"""
[[subscription]]
name = "lake"
publications = ["p1", "p2", "p4"]
sink = { type = "delta", path = "lake/{schema}/{table}" }
'''


def test_before_the_first_run_it_shows_what_that_will_create(
    pg18: EmbeddedServer, database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = database(pg18)
    db.execute(SETUP)
    assert run_command(["explain", _configure(tmp_path, db.dsn, _OWN), "t2"]) == 0
    shown = capsys.readouterr().out
    assert "the first run creates it" in shown
    assert "WHERE (e = 99)" in shown


def test_our_own_publications_are_described_and_explained(
    pg18: EmbeddedServer, database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = database(pg18)
    db.execute(SETUP, "CREATE PUBLICATION everything FOR ALL TABLES")
    config = _configure(tmp_path, db.dsn, _OWN)

    assert run_command(["describe", config, "p1"]) == 0
    shown = capsys.readouterr().out
    assert " pgsluice | f          | t       | t       | t       | t         | none" in shown
    assert "    \"public.t1\" WHERE ((a > 5) AND (c = 'NSW'::text))\n" in shown
    table = shown.partition("Publications:\n")[2]
    assert table.splitlines()[:3] == [
        '    "everything"',
        "    \"p1\" WHERE ((a > 5) AND (c = 'NSW'::text))",
        '    "p2"',
    ]

    assert run_command(["explain", config, "t1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "public.t1"
    own = lines[lines.index('  subscription lake, publications "p1", "p2", "p4"') + 1 :]
    assert [" ".join(line.split()) for line in own] == [
        'published as public.t1 (itself), by "p1", "p2"',
        "columns a, b, c (no column list)",
        'insert every row; "p2" cancels filters: it names the table without a WHERE clause',
        "update WHERE ((a > 5) AND (c = 'NSW'::text)) by \"p1\"",
        "delete WHERE ((a > 5) AND (c = 'NSW'::text)) by \"p1\"",
        "truncate published; filters have no effect",
        "initial copy every row",
    ]

    assert run_command(["explain", config, "parent"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("public.child, partition of public.parent\n")
    assert 'published as  public.parent (partition root), by "p4"' in shown
    assert "WHERE (a < 5)" in shown
    assert "(a >= 5)" not in shown


def test_mistakes_have_their_place(
    pg18: EmbeddedServer, database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = database(pg18)
    (tmp_path / "own.sql").write_text(
        "-- two publications\nCREATE PUBLICATION a;\nCREATE PUBLICATION b FRO ALL TABLES;\n"
    )
    config = _configure(tmp_path, db.dsn, '[publications]\nfile = "own.sql"\n')
    assert run_command(["describe", config]) == 2
    assert capsys.readouterr().err == (
        'pgsluice: own.sql:3: ERROR:  syntax error at or near "FRO"\n'
        "  LINE 3: CREATE PUBLICATION b FRO ALL TABLES;\n"
        "                               ^\n"
    )
    (tmp_path / "own.sql").write_text("CREATE PUBLICATION a;")
    assert run_command(["describe", config, "b"]) == 2
    assert 'has the name "b"' in capsys.readouterr().err
    db.execute("CREATE TABLE orders (id int)")
    assert run_command(["explain", config, "oders"]) == 2
    said = capsys.readouterr().err
    assert f"there is no table oders in the database {db.name}" in said
    assert "did you mean public.orders?" in said
    assert run_command(["explain", config, "customers"]) == 2
    assert "→ the tables are: public.orders\n" in capsys.readouterr().err
    assert run_command(["explain", config, "pg_catalog.pg_class"]) == 0
