"""A process of its own holds the snapshot of a long copy."""

from __future__ import annotations

import json
import math
import os
import resource
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
from tests.support.databases import Database, MakeDatabase
from tests.support.waiting import await_that

from pgsluice.errors import SourceUnreachable
from pgsluice.replication import connect_sql
from pgsluice.snapshots.keeper import SnapshotFile, StartedKeeper, keep_for_readers
from pgsluice.snapshots.snapshot import Snapshot, SnapshotGone, import_snapshot, temporary_snapshot
from pgsluice.system.processes import is_running

COUNT = "SELECT count(*) FROM t"
SESSIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'pgsluice snapshot of a copy'
"""


def wait_until_none(shop: Database, query: str) -> None:
    """Ask the server until a count is 0."""
    await_that(lambda: shop.execute(query) == [(0,)])


@pytest.fixture
def shop(database: MakeDatabase) -> Database:
    shop = database()
    shop.execute("CREATE TABLE t (id int)", "INSERT INTO t VALUES (1)")
    return shop


def kept(shop: Database, file: SnapshotFile) -> Snapshot:
    with temporary_snapshot(shop.dsn, 60) as snapshot:
        shop.execute("INSERT INTO t VALUES (2)")
        return answer(file.start_keeper(shop.dsn, snapshot))


def answer(keeper: StartedKeeper) -> Snapshot:
    snapshot = keeper.answer(math.inf)
    assert snapshot is not None
    return snapshot


def test_the_snapshot_outlives_its_slot_until_it_is_released(
    shop: Database, tmp_path: Path
) -> None:
    file = SnapshotFile(tmp_path / "copies.snapshot")
    begun_at = time.time()
    snapshot = kept(shop, file)
    assert begun_at <= snapshot.taken_at <= time.time()
    assert snapshot == file.snapshot(), "a later run knows how old it is"
    # The server drops the slot when it has seen the end of the session.
    wait_until_none(shop, "SELECT count(*) FROM pg_replication_slots")
    for _ in range(2):
        with connect_sql(shop.dsn) as connection:
            assert import_snapshot(connection, snapshot) == snapshot
            assert connection.execute(COUNT.replace(" t", " public.t")).fetchall() == [(1,)]
    keeper = json.loads(file.path.read_text())["pid"]
    file.release()
    await_that(lambda: not is_running(keeper))
    wait_until_none(shop, SESSIONS)
    with connect_sql(shop.dsn) as connection, pytest.raises(SourceUnreachable, match="gone"):
        import_snapshot(connection, snapshot)


def test_a_snapshot_that_nobody_needs_is_given_up(shop: Database, tmp_path: Path) -> None:
    file = SnapshotFile(tmp_path / "copies.snapshot", kept_s=0.1)
    kept(shop, file)
    wait_until_none(shop, SESSIONS)
    await_that(lambda: file.snapshot() is None)


def test_another_snapshot_under_the_same_name_is_not_taken_for_it(
    shop: Database, tmp_path: Path
) -> None:
    """After a restart, the server may give the name to another snapshot."""
    with shop.connect() as other, connect_sql(shop.dsn) as connection:
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        ((name, sees),) = other.execute(
            "SELECT pg_export_snapshot(), txid_current_snapshot()::text"
        ).fetchall()
        position = kept(shop, file := SnapshotFile(tmp_path / "copies.snapshot")).position
        file.release()
        assert import_snapshot(connection, Snapshot(name, position, sees=sees)).sees == sees
        connection.execute("ROLLBACK")
        with pytest.raises(SourceUnreachable, match="gone"):
            import_snapshot(connection, Snapshot(name, position, sees="1:1:"))


def test_a_server_that_the_keeper_cannot_reach(tmp_path: Path) -> None:
    file = SnapshotFile(tmp_path / "copies.snapshot")
    with pytest.raises(SourceUnreachable, match="cannot be kept"):
        answer(file.start_keeper("host=/nowhere", Snapshot("00000003-1", position=1)))
    assert file.snapshot() is None


def test_a_keeper_that_does_not_answer_in_time_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the server answers, it would take the place of the next keeper."""
    monkeypatch.setenv("PGAPPNAME", str(tmp_path))
    file = SnapshotFile(tmp_path / "copies.snapshot", start_s=0.5)
    with socket.create_server(("localhost", 0)) as silent:
        dsn = f"host={','.join(['localhost'] * 9)} port={silent.getsockname()[1]}"  # 30 s each
        with pytest.raises(SourceUnreachable, match="it did not answer"):
            answer(file.start_keeper(dsn, Snapshot("00000003-1", position=1)))
        await_that(lambda: not keepers_named(str(tmp_path)))
    assert file.snapshot() is None


def test_a_keeper_that_cannot_write_its_file_says_so(shop: Database, tmp_path: Path) -> None:
    (taken := tmp_path / "copies.snapshot").mkdir()
    with (
        temporary_snapshot(shop.dsn, 60) as snapshot,
        pytest.raises(
            SourceUnreachable, match=r"copies\.snapshot cannot be written: Is a directory"
        ),
    ):
        answer(StartedKeeper(shop.dsn, snapshot, {"path": str(taken), "kept_s": 60}))
    assert [*tmp_path.iterdir()] == [taken], "nor is anything left of it"


def test_a_keeper_answers_a_process_with_many_files(shop: Database, tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as held:
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(4096, limits[0]), limits[1]))
        for _ in range(1100):
            held.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        kept(shop, file := SnapshotFile(tmp_path / "copies.snapshot"))
    file.release()


def keepers_named(application: str) -> list[psutil.Process]:
    """The processes that were started with PGAPPNAME; zombies have no environment."""
    named = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get("PGAPPNAME") == application:
                named.append(process)
    return named


def test_a_keeper_for_readers_ends_after_the_last_of_them(shop: Database) -> None:
    with temporary_snapshot(shop.dsn, 60) as snapshot:
        shared = keep_for_readers(shop.dsn, snapshot, 0.1)
    shop.execute("INSERT INTO t VALUES (2)")
    with connect_sql(shop.dsn) as first, connect_sql(shop.dsn) as second:
        for connection in (first, second):
            import_snapshot(connection, shared)
            assert connection.execute("SELECT count(*) FROM public.t").fetchall() == [(1,)]
        ((imported_at,),) = shop.execute("SELECT now()")
        wait_until_none(shop, f"{SESSIONS} AND query_start < '{imported_at}'")
    wait_until_none(shop, SESSIONS)
    with connect_sql(shop.dsn) as late, pytest.raises(SnapshotGone):
        import_snapshot(late, shared)


def test_a_keeper_sees_a_reader_that_is_faster_than_it_looks(shop: Database) -> None:
    with connect_sql(shop.dsn) as fast:
        with temporary_snapshot(shop.dsn, 60) as snapshot:
            shared = keep_for_readers(shop.dsn, snapshot, 0.1)
        import_snapshot(fast, shared)
    wait_until_none(shop, SESSIONS)


def test_a_keeper_starts_without_numpy_and_arrow() -> None:
    """A long copy waits until its keeper has started."""
    program = (
        "import sys, pgsluice.snapshots.keeper; print({'numpy', 'pyarrow'} & sys.modules.keys())"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert ran.stdout == b"set()\n"


PLANNER = """
from pgsluice.snapshots.keeper import keep_for_readers
from pgsluice.snapshots.snapshot import temporary_snapshot
with temporary_snapshot({dsn!r}, 60) as snapshot:
    keep_for_readers({dsn!r}, snapshot)
"""
DRIVER = """
import subprocess, sys
subprocess.run([sys.executable, "-c", {planner!r}], check=True)
print(flush=True)
input()
"""


def test_a_keeper_for_readers_ends_with_the_process_that_started_its_caller(
    shop: Database,
) -> None:
    program = DRIVER.format(planner=PLANNER.format(dsn=shop.dsn))
    driver = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert driver.stdout is not None
    assert driver.stdout.readline()
    assert shop.execute(SESSIONS) == [(1,)]
    driver.communicate(b"\n")
    wait_until_none(shop, SESSIONS)
