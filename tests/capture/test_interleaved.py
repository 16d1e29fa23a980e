"""Random interleaved transactions: the spool's changes, applied in order, are the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.databases import Database
from tests.support.interleaving import TABLES, Sessions, create_tables, scripts
from tests.support.spool_changes import all_changes

from pgsluice.capture import run_capture
from pgsluice.config import Config, SourceConfig, SpoolConfig

pytestmark = pytest.mark.pg(">= 15")
Rows = dict[int, tuple[Any, ...]]


@settings(
    max_examples=8,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(script=scripts(), again=scripts(10), small=st.booleans())
def test_what_is_read_is_what_the_server_has(database, tmp_path_factory, script, again, small):
    db = database()
    create_tables(db)
    config = Config(
        source=SourceConfig(dsn=db.dsn, slot=db.name, two_phase=True),
        spool=SpoolConfig(
            path=tmp_path_factory.mktemp("spool"), segment_bytes=2**15 if small else 2**24
        ),
    )
    run_capture(config, once=True)
    ranges = 0
    for steps in (script, again):
        with Sessions(db, ranges) as sessions:
            sessions.run(steps)
            run_capture(config, once=True)  # some are prepared still
            ranges = sessions.ranges
        run_capture(config, once=True)
        assert replayed(config.spool.path) == held(db)


def held(db: Database) -> dict[str, Rows]:
    return {
        table: {row[0]: row for row in db.execute(f"SELECT id, n, v FROM {table}")}
        for table in TABLES
    }


def replayed(path: Path) -> dict[str, Rows]:
    tables: dict[str, Rows] = {table: {} for table in TABLES}
    for table, action, row in all_changes(path):
        match action:
            case "I":
                assert row["id"] not in tables[table]
                tables[table][row["id"]] = tuple(row.values())
            case "U":
                assert row["id"] in tables[table]
                tables[table][row["id"]] = tuple(row.values())
            case "D":
                del tables[table][row["id"]]
    return tables
