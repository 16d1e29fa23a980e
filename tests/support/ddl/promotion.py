"""A database on a primary with a standby, for rows that a promotion cuts in two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from psycopg.conninfo import make_conninfo
from tests.support.databases import Database
from tests.support.standby import Standby
from tests.support.waiting import await_that

from pgsluice.lsn import Lsn


@dataclass(frozen=True)
class FailoverDatabase(Database):
    """A database that is reached on whichever of two servers takes writes.

    Attributes:
        standby: of ``server``; it synchronises slots.
    """

    standby: Standby

    @property
    def dsn(self) -> str:
        """Names both servers."""
        return make_conninfo(
            self.server.dsn(self.name),
            host="127.0.0.1,127.0.0.1",
            port=f"{self.server.port},{self.standby.port}",
            target_session_attrs="read-write",
        )

    def synchronise_slot(self, run_once: Callable[[], None]) -> None:
        """Until the slot is on the standby for good.

        Its position has to move past what the standby has kept, and moves with what capture
        acknowledges.

        Args:
            run_once: ``pgsluice run --once``.
        """

        def is_there() -> bool:
            self.execute("SELECT pg_log_standby_snapshot()")
            run_once()
            self.await_replay()
            return bool(
                self._on_standby.execute(
                    "SELECT pg_sync_replication_slots()",
                    "SELECT 1 FROM pg_replication_slots WHERE synced AND NOT temporary",
                )
            )

        await_that(is_there)

    def await_replay(self) -> None:
        """Until the standby has what the primary has now."""
        ((flushed,),) = self.execute("SELECT pg_current_wal_flush_lsn()")
        replayed = "SELECT pg_last_wal_replay_lsn()"
        await_that(
            lambda: Lsn.parse(self._on_standby.execute(replayed)[0][0]) >= Lsn.parse(flushed)
        )

    def fail_over(self) -> None:
        """The primary is gone at once; the standby, started where it was stopped, is promoted."""
        self.server.stop("immediate")
        if not self.standby.is_running:
            self.standby.start()
        self.standby.promote()

    @property
    def _on_standby(self) -> Database:
        return Database(self.standby, self.name)
