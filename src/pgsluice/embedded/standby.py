"""A standby of an embedded server, to be promoted.

It is a copy by pg_basebackup that streams from its primary through a physical slot of its
own, so that the primary keeps the WAL that it needs; its settings are fit for synchronising
the primary's failover slots (17 and newer; the manual, section "Logical Replication Failover").

::

    with EmbeddedServer(18) as primary, Standby(primary) as standby:
        standby.psql("SELECT pg_sync_replication_slots()")
        primary.stop("immediate")
        standby.promote()
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

import psycopg

from pgsluice.embedded.server import EmbeddedServer
from pgsluice.errors import ConfigError

_PROMOTED_WITHIN_S = 60


class Standby(EmbeddedServer):
    """A hot standby of a server that runs.

    Args:
        primary: the server to copy and to follow; version and settings are its own.
        settings: added to the primary's; ``sync_replication_slots`` keeps failover slots in
            step without being asked.

    Raises:
        ConfigError: the copy could not be made.
    """

    def __init__(
        self,
        primary: EmbeddedServer,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._primary = primary
        major = int(primary.version.partition(".")[0])
        super().__init__(major, settings={**primary.settings, **(settings or {})})
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
        """Make it a primary on a new timeline, and wait until it is.

        Raises:
            ConfigError: it was not within a minute.
        """
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            row = connection.execute(
                "SELECT pg_promote(wait_seconds => %s)", [_PROMOTED_WITHIN_S]
            ).fetchone()
        if row is None or not row[0]:
            raise ConfigError(f"the standby in {self.directory} was not promoted")

    def _initdb(self) -> None:
        """A copy of the primary instead of a new cluster."""
        command = [
            str(self.programs.path("pg_basebackup")),
            f"--dbname={self._primary.dsn()}",
            f"--pgdata={self.data_dir}",
            "--checkpoint=fast",
            "--wal-method=stream",
            "--no-sync",
        ]
        done = subprocess.run(
            command,
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
            **self._account.run_as(),
        )
        if done.returncode != 0:
            self.close()
            raise ConfigError(
                f"pg_basebackup failed: {done.stderr.strip()[-800:]}",
                hint="does the primary run, and have a walsender free?",
            )
        signal_file = self.data_dir / "standby.signal"
        signal_file.touch()
        self._account.give(signal_file)
