"""A standby of an embedded server follows its primary and can be promoted."""

from __future__ import annotations

import psycopg
import pytest
from tests.support.clusters import CopiedServer
from tests.support.databases import Database
from tests.support.standby import Standby

from pgsluice.errors import ConfigError

NO_FSYNC = {"fsync": "off"}


def test_a_standby_follows_its_primary_and_can_be_promoted() -> None:
    with CopiedServer(settings=NO_FSYNC) as primary, Standby(primary) as standby:
        assert standby.version == primary.version
        ((end,),) = Database(primary, "postgres").execute(
            "CREATE TABLE t AS SELECT 1 AS i", "SELECT pg_current_wal_flush_lsn()::text"
        )
        with psycopg.connect(standby.dsn(), autocommit=True) as connection:
            reached = f"SELECT pg_last_wal_replay_lsn() >= '{end}'"
            while connection.execute(reached).fetchone() == (False,):
                pass  # each round asks again; the server's answer is the condition
        # While the standby restarts, its slot keeps the WAL that it needs.
        standby.restart()
        slots = Database(primary, "postgres").execute("SELECT slot_name FROM pg_replication_slots")
        assert slots == [(standby.slot,)]
        primary.stop("immediate")
        standby.promote()
        insert = "INSERT INTO t VALUES (2) RETURNING pg_is_in_recovery()"
        assert Database(standby, "postgres").execute(insert) == [(False,)]
        folder = standby.directory
    assert not folder.exists()


def test_a_stopped_primary_cannot_be_copied() -> None:
    with CopiedServer(settings=NO_FSYNC) as primary:
        primary.stop()
        with pytest.raises(ConfigError, match=r"pg_basebackup of PostgreSQL \S+ failed"):
            Standby(primary)
