"""A standby of an embedded server: it follows, and is promoted."""

from __future__ import annotations

import psycopg
import pytest

from pgsluice.embedded import EmbeddedServer
from pgsluice.embedded.standby import Standby
from pgsluice.errors import ConfigError

NO_FSYNC = {"fsync": "off"}


def test_it_follows_its_primary_and_is_one_after_its_promotion() -> None:
    with EmbeddedServer(settings=NO_FSYNC) as primary, Standby(primary) as standby:
        assert standby.version == primary.version
        primary.psql("CREATE TABLE t AS SELECT 1 AS i")
        end = primary.psql("SELECT pg_current_wal_flush_lsn()").strip()
        with psycopg.connect(standby.dsn(), autocommit=True) as connection:
            reached = f"SELECT pg_last_wal_replay_lsn() >= '{end}'"
            while connection.execute(reached).fetchone() == (False,):
                pass  # each round asks again; the server's answer is the condition
        # The primary keeps what it needs while it is away.
        standby.restart()
        assert primary.psql("SELECT slot_name FROM pg_replication_slots").split() == [standby.slot]
        primary.stop("immediate")
        standby.promote()
        assert standby.psql("INSERT INTO t VALUES (2) RETURNING pg_is_in_recovery()") == "f\n"
        folder = standby.directory
    assert not folder.exists()


def test_without_its_primary_there_is_none() -> None:
    with EmbeddedServer(settings=NO_FSYNC) as primary:
        primary.stop()
        with pytest.raises(ConfigError, match="pg_basebackup failed"):
            Standby(primary)
