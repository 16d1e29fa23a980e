"""A slot that was made again by hand, a clone beside the source, and ``pg_resetwal``.

docs/failover.md says of each that it is refused.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.capturing import configure, insert, inserted, numbers
from tests.support.clusters import CopiedServer
from tests.support.databases import Database

from pgsluice.capture import run_capture
from pgsluice.config import Config
from pgsluice.embedded import EmbeddedServer
from pgsluice.errors import ForeignSource, Gap, SlotLost
from pgsluice.lsn import Lsn
from pgsluice.spool import SpoolReader

_SETTINGS = {"fsync": "off", "autovacuum": "off"}
_MAKE_SLOT = "SELECT pg_create_logical_replication_slot('{}', 'pgoutput')"


class _Clone(EmbeddedServer):
    """A server of the files of another one, which is stopped."""

    def __init__(self, original: EmbeddedServer) -> None:
        self._original = original
        super().__init__(original.programs.major, settings=original.settings)

    def create_cluster(self) -> None:
        subprocess.run(["cp", "-a", self._original.data_dir, self.data_dir], check=True)


class _Server(EmbeddedServer):
    """A server whose WAL can be reset."""

    def reset_wal(self) -> None:
        self.stop()
        self.run_program("pg_resetwal", "--force", str(self.data_dir))
        self.start()


@pytest.fixture
def db(database) -> Database:
    return _with_table(database())


def _with_table(db: Database) -> Database:
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    return db


@pytest.fixture
def original(each_server: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """A server of its own."""
    with CopiedServer(each_server.programs.major, settings=_SETTINGS) as server:
        yield server


def _follow(db: Database, path: Path) -> Config:
    config = configure(db, path)
    run_capture(config, once=True)
    db.execute(insert(1, 3))
    run_capture(config, once=True)
    return config


def _write_past(db: Database, lsn: Lsn) -> None:
    while Lsn.parse(db.execute("SELECT pg_current_wal_flush_lsn()")[0][0]) <= lsn:
        db.execute("CREATE TABLE unsent ()", "SELECT pg_switch_wal()", "DROP TABLE unsent")


@pytest.mark.parametrize("is_quiet", [True, False])
def test_a_slot_made_again_is_past_the_spools_end(db, tmp_path, is_quiet):
    config = _follow(db, tmp_path / "spool")
    db.execute(
        f"SELECT pg_drop_replication_slot('{db.name}')",
        *([] if is_quiet else [insert(4, 6)]),
        _MAKE_SLOT.format(db.name),
        insert(7, 9),
    )
    for _ in range(2):
        with pytest.raises(Gap, match="past the spool"):
            run_capture(config, once=True)
    assert inserted(config) == numbers(1, 3)


def test_a_clone_beside_the_source_is_refused_and_the_source_goes_on(original, tmp_path):
    Database(original, "postgres").execute("CREATE DATABASE shop")
    source = _with_table(Database(original, "shop"))
    config = _follow(source, tmp_path / "spool")
    original.stop()
    with _Clone(original) as server:
        original.start()
        clone = Database(server, "shop")
        astray = configure(clone, config.spool.path)
        source.execute(insert(11, 13))
        run_capture(config, once=True)
        with pytest.raises(ForeignSource, match="restored from an older state"):
            run_capture(astray, once=True)  # its WAL ends before the spool's
        clone.execute(insert(21, 23))
        _write_past(clone, SpoolReader(config.spool.path).frontier())
        clone.execute(insert(24, 26))
        with pytest.raises(ForeignSource, match="restored from an older state"):
            run_capture(astray, once=True)
        source.execute(insert(14, 16))
        run_capture(config, once=True)
        assert inserted(config) == [*numbers(1, 3), *numbers(11, 16)]


@pytest.mark.parametrize(("makes_slot", "error"), [(False, SlotLost), (True, Gap)])
def test_a_server_whose_wal_was_reset_is_refused(tmp_path, makes_slot, error):
    with _Server(18, settings=_SETTINGS) as server:
        Database(server, "postgres").execute("CREATE DATABASE shop")
        db = _with_table(Database(server, "shop"))
        config = _follow(db, tmp_path / "spool")
        server.reset_wal()
        if makes_slot:
            db.execute("SELECT pg_drop_replication_slot('shop')", _MAKE_SLOT.format("shop"))
        db.execute(insert(4, 6))
        for _ in range(2):
            with pytest.raises(error):
                run_capture(config, once=True)
        assert inserted(config) == numbers(1, 3)
