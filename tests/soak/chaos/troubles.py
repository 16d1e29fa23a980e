"""What goes wrong for a while beside a run: rights, sessions, publications, locks, server, disks.

Everything is put right again, so that in the end each target has to equal its source.
"""

from __future__ import annotations

import os
import random
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from tests.soak.chaos.sessions import Journal
from tests.soak.chaos.tables import KINDS
from tests.support.databases import Database
from tests.support.pgbench import processes_of
from tests.support.pipeline import Pipeline

ROLE = "reader"
PROCESSES = ("driver", "capture", "worker", "worker", "jvm")
_LONGEST_S = 4.0
_DISK = "1g"
_END_SESSIONS = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{ROLE}'"


@dataclass(frozen=True)
class Trouble:
    """Statements of a superuser: the first begin it, the last end it.

    ``{t}`` is a table, ``{p}`` the publication; ``since`` is the first server that has a meaning
    for it. All statements run in one session.
    """

    begin: tuple[str, ...]
    end: tuple[str, ...] = ()
    since: int = 10


SQL_TROUBLES = (
    Trouble((f"REVOKE SELECT ON {{t}} FROM {ROLE}",), (f"GRANT SELECT ON {{t}} TO {ROLE}",)),
    Trouble(
        ("ALTER TABLE {t} ENABLE ROW LEVEL SECURITY",),
        ("ALTER TABLE {t} DISABLE ROW LEVEL SECURITY",),
    ),
    Trouble((f"ALTER ROLE {ROLE} NOLOGIN", _END_SESSIONS), (f"ALTER ROLE {ROLE} LOGIN",)),
    Trouble(
        (f"ALTER ROLE {ROLE} NOREPLICATION", _END_SESSIONS), (f"ALTER ROLE {ROLE} REPLICATION",)
    ),
    Trouble(
        (f"ALTER ROLE {ROLE} CONNECTION LIMIT 1", _END_SESSIONS),
        (f"ALTER ROLE {ROLE} CONNECTION LIMIT -1",),
    ),
    Trouble(
        (f"ALTER ROLE {ROLE} SET statement_timeout = '3ms'", _END_SESSIONS),
        (f"ALTER ROLE {ROLE} RESET statement_timeout",),
    ),
    Trouble((_END_SESSIONS,)),
    Trouble((_END_SESSIONS.replace("terminate", "cancel"),)),
    Trouble(("ALTER PUBLICATION {p} DROP TABLE {t}",), ("ALTER PUBLICATION {p} ADD TABLE {t}",)),
    Trouble(
        (
            "ALTER PUBLICATION {p} DROP TABLE {t}",
            "ALTER PUBLICATION {p} ADD TABLE {t} WHERE (1 > 2)",
        ),
        ("ALTER PUBLICATION {p} DROP TABLE {t}", "ALTER PUBLICATION {p} ADD TABLE {t}"),
    ),
    Trouble(
        ("ALTER PUBLICATION {p} SET (publish = 'insert')",),
        ("ALTER PUBLICATION {p} SET (publish = 'insert, update, delete, truncate')",),
    ),
    Trouble(
        ("ALTER PUBLICATION {p} SET (publish_via_partition_root = true)",),
        ("ALTER PUBLICATION {p} SET (publish_via_partition_root = false)",),
    ),
    # Earlier servers can't decode what was written while it had another name.
    Trouble(
        ("ALTER PUBLICATION {p} RENAME TO away",), ("ALTER PUBLICATION away RENAME TO {p}",), 18
    ),
    Trouble(("BEGIN", "LOCK TABLE {t} IN ACCESS EXCLUSIVE MODE"), ("COMMIT",)),
)


def restrict(one: Pipeline) -> None:
    """Have a run connect as a role that may only replicate and read, by a publication of a DBA."""
    tables = ", ".join(kind.table for kind in KINDS)
    schemas = "public, " + ", ".join(
        kind.table.rpartition(".")[0] for kind in KINDS if "." in kind.table
    )
    one.database.execute(
        f"CREATE ROLE {ROLE} LOGIN REPLICATION",
        f"GRANT USAGE ON SCHEMA {schemas} TO {ROLE}",
        f"GRANT SELECT ON {tables} TO {ROLE}",
        f"CREATE PUBLICATION {one.database.name} FOR TABLE {tables}",
    )
    text = one.path.read_text()
    path_dsn = one.database.dsn
    assert path_dsn in text
    one.path.write_text(text.replace(path_dsn, one.database.server.dsn(one.database.name, ROLE)))


def publish(database: Database, table: str) -> None:
    """Have a new table sent, and let the role read it."""
    database.execute(
        f"GRANT SELECT ON {table} TO {ROLE}",
        f"ALTER PUBLICATION {database.name} ADD TABLE {table}",
    )


@contextmanager
def small_disks(one: Pipeline) -> Iterator[None]:
    """Spool and lake on disks of their own, which can be full; only root can have them."""
    disks = [one.spool, one.lake] if os.geteuid() == 0 else []
    for disk in disks:
        disk.mkdir()
        options = ["-o", f"size={_DISK},mode=0700"]
        subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", str(disk)], check=True)
    try:
        yield
    finally:
        one.stop()
        for disk in disks:
            subprocess.run(["umount", "--lazy", str(disk)], check=True)


class Troubles(threading.Thread):
    """One trouble after another, until ``ended``.

    Args:
        one: its run connects as the role.
        seed: of the dice.

    Attributes:
        count: how many there were.
    """

    def __init__(self, one: Pipeline, seed: int, journal: Journal, ended: threading.Event) -> None:
        super().__init__(name="troubles")
        self.count = 0
        self._one = one
        self._dice = random.Random(f"{seed} troubles")
        self._journal = journal
        self._ended = ended

    def run(self) -> None:
        others: tuple[Callable[[], None], ...] = (
            self._restart,
            self._compact,
            self._compact,
            self._run_twice,
            self._suspend,
            self._suspend,
            lambda: self._fill(self._one.spool),
            lambda: self._fill(self._one.lake),
        )
        version = self._one.database.server.programs.major
        troubles = [trouble for trouble in SQL_TROUBLES if trouble.since <= version]
        while not self._ended.wait(self._dice.uniform(0.3, 2)):
            self.count += 1
            number = self._dice.randrange(len(troubles) + len(others))
            if number < len(troubles):
                self._disturb(troubles[number])
            else:
                others[number - len(troubles)]()

    def _disturb(self, trouble: Trouble) -> None:
        table = self._dice.choice(KINDS).table
        with self._one.database.connect() as connection:
            connection.execute("SET lock_timeout = '2s'")
            self._execute(connection, table, trouble.begin)
            self._ended.wait(self._dice.uniform(0.1, _LONGEST_S))
            connection.execute("SET lock_timeout = 0")
            self._execute(connection, table, trouble.end)

    def _execute(
        self, connection: psycopg.Connection[object], table: str, statements: tuple[str, ...]
    ) -> None:
        for statement in statements:
            text = statement.replace("{t}", table).replace("{p}", self._one.database.name)
            self._note(text)
            try:
                connection.execute(text.encode())
            except psycopg.Error as error:
                self._note(f"failed: {str(error).splitlines()[0]}")
                connection.rollback()

    def _restart(self) -> None:
        self._note("the server crashes")
        self._one.database.server.restart("immediate")

    def _compact(self) -> None:
        """What a nightly OPTIMIZE of somebody else does to a target."""
        logs = sorted(self._one.lake.glob("*/*/_delta_log"))
        if logs:
            target = self._dice.choice(logs).parent
            self._note(f"OPTIMIZE {target.name}")
            with suppress(DeltaError):  # the run was quicker
                DeltaTable(str(target)).optimize.compact()

    def _run_twice(self) -> None:
        """A second run of the same configuration; it has to refuse, or to wait for its turn."""
        self._note("a second run")
        self._one.start()

    def _suspend(self) -> None:
        """A process stands still for a while, and goes on although others were killed since: a
        task's late attempt at a commit, too."""
        kind = self._dice.choice(PROCESSES)
        for process in processes_of(self._one, kind)[-1:]:
            self._note(f"SIGSTOP to {kind}")
            with suppress(psutil.NoSuchProcess):
                process.suspend()
            self._ended.wait(self._dice.uniform(0.1, 2 * _LONGEST_S))
            with suppress(psutil.NoSuchProcess):
                process.resume()
            self._note(f"SIGCONT to {kind}")

    def _fill(self, disk: Path) -> None:
        """Leave no room on a disk for a while; without a disk of its own, do nothing."""
        if not disk.is_mount():
            return
        self._note(f"no room in {disk.name}")
        state, ballast = os.statvfs(disk), disk / "ballast"
        with ballast.open("wb") as file, suppress(OSError):  # the run was quicker
            os.posix_fallocate(file.fileno(), 0, state.f_bavail * state.f_bsize)
        self._ended.wait(self._dice.uniform(0.1, _LONGEST_S))
        ballast.unlink()
        self._note(f"room in {disk.name} again")

    def _note(self, text: str) -> None:
        self._journal.note(self.name, text)
