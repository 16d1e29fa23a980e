"""The most telling rows of the table of DDL, in one run; ``make soak AREA=ddl`` has all of them."""

from __future__ import annotations

import pytest
from tests.support.databases import MakeDatabase
from tests.support.ddl.batch import run_rows
from tests.support.ddl.page import judge
from tests.support.ddl.row import Moment
from tests.support.ddl.table import ROWS
from tests.support.pipeline import MakePipeline

TELLING = (
    "add a default vacuum full drop the default",
    "add a volatile default drop it and update one row",
    "add fill drop add under the same name",
    "int times two nothing written",
    "vacuum full of an older missing value",
    "key moved to other columns",
    "swap of two tables",
    "drop and create while others write",
    "detach change and attach",
    "enum rename a value there and back",
    "composite in an array add an attribute",
    "ours via root truncate a leaf and a new partition",
)


@pytest.mark.pg(">= 12")
def test_what_happened_while_all_was_stopped(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    source = database()
    version = int(source.server.version.partition(".")[0])
    rows = [r for r in ROWS if r.name in TELLING and r.runs_at(Moment.STOPPED, version)]
    assert len(rows) == len(TELLING)
    seen = run_rows(pipeline, source, rows, Moment.STOPPED)
    verdicts = judge(rows, seen, Moment.STOPPED)
    failed = [f"{one.row.name}: {one.fault}, {one.seen}" for one in verdicts if one.fails]
    assert not failed, "\n".join(failed)
