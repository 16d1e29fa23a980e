"""Verdicts from facts: each rule of ``check``, without a server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pgsluice.catalog import ServerInfo, SlotInfo
from pgsluice.lsn import Lsn
from pgsluice.monitor.examine import file_system_of, folder_problem
from pgsluice.monitor.findings import Finding, Level
from pgsluice.monitor.place_health import (
    EnvironmentFacts,
    SpoolFacts,
    judge_environment,
    judge_spool,
)
from pgsluice.monitor.source_health import (
    PublicationFacts,
    PublishedTable,
    ServerFacts,
    judge_publications,
    judge_role,
    judge_server,
    judge_slot,
    judge_tables,
)
from pgsluice.spark.java import Java

_INFO = ServerInfo(
    version_num=180004,
    version="18.4",
    system_id="1",
    database="shop",
    user="app",
    encoding="UTF8",
    wal_level="logical",
    max_replication_slots=10,
    used_replication_slots=1,
    max_wal_senders=10,
    used_wal_senders=1,
    max_slot_wal_keep_bytes=50 * 2**30,
    is_standby=False,
    is_superuser=False,
    has_replication=True,
    may_create=True,
)
_SERVER = ServerFacts(_INFO, 60_000, False)
_SLOT = SlotInfo(
    name="s",
    plugin="pgoutput",
    database="shop",
    is_temporary=False,
    is_active=False,
    active_pid=None,
    restart_lsn=Lsn(100),
    confirmed_flush_lsn=Lsn(200),
    retained_bytes=100,
    wal_status="reserved",
    invalidation_reason=None,
    two_phase=False,
    failover=False,
    is_synced=False,
)
_TABLE = PublishedTable(
    schema="public",
    name="t",
    has_identity=True,
    is_full=False,
    has_key=True,
    may_select=True,
    may_use_schema=True,
    sends_updates=True,
)
_SPOOL = SpoolFacts("/var/spool", None, "ext4", 2**40)


def _server(**changes: Any) -> ServerFacts:
    return replace(_SERVER, info=replace(_INFO, **changes))


def _not_ok(findings: Any) -> list[Finding]:
    return [one for one in findings if one.level is not Level.OK]


def test_every_finding_that_is_not_fine_says_what_to_do() -> None:
    bad = _server(wal_level="minimal", used_replication_slots=10, used_wal_senders=10)
    findings = _not_ok(judge_server(bad, slot_exists=False))
    assert [one.level for one in findings] == [Level.ERROR] * 3
    assert all(one.todo for one in findings)


def test_a_fit_server() -> None:
    assert _not_ok(judge_server(_SERVER, slot_exists=False)) == []
    assert _not_ok(judge_role(_SERVER, None)) == []


@pytest.mark.parametrize(
    ("used", "slot_exists", "level"),
    [
        (8, False, Level.OK),
        (9, False, Level.WARNING),
        (10, False, Level.ERROR),
        (9, True, Level.OK),
        (10, True, Level.WARNING),
    ],
)
def test_a_copy_needs_one_slot_more(used: int, slot_exists: bool, level: Level) -> None:
    findings = judge_server(_server(used_replication_slots=used), slot_exists=slot_exists)
    (found,) = [one for one in findings if one.subject == "max_replication_slots"]
    assert found.level is level


@pytest.mark.parametrize(
    ("facts", "subject"),
    [
        (_server(max_slot_wal_keep_bytes=None), "max_slot_wal_keep_size"),
        (_server(max_slot_wal_keep_bytes=2**20), "max_slot_wal_keep_size"),
        (replace(_SERVER, wal_sender_timeout_ms=1000), "wal_sender_timeout"),
        (replace(_SERVER, is_behind_pooler=True), "connection"),
    ],
)
def test_what_may_hurt_later_is_a_warning(facts: ServerFacts, subject: str) -> None:
    (found,) = _not_ok(judge_server(facts, slot_exists=True))
    assert (found.level, found.subject) == (Level.WARNING, subject)


def test_before_13_slots_have_no_limit_to_set() -> None:
    old = _server(version_num=120022, max_slot_wal_keep_bytes=None)
    assert _not_ok(judge_server(old, slot_exists=True)) == []


def test_a_refused_replication_connection_points_at_hba_and_poolers() -> None:
    (found,) = judge_role(_SERVER, "unsupported startup parameter: replication")
    assert found.level is Level.ERROR
    assert "pooler" in (found.todo or "")


@pytest.mark.parametrize(
    ("slot", "frontier", "level", "said"),
    [
        (None, None, Level.OK, "not there yet"),
        (None, Lsn(200), Level.ERROR, "it is gone"),
        (_SLOT, Lsn(200), Level.OK, "holds 100 B"),
        (replace(_SLOT, active_pid=7), Lsn(200), Level.OK, "in use by process 7"),
        (_SLOT, None, Level.WARNING, "has not used it"),
        (_SLOT, Lsn(199), Level.ERROR, "moved to 0/C8, past the spool's 0/C7"),
        (replace(_SLOT, plugin=None), None, Level.ERROR, "a physical slot"),
        (replace(_SLOT, plugin="wal2json"), None, Level.ERROR, "a slot of wal2json"),
        (replace(_SLOT, database="other"), None, Level.ERROR, "the database other"),
        (replace(_SLOT, wal_status="lost"), Lsn(200), Level.ERROR, "is lost"),
        (
            replace(_SLOT, invalidation_reason="idle_timeout"),
            Lsn(200),
            Level.ERROR,
            "is lost",
        ),
        (replace(_SLOT, wal_status="unreserved"), Lsn(200), Level.WARNING, "soon more than"),
    ],
)
def test_slots(slot: SlotInfo | None, frontier: Lsn | None, level: Level, said: str) -> None:
    found = judge_slot(slot, _SERVER, frontier=frontier)
    assert found.level is level
    assert said in found.what


def test_publications() -> None:
    missing = PublicationFacts((), ("p",), (), "CREATE PUBLICATION p")
    assert _not_ok(judge_publications(missing, _SERVER)) == []
    (found,) = judge_publications(missing, _server(may_create=False))
    assert found.todo == 'GRANT CREATE ON DATABASE "shop" TO "app";'
    (found,) = judge_publications(replace(missing, foreign_tables=("a.b",)), _SERVER)
    assert found.todo == "as the owner, or a superuser:\nCREATE PUBLICATION p"


def test_tables() -> None:
    assert _not_ok(judge_tables([_TABLE], "app")) == []
    bare = replace(_TABLE, has_identity=False)
    (found,) = _not_ok(judge_tables([bare], "app"))
    assert (found.level, found.subject) == (Level.ERROR, "replica identity")
    (found,) = _not_ok(judge_tables([replace(bare, sends_updates=False)], "app"))
    assert found.level is Level.WARNING
    (found,) = _not_ok(judge_tables([_TABLE, replace(_TABLE, name="T")], "app"))
    assert found.what.startswith("public.t and public.T are equal but for")
    (found,) = judge_tables([], "app")
    assert found.level is Level.WARNING


def test_names_in_grants_are_quoted() -> None:
    odd = replace(_TABLE, name='a"b', may_select=False)
    (found,) = _not_ok(judge_tables([odd], 'we"ird'))
    assert found.todo == 'GRANT SELECT ON "public"."a""b" TO "we""ird";'


@pytest.mark.parametrize(
    ("facts", "is_shared", "master", "level", "said"),
    [
        (_SPOOL, False, "local[*]", Level.OK, "can be written"),
        (replace(_SPOOL, problem="read-only"), False, "local", Level.ERROR, "read-only"),
        (replace(_SPOOL, other_source="slot x"), False, "local", Level.ERROR, "slot x"),
        (replace(_SPOOL, file_system="tmpfs"), False, "local", Level.WARNING, "in memory"),
        (replace(_SPOOL, file_system="nfs4"), False, "local", Level.WARNING, "another machine"),
        (replace(_SPOOL, file_system="nfs4"), True, "yarn", Level.OK, "can be written"),
        (_SPOOL, True, "yarn", Level.WARNING, "said to be shared"),
        (replace(_SPOOL, free_bytes=2**20), False, "local", Level.WARNING, "1.0 MiB left"),
    ],
)
def test_spools(facts: SpoolFacts, is_shared: bool, master: str, level: Level, said: str) -> None:
    (found,) = judge_spool(facts, max_bytes=None, is_shared=is_shared, master=master)
    assert found.level is level
    assert said in found.what


def test_what_is_installed() -> None:
    java = Java(Path("/usr/bin/java"), 17)
    assert _not_ok(judge_environment(EnvironmentFacts(java, "4.2.1", "1.6"))) == []
    nothing = _not_ok(judge_environment(EnvironmentFacts(None, None, None)))
    assert [one.subject for one in nothing] == ["java", "pyspark", "deltalake"]
    old = _not_ok(judge_environment(EnvironmentFacts(replace(java, version=11), "4.1.0", "1")))
    assert [one.subject for one in old] == ["java", "pyspark"]


def test_a_file_system_is_that_of_the_deepest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
        f"2 1 0:5 / {tmp_path} rw - tmpfs tmpfs rw\n"
        f"3 2 0:6 / {tmp_path}/a\\040b rw shared:1 - nfs4 host:/x rw\n"
        "nonsense\n"
    )
    (tmp_path / "a b").mkdir()
    assert file_system_of(tmp_path / "a b" / "spool", mounts) == "nfs4"
    assert file_system_of(tmp_path / "c", mounts) == "tmpfs"
    assert file_system_of(Path("/"), mounts) == "ext4"
    assert file_system_of(tmp_path, tmp_path / "none") is None


def test_a_folder_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    assert folder_problem(tmp_path) is None
    assert folder_problem(tmp_path / "not" / "there") is None
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    assert folder_problem(tmp_path / "file" / "x") == f"{tmp_path}/file is not a folder"
