"""SIGTERM and SIGINT end every command, also while a server or a disk hangs.

What has not ended by itself is ended after 8 s (``END_S``). A busy machine may take longer than the
10 s that are promised, but no other limit of a command is as short as the one here.

Some commands at a time are started, each with something that hangs in its own way. When each is
where it hangs, they get their signals.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from psycopg.conninfo import make_conninfo
from tests.support.databases import Database, fresh_database
from tests.support.hostile_server import (
    COPY_BOTH,
    Action,
    Asked,
    Connecting,
    Fault,
    HostileProxy,
    message,
)
from tests.support.waiting import await_that

from pgsluice.capture import run_capture
from pgsluice.catalog.publications.publications import OUR_COMMENT
from pgsluice.cli.signals import END_S
from pgsluice.config import load_config
from pgsluice.embedded import EmbeddedServer
from pgsluice.lsn import Lsn
from pgsluice.spool import Owner, RecordStore, SubscriptionRecord

_LONGEST_S = 30
AT_ONCE = 6
"""How many commands start and end at a time: all of them would take seconds of CPU."""
SILENCE = Action.SILENCE
PASSWORD_PLEASE = message(b"R", (3).to_bytes(4))


class Hanging(NamedTuple):
    process: subprocess.Popen[bytes]
    is_there: Callable[[], bool]


class Stage:
    """Makes commands hang; a context manager that ends what it has started."""

    def __init__(self, db: Database, folder: Path, stack: ExitStack) -> None:
        self.db, self._folder, self._stack = db, folder, stack
        self._numbers = itertools.count()
        # Before transactions are open, for which a slot would wait.
        self.used = [self._used() for _ in range(2)]

    def slot(self) -> str:
        return f"{self.db.name}_{next(self._numbers)}"

    def config(self, dsn: str, slot: str) -> Path:
        folder = self._folder / f"{next(self._numbers)}"
        folder.mkdir()
        path = folder / "shop.toml"
        path.write_text(
            f"[source]\ndsn = {json.dumps(dsn)}\nslot = {json.dumps(slot)}\npublications = ['p']\n"
            '[spool]\npath = "spool"\n'
            '[[subscription]]\nname = "lake"\nsink = { type = "delta", path = "lake/{table}" }\n'
        )
        return path

    def start(self, *arguments: str | Path) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "pgsluice", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._stack.callback(process.kill)
        return process

    def through(self, fault: Fault, command: str, *options: str, **parameters: str) -> Hanging:
        """A command that meets a hostile server."""
        proxy = self._stack.enter_context(HostileProxy(self.db.server.port, fault))
        slot = self.slot()
        self.db.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
        path = self.config(make_conninfo(proxy.dsn(self.db.dsn), **parameters), slot)
        return Hanging(self.start(command, path, *options), lambda: fault.has_acted)

    def on_the_server(self, command: str, path: Path, query: str, *options: str) -> Hanging:
        """A command whose statement waits on the server itself."""
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            f" AND query LIKE '{query}'"
        )
        process = self.start(command, path, *options)
        return Hanging(process, lambda: self.db.execute(waiting) == [(1,)])

    def _used(self) -> Path:
        """A configuration whose spool has received, and whose subscription has a record."""
        path = self.config(self.db.dsn, self.slot())
        config = load_config(path)
        run_capture(config, once=True)
        record = SubscriptionRecord(
            name="lake",
            owner=Owner.CONFIG,
            mode=config.subscriptions[0].mode,
            sink=config.subscriptions[0].sink.target,
            registered=Lsn(0),
            position=Lsn(0),
        )
        RecordStore.create(config.spool.path, record)
        return path

    def open_transaction(self, statement: str) -> None:
        """A transaction that stays open; creating a slot waits for its end."""
        writer = self._stack.enter_context(self.db.connect())
        writer.execute(f"BEGIN; {statement}")

    def on_fifo(self, path: Path, *command: str | Path) -> Hanging:
        """A command that reads from a file that gives nothing."""
        os.mkfifo(path)
        self._stack.callback(os.close, os.open(path, os.O_RDWR))
        process = self.start(*command)

        def is_read() -> bool:
            with suppress(OSError):
                links = Path(f"/proc/{process.pid}/fd").iterdir()
                return any(link.readlink() == path for link in links)
            return False

        return Hanging(process, is_read)


def spool_file(stage: Stage, command: str, *options: str) -> Hanging:
    path = stage.config(stage.db.dsn, stage.slot())
    (path.parent / "spool").mkdir()
    return stage.on_fifo(path.parent / "spool" / "identity.json", command, path, *options)


def config_file(stage: Stage, command: str) -> Hanging:
    path = stage.config(stage.db.dsn, stage.slot())
    path.unlink()
    return stage.on_fifo(path, command, path)


def locked_publication(stage: Stage) -> Hanging:
    path = stage.used.pop()
    # A publication of its own: as ours, p would get its second one from the captures beside it.
    path.write_text(path.read_text().replace("['p']", "['dropped']"))
    stage.db.execute(
        "CREATE PUBLICATION dropped", f"COMMENT ON PUBLICATION dropped IS '{OUR_COMMENT}'"
    )
    stage.open_transaction("DROP PUBLICATION dropped")
    return stage.on_the_server("drop", path, "DROP PUBLICATION%", "--yes")


def verify_snapshot(stage: Stage) -> Hanging:
    path = stage.used.pop()
    stage.open_transaction("INSERT INTO t VALUES (1)")
    return stage.on_the_server("verify", path, "CREATE_REPLICATION_SLOT%pgsluice_copy%")


def waiting_slot(stage: Stage) -> Hanging:
    slot = stage.slot()
    path = stage.config(stage.db.dsn, slot)
    return stage.on_the_server("capture", path, f"CREATE_REPLICATION_SLOT%{slot}%")


MOMENTS: dict[str, Callable[[Stage], Hanging]] = {
    "capture connects": lambda stage: stage.through(
        Connecting(SILENCE, is_walsender=False), "capture"
    ),
    "check begins TLS": lambda stage: stage.through(
        Connecting(SILENCE, is_walsender=False), "check", sslmode="require"
    ),
    "check sends a password": lambda stage: stage.through(
        Connecting(PASSWORD_PLEASE, SILENCE, is_walsender=False), "check", password="x"
    ),
    "check reads the catalog": lambda stage: stage.through(
        Asked("SELECT", SILENCE, is_walsender=False), "check"
    ),
    "status reads the slot": lambda stage: stage.through(
        Asked("SELECT", SILENCE, is_walsender=False), "status"
    ),
    "describe reads the catalog": lambda stage: stage.through(
        Asked("SELECT", SILENCE, is_walsender=False), "describe"
    ),
    "drop drops the slot": lambda stage: stage.through(
        Asked("SELECT pg_drop", SILENCE, is_walsender=False), "drop", "--yes"
    ),
    "capture asks who the server is": lambda stage: stage.through(
        Asked("IDENTIFY_SYSTEM", SILENCE), "capture"
    ),
    "capture starts the replication": lambda stage: stage.through(
        Asked("START_REPLICATION", SILENCE), "capture"
    ),
    "capture ends the stream": lambda stage: stage.through(
        Asked("START_REPLICATION", COPY_BOTH, SILENCE), "capture"
    ),
    "check reads its configuration": lambda stage: config_file(stage, "check"),
    "run reads its configuration": lambda stage: config_file(stage, "run"),
    "status reads the spool": lambda stage: spool_file(stage, "status"),
    "capture reads the spool": lambda stage: spool_file(stage, "capture"),
    # From here on, transactions are open.
    "verify makes its snapshot": verify_snapshot,
    "capture makes its slot": waiting_slot,
    "drop drops the publications": locked_publication,
}
SIGNALS = dict(zip(MOMENTS, itertools.cycle((signal.SIGTERM, signal.SIGINT)), strict=False))


class Ended(NamedTuple):
    code: int | None
    said: str


@pytest.mark.soak  # make soak AREA=long
def test_a_signal_ends_every_command(server: EmbeddedServer, tmp_path: Path) -> None:
    with fresh_database(server) as db, ExitStack() as stack:
        db.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
        stage = Stage(db, tmp_path, stack)
        ended: dict[str, Ended] = {}
        for names in _some_at_a_time(list(MOMENTS)):
            hanging = {name: MOMENTS[name](stage) for name in names}
            away = dict(hanging)

            def all_are_there(away: dict[str, Hanging] = away) -> bool:
                for name in [name for name, (_, is_there) in away.items() if is_there()]:
                    del away[name]
                return not away

            await_that(all_are_there)
            for name in names:
                hanging[name].process.send_signal(SIGNALS[name])
            ended |= {name: _end(hanging[name].process) for name in names}
    assert END_S < 10, "what docs/contracts.md says"
    for name, (code, said) in ended.items():
        assert code == 128 + SIGNALS[name], f"{name}: {said}"
        assert "Traceback" not in said, name
        assert "bug" not in said, name


def _some_at_a_time(names: list[str]) -> list[list[str]]:
    return [names[start : start + AT_ONCE] for start in range(0, len(names), AT_ONCE)]


def _end(process: subprocess.Popen[bytes]) -> Ended:
    """How a command ended; the code is None if it did not."""
    try:
        said, _ = process.communicate(timeout=_LONGEST_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return Ended(None, process.communicate()[0].decode())
    return Ended(process.returncode, said.decode())
