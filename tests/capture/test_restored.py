"""A server that was restored from a copy of its files, and a server that crashed.

Both have an acknowledged LSN below what the spool has. The first is refused, the second is not.
Each version has one server: its databases have different histories, all crash with it, and all are
restored with it.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.support.capturing import configure, confirmed, insert, inserted, numbers
from tests.support.clusters import CopiedServer
from tests.support.databases import Database

from pgsluice.capture import run_capture
from pgsluice.config import Config
from pgsluice.embedded import EmbeddedServer, npm
from pgsluice.errors import ForeignSource, PgsluiceError
from pgsluice.lsn import Lsn
from pgsluice.spool import Spool, SpoolReader, SpoolWriter

_SETTINGS = {"fsync": "off", "autovacuum": "off", "max_prepared_transactions": "9"}
_PREPARE = "BEGIN; INSERT INTO t VALUES (50, 'p'); PREPARE TRANSACTION '{name}'"


def _large(first: int) -> str:
    return insert(first, first + 999, "repeat('x', 400)")


@dataclass(frozen=True)
class History:
    """What happens in one database.

    Attributes:
        source: the settings of pgsluice's source.
        copied: before the copy is made; the copy has it.
        lost: after that; capture receives it, the restored server lacks it.
        rewritten: what is written to the restored server.
        adds_publication: before the server crashes, another one is requested, too.
        is_released: the spool's segments are deleted before the server is restored.
        is_brief: it is one of those that other versions than 18 have, too.
        since: the first version that can do it.
    """

    lost: Sequence[str] = (insert(101, 103),)
    rewritten: Sequence[str] = (insert(901, 903),)
    copied: Sequence[str] = ()
    source: dict[str, object] = field(default_factory=dict)
    adds_publication: bool = False
    is_released: bool = False
    is_brief: bool = False
    since: int = 12


HISTORIES = {
    "other commits": History(is_brief=True),
    "fewer commits": History(rewritten=()),
    "more commits": History(lost=("CREATE TABLE unsent AS SELECT 1 AS i",), is_brief=True),
    "released": History(is_released=True, is_brief=True),
    "another publication": History(adds_publication=True, is_brief=True),
    "streamed": History(lost=(_large(101),), rewritten=(_large(2001),), since=14),
    "prepared": History(
        copied=(_PREPARE,),
        lost=("COMMIT PREPARED '{name}'",),
        rewritten=("ROLLBACK PREPARED '{name}'",),
        source={"two_phase": True},
        is_brief=True,
        since=15,
    ),
    "prepared since": History(
        lost=(_PREPARE, "COMMIT PREPARED '{name}'"), source={"two_phase": True}, since=15
    ),
    "messages": History(
        lost=("SELECT pg_logical_emit_message(false, 'a', 'b')",),
        rewritten=("SELECT pg_logical_emit_message(false, 'c', 'd')",),
        source={"messages": True},
        since=14,
    ),
}


@dataclass
class Case:
    """A database with a history, and what capture did in it."""

    db: Database
    config: Config
    history: History
    had_to_compare: bool = False
    after_crash: list[bytes] = field(default_factory=list)
    rows: list[bytes] = field(default_factory=list)
    while_behind: PgsluiceError | None = None
    evidence: Lsn | None = None
    past: list[PgsluiceError | None] = field(default_factory=list)

    def execute(self, statements: Sequence[str]) -> None:
        for statement in statements:
            self.db.execute(*statement.format(name=self.db.name).split(";"))

    def request(self, publications: tuple[str, ...]) -> None:
        source = self.config.source.model_copy(update={"publications": publications})
        self.config = self.config.model_copy(update={"source": source})

    def capture(self) -> PgsluiceError | None:
        try:
            run_capture(self.config, once=True)
        except PgsluiceError as error:
            return error
        return None

    @property
    def reader(self) -> SpoolReader:
        return SpoolReader(self.config.spool.path)


def _begin(server: EmbeddedServer, path: Path) -> dict[str, Case]:
    cases = {}
    for number, (name, history) in enumerate(HISTORIES.items()):
        if history.since > server.programs.major or not (
            history.is_brief or server.programs.major == 18
        ):
            continue
        Database(server, "postgres").execute(f"CREATE DATABASE d{number}")
        db = Database(server, f"d{number}")
        db.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        config = configure(db, path / db.name)
        source = config.source.model_copy(update=history.source)
        cases[name] = case = Case(db, config.model_copy(update={"source": source}), history)
        assert case.capture() is None
    for case in cases.values():  # a new slot would wait for what is prepared
        case.execute([insert(1, 3), *case.history.copied])
        assert case.capture() is None
    return cases


def _crash(server: EmbeddedServer, cases: dict[str, Case], path: Path) -> None:
    """After a checkpoint each case gets changes, which are acknowledged; then the server crashes,
    and its slots stand where they were at the checkpoint. The server may have written a slot since
    then, for another reason: so these files are put back."""
    Database(server, "postgres").execute("CHECKPOINT")
    slots, kept = server.data_dir / "pg_replslot", path / "slots"
    subprocess.run(["cp", "-a", slots, kept], check=True)
    for case in cases.values():
        case.db.execute(insert(11, 13), _large(10_000), "CREATE TABLE no_change ()")
        assert case.capture() is None
        if case.history.adds_publication:
            case.db.execute("CREATE PUBLICATION more FOR TABLE no_change", insert(14, 14))
            case.request(("pgsluice", "more"))
            assert case.capture() is None
    server.stop("immediate")
    shutil.rmtree(slots)
    subprocess.run(["cp", "-a", kept, slots], check=True)
    server.start()
    for case in cases.values():
        case.had_to_compare = confirmed(case.db) < case.reader.frontier()
        case.db.execute(insert(21, 23))
        assert case.capture() is None
        case.after_crash = inserted(case.config)


def _restore(server: EmbeddedServer, cases: dict[str, Case], copied: Path) -> None:
    server.stop()
    subprocess.run(["cp", "-a", server.data_dir, copied], check=True)
    server.start()
    for case in cases.values():
        case.execute(case.history.lost)
        assert case.capture() is None
        case.rows = inserted(case.config)
        if case.history.is_released:
            with SpoolWriter(Spool.open(case.config.spool.path)) as writer:
                assert writer.release(writer.position)
    server.stop("immediate")
    shutil.rmtree(server.data_dir)
    subprocess.run(["cp", "-a", copied, server.data_dir], check=True)
    server.start()
    for case in cases.values():
        case.while_behind = case.capture()
        case.execute(case.history.rewritten)
    last = max(case.reader.frontier() for case in cases.values())
    postgres = Database(server, "postgres")
    while Lsn.parse(postgres.execute("SELECT pg_current_wal_flush_lsn()")[0][0]) <= last:
        postgres.execute("CREATE TABLE unsent ()", "SELECT pg_switch_wal()", "DROP TABLE unsent")
    for case in cases.values():
        case.db.execute(insert(9901, 9903))
        case.evidence = confirmed(case.db)
        case.past += [case.capture(), case.capture()]


def _version(version: int) -> object:
    """One worker makes and restores the servers of a version, which takes half a minute."""
    marks = [pytest.mark.xdist_group(f"restored {version}")]
    if version != 18:  # make soak AREA=long
        marks.append(pytest.mark.soak)
    return pytest.param(version, marks=marks)


@pytest.fixture(scope="module", params=map(_version, (18, 16, 12)), ids="pg{}".format)
def cases(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Case]]:
    version, path = request.param, tmp_path_factory.mktemp("restored")
    if version == 12 and (reason := npm.why_not(version)):
        pytest.skip(reason)
    with CopiedServer(version, settings=_SETTINGS) as server:
        cases = _begin(server, path)
        _crash(server, cases, path)
        _restore(server, cases, path / "copied")
        yield cases


def _named(cases: dict[str, Case], name: str) -> Case:
    if name not in cases:
        pytest.skip(f"on 18 only, or needs PostgreSQL {HISTORIES[name].since}")
    return cases[name]


@pytest.mark.parametrize("name", HISTORIES)
def test_a_crash_of_the_server_is_followed_without_a_word(cases, name):
    case = _named(cases, name)
    assert case.had_to_compare
    assert case.after_crash == [
        *numbers(1, 3), *numbers(11, 13), *numbers(10_000, 10_999),
        *(numbers(14, 14) if case.history.adds_publication else ()), *numbers(21, 23),
    ]  # fmt: skip


@pytest.mark.parametrize("name", HISTORIES)
def test_a_restored_source_is_refused_while_its_wal_ends_before_the_spools(cases, name):
    case = _named(cases, name)
    assert isinstance(case.while_behind, ForeignSource)
    assert "restored from an older state" in case.while_behind.what


@pytest.mark.parametrize("name", HISTORIES)
def test_a_restored_source_is_refused_when_it_has_written_past_the_spools_end(cases, name):
    case = _named(cases, name)
    for error in case.past:
        assert isinstance(error, ForeignSource), error
        assert "restored from an older state" in error.what
        assert "pgsluice drop CONFIG" in (error.hint or "")
    assert case.evidence == confirmed(case.db)
    if not case.history.is_released:
        assert inserted(case.config) == case.rows
