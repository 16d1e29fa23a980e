"""Sequences of statements on tables whose columns have other names at the target.

``PGSLUICE_RENAMED`` says how many there are at each moment (200). Each table has names of its own:
two columns have each other's, the others hostile ones, and so have their names in capitals.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from tests.support.databases import Database, MakeDatabase
from tests.support.ddl.row import Moment, Row
from tests.support.local_spark import local_spark as local_spark
from tests.support.local_spark import run_killed_at
from tests.support.oracle import compare_exact
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.sequences import columns
from tests.support.sequences.running import render, run_drawn

from pgsluice.cli.app import run_command
from pgsluice.config.values.target_names import TargetNames
from pgsluice.embedded import EmbeddedServer
from pgsluice.sinks.renamed import rows_at_source
from pgsluice.subscription.verify import Verification, verify
from pgsluice.verification import DeltaRows

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("local_spark"), pytest.mark.pg(">= 12")]

COUNT = int(os.environ.get("PGSLUICE_RENAMED", "200"))
_SWAPPED = {"x": "y", "y": "x"}
_OTHERS = "abcidzwvu"


def names_of(table: str) -> dict[str, str]:
    """What the columns of a table are called at the target."""
    given = {name: f"{name} é'%7E ✓" for name in ("id", *_OTHERS)} | _SWAPPED
    given |= {name.upper(): f"{name} in capitals" for name in given}
    return {f"public.{table}.{name}": at_target for name, at_target in given.items()}


@pytest.mark.parametrize(
    "moment",
    [Moment.STOPPED, Moment.SEVERAL_POLLS, Moment.ONE_POLL, Moment.CAPTURE_ONLY],
    ids=lambda moment: moment.name.lower(),
)
def test_sequences_on_renamed_columns(
    server: EmbeddedServer,
    database: MakeDatabase,
    pipeline: MakePipeline,
    seed: int,
    moment: Moment,
) -> None:
    version = server.programs.major
    drawn = [columns.draw(seed, number, moment, version) for number in range(COUNT)]
    drawn += [columns.draw_keyless(seed, number, moment, version) for number in range(COUNT // 4)]
    tables = [one.row().sql("{t}") for one in drawn]
    given = {name: new for table in tables for name, new in names_of(table).items()}
    names = TargetNames(given)

    def renaming(source: Database, *more: Any, **options: Any) -> Pipeline:
        one = pipeline(source, *more, **options)
        entries = (f"{json.dumps(name)} = {json.dumps(new)}" for name, new in given.items())
        one.subscription_options = f"rename = {{ {', '.join(entries)} }}"
        one.write()
        return one

    def compare(
        connection: psycopg.Connection[Any], row: Row, title: str, target: str
    ) -> tuple[list[Any], list[Any]]:
        return compare_exact(connection, title, rows_at_source(DeltaRows(target), names, title))

    verdicts = run_drawn(renaming, database, drawn, moment, compare)
    failed = [render(one, moment, version) for one in verdicts if one.fault is not None]
    parked = sum(bool(one.seen.errors) for one in verdicts)
    sys.stdout.write(f"\n{moment.value}: {len(verdicts)} sequences, {parked} parked\n")
    assert not failed, "\n".join(failed)


def rename_orders(one: Pipeline, mode: str, merge: str) -> None:
    """Have the table ``orders``, its schema and its columns have other names at the target."""
    given = {"public": "shop", "public.orders": "sold", **names_of("orders")}
    entries = ", ".join(f"{json.dumps(name)} = {json.dumps(new)}" for name, new in given.items())
    one.sink_options = f', merge = "{merge}"'
    one.subscription_options = f"{mode}\nrename = {{ {entries} }}"
    one.write()


@pytest.mark.parametrize("merge", ["on_read", "on_write"])
@pytest.mark.parametrize(
    "mode", ['mode = "changelog"', 'mode = "history"', 'deleted_column = "gone_at"', "adopt = true"]
)
def test_each_mode_is_verified_through_the_names(
    database: MakeDatabase, pipeline: MakePipeline, mode: str, merge: str
) -> None:
    db = database()
    db.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, x int, y text)",
        "INSERT INTO orders SELECT n, n, 'y' || n FROM generate_series(1, 20) n",
    )
    one = pipeline(db)
    rename_orders(one, mode, merge)
    one.once()
    db.execute(
        "UPDATE orders SET x = 70 WHERE id = 7",
        "UPDATE orders SET id = 100 WHERE id = 8",
        "DELETE FROM orders WHERE id BETWEEN 9 AND 12",
        "ALTER TABLE orders ADD a int DEFAULT 3",
        "UPDATE orders SET a = 5 WHERE id = 1",
    )
    one.once()
    names = DeltaRows(f"{one.lake}/shop/sold").schema.names
    assert names[:3] == ["id é'%7E ✓", "y", "x"]
    assert "a é'%7E ✓" in names
    (verified,) = verify(one.config, one.config.subscription("lake"), Verification())
    assert not verified.is_failure, verified
    assert verified.comparison is not None
    assert verified.comparison.equal


@pytest.mark.parametrize("merge", ["on_read", "on_write"])
def test_a_target_with_other_names_is_taken_over_whoever_is_killed(
    database: MakeDatabase, pipeline: MakePipeline, merge: str
) -> None:
    """Killed while it is compared, before the commit and after it."""
    db = database()
    db.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, x int, y text)",
        "INSERT INTO orders SELECT n, n, 'y' || n FROM generate_series(1, 3000) n",
    )
    one = pipeline(db)
    rename_orders(one, "adopt = true", merge)
    one.once()
    assert run_command(["drop", str(one.path), "--yes"]) == 0
    delta = DeltaTable(f"{one.lake}/shop/sold")
    files, version = {*delta.file_uris()}, delta.version()
    db.execute("UPDATE orders SET x = -1 WHERE id = 2000")
    for place, commits in (("copy.comparing", 0), ("copy.ranges_staged", 0), ("copy.adopted", 1)):
        assert run_killed_at(one.path, place) == -signal.SIGKILL
        assert DeltaTable(f"{one.lake}/shop/sold").version() == version + commits, place
    one.once()
    db.execute("DELETE FROM orders WHERE id = 8")
    one.once()
    if merge == "on_read":
        assert files <= {*DeltaTable(f"{one.lake}/shop/sold").file_uris()}, "it was copied"
    (verified,) = verify(one.config, one.config.subscription("lake"), Verification())
    assert verified.comparison is not None
    assert verified.comparison.equal
