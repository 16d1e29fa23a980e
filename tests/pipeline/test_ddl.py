"""Rows of the table of DDL where stream, looks and target meet, in one run.

All rows are looked at in subscription/test_looks_at_ddl.py; ``make soak AREA=ddl`` runs all of
them whole, at every moment.
"""

from __future__ import annotations

import pytest
from tests.support.databases import MakeDatabase
from tests.support.ddl.batch import run_rows
from tests.support.ddl.page import judge
from tests.support.ddl.row import Moment
from tests.support.ddl.table import ROWS
from tests.support.pipeline import MakePipeline

TELLING = (
    "add a volatile default drop it and update one row",
    "add fill drop add under the same name",
    "key moved to other columns",
    "swap of two tables",
    "drop and create while others write",
    "detach change and attach",
    "enum rename a value there and back",
    "ours via root truncate a leaf and a new partition",
)


@pytest.mark.usefixtures("spark")
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
