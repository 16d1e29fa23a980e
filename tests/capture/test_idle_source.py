"""What the slot of a quiet database keeps on a busy server: little, without any setting."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.capturing import configure, running
from tests.support.clusters import CopiedServer
from tests.support.databases import Database, fresh_database
from tests.support.waiting import await_that

_WRITTEN = 40
_MIB = 2**20
_KEPT = "SELECT pg_current_wal_lsn() - restart_lsn FROM pg_replication_slots"
_WRITE = f"""
SELECT pg_logical_emit_message(true, 'of others', repeat('x', {_MIB}))
FROM generate_series(1, {_WRITTEN})
"""


@pytest.mark.soak  # capture writes an idle position each ten seconds
def test_a_quiet_database_keeps_little_of_a_busy_servers_wal(tmp_path: Path) -> None:
    with CopiedServer(18, settings={"fsync": "off"}) as server, fresh_database(server) as quiet:
        quiet.execute("CREATE TABLE t (id int PRIMARY KEY)")
        busy = Database(server, "postgres")
        with running(configure(quiet, tmp_path / "spool")):
            await_that(lambda: bool(busy.execute(_KEPT)), "there is a slot")
            busy.execute(_WRITE)
            assert busy.execute(_KEPT)[0][0] > _WRITTEN / 2 * _MIB, "it begins with a backlog"

            def keeps_little() -> bool:
                # A server logs what runs at each checkpoint; a slot can start nowhere else.
                return bool(busy.execute("CHECKPOINT", _KEPT)[0][0] < _MIB)

            await_that(keeps_little, "the slot has moved on")
