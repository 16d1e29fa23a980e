"""A hot standby of an embedded server, which can be promoted.

The standby is a copy made by pg_basebackup. It streams from its primary through a physical
slot of its own, so that the primary keeps the WAL that it needs. Its settings allow it to
synchronise the primary's failover slots (17 and newer; the manual, section "Logical
Replication Failover").

::

    with EmbeddedServer(18) as primary, Standby(primary) as standby:
        Database(standby, "postgres").execute("SELECT pg_sync_replication_slots()")
        primary.stop("immediate")
        standby.promote()
"""

from __future__ import annotations

import psycopg

from pgsluice.embedded.server import EmbeddedServer
from pgsluice.errors import ConfigError

_PROMOTED_WITHIN_S = 60


class Standby(EmbeddedServer):
    """A hot standby of a running server.

    Args:
        primary: the server to copy and to follow; the standby has its version and settings.

    Raises:
        ConfigError: the copy could not be made.
    """

    def __init__(self, primary: EmbeddedServer) -> None:
        self._primary = primary
        major = int(primary.version.partition(".")[0])
        super().__init__(major, settings=primary.settings)
        #: The physical slot on the primary.
        self.slot = f"standby_{self.port}"
        self.settings.update(
            hot_standby="on",
            hot_standby_feedback="on",
            primary_conninfo=primary.dsn(application_name=self.slot),
            primary_slot_name=self.slot,
        )
        with psycopg.connect(primary.dsn(), autocommit=True) as connection:
            connection.execute("SELECT pg_create_physical_replication_slot(%s, true)", [self.slot])

    def promote(self) -> None:
        """Promote the standby and wait until it is the primary of a new timeline.

        Raises:
            ConfigError: it was not promoted within a minute.
        """
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            row = connection.execute(
                "SELECT pg_promote(wait_seconds => %s)", [_PROMOTED_WITHIN_S]
            ).fetchone()
        if row is None or not row[0]:
            raise ConfigError(f"the standby in {self.directory} was not promoted")

    def create_cluster(self) -> None:
        """Copy the primary's data directory."""
        self.run_program(
            "pg_basebackup",
            f"--dbname={self._primary.dsn()}",
            f"--pgdata={self.data_dir}",
            "--checkpoint=fast",
            "--wal-method=stream",
            "--no-sync",
        )
        signal_file = self.data_dir / "standby.signal"
        signal_file.touch()
        self.account.give(signal_file)
