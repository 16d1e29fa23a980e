"""Every command on a database whose tables, columns, types and publications have odd names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.commands import Command
from tests.support.databases import Database, MakeDatabase
from tests.support.local_spark import local_spark as local_spark
from tests.support.odd_names import JOINED_NAMES, assert_shown
from tests.support.pipeline import MakePipeline

from pgsluice.cli.decode.lines import quote_name
from pgsluice.sql import quote_identifier

pytest_plugins = ["tests.support.commands"]
OWN = JOINED_NAMES[0]


@pytest.fixture
def odd(database: MakeDatabase) -> Iterator[Database]:
    """A table of each odd name, with a column and a type of that name; one has no identity."""
    db = database()
    for number, name in enumerate(JOINED_NAMES):
        quoted = quote_identifier(name)
        key = "" if number == 2 else " PRIMARY KEY"
        db.execute(
            f"CREATE SCHEMA {quoted}",
            f"CREATE TYPE {quoted} AS ENUM ('x')",
            f"CREATE TABLE {quoted}.{quoted} (id int{key}, {quoted} {quoted})",
            f"INSERT INTO {quoted}.{quoted} VALUES (1, 'x')",
        )
    return db


@pytest.mark.usefixtures("local_spark")
def test_no_command_prints_a_name_raw(
    odd: Database, pipeline: MakePipeline, pgsluice: Command, tmp_path: Path
) -> None:
    lake = pipeline(odd)
    own = quote_identifier(OWN)
    (lake.folder / "own.sql").write_text(f"CREATE PUBLICATION {own} FOR ALL TABLES;\n")
    text = lake.path.read_text().replace("[spark]", '[publications]\nfile = "own.sql"\n[spark]')
    lake.path.write_text(text)
    outputs: dict[str, str] = {}

    def call(*arguments: str, code: int = 0) -> str:
        outcome = pgsluice(arguments[0], lake.path, *arguments[1:])
        outputs[" ".join(arguments)] = outcome.out + outcome.err
        assert outcome.code == code, (arguments, outcome)
        return outcome.out

    call("check")
    call("run", "--once")
    odd.execute(
        *(f"UPDATE {n}.{n} SET id = 2" for n in map(quote_identifier, JOINED_NAMES[:2])),
        f"ALTER TABLE {own}.{own} ENABLE ROW LEVEL SECURITY",
    )
    call("capture", "--once")
    segment = tmp_path / "segment.arrow"
    segment.write_bytes(max((lake.spool / "segments").rglob("*.arrow")).read_bytes())
    assert "\\x1b]0;" in call("status")
    call("status", "--json")
    assert "\\u202e" in call("describe")
    call("describe", OWN)
    call("explain", f"{own}.{own}")
    call("explain", f"{own}.nothing", code=2)
    call("copy", "no\x1b[2Jtable", code=2)
    assert "equal" in call("verify")  # applies what is missing
    call("verify", "--json")
    for option in ("--fragment", "--json"):
        outcome = pgsluice("decode", segment, option)
        assert outcome.code == 0, outcome.err
        outputs[f"decode {option}"] = outcome.out
    assert quote_name(OWN) in outputs["decode --fragment"]
    call("drop", "--yes")
    for output in outputs.values():
        assert_shown(output)
