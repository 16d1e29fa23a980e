"""Each check of ``pgsluice check`` on facts made by hand, without a server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pgsluice.capture.source.timeline import History, Received
from pgsluice.catalog.rights import TableRights
from pgsluice.catalog.server import ServerInfo, SlotInfo
from pgsluice.catalog.tables.keys import UniqueIndex
from pgsluice.config import Config, parse_config, parse_sink
from pgsluice.definitions.published import PublishedBy, PublishedRelation
from pgsluice.definitions.source_tables import SourceCatalog, SourceColumn, SourceTable
from pgsluice.lsn import Lsn
from pgsluice.monitor.source_status import CaptureStatus
from pgsluice.preflight.checks import LOCAL_CHECKS, SOURCE_CHECKS
from pgsluice.preflight.facts import (
    ColumnType,
    ConfiguredKey,
    ConnectionLimit,
    LocalFacts,
    PublicationFacts,
    PublishedTable,
    ReplicationFacts,
    SourceFacts,
    SpoolFacts,
    TargetFacts,
)
from pgsluice.preflight.findings import Finding, Level
from pgsluice.preflight.gathering.local import file_system_of, folder_problem
from pgsluice.preflight.local import (
    check_capture,
    check_copy_cores,
    check_environment,
    check_failing_tables,
    check_incomplete_targets,
    check_spool,
    check_targets,
    check_variants,
)
from pgsluice.preflight.publications import (
    check_binary,
    check_column_lists,
    check_generated_columns,
    check_publications,
)
from pgsluice.preflight.server import (
    check_connection,
    check_connections,
    check_limits,
    check_options,
    check_role,
    check_slots_and_walsenders,
    check_wal_level,
)
from pgsluice.preflight.slot import check_failover, check_slot, check_timeline
from pgsluice.preflight.tables import (
    check_column_names,
    check_keys,
    check_privileges,
    check_replica_identity,
    check_row_security,
    check_table_names,
)
from pgsluice.replication import SystemIdentity, TimelineSwitch
from pgsluice.spark.session.java import Java
from pgsluice.spool import (
    FormerTarget,
    Owner,
    SpoolIdentity,
    SubscriptionRecord,
    TableRecord,
    TableState,
)

_CONFIG = parse_config(
    """
[source]
dsn = "host=db dbname=shop"
slot = "s"
[spool]
path = "/var/spool"
[[subscription]]
name = "lake"
sink = { type = "delta", path = "/lake/{schema}/{table}" }
""",
    Path("/etc/pgsluice.toml"),
)
_YARN = '[spark]\n"spark.master" = "yarn"\n'
_INFO = ServerInfo(
    version_num=180004,
    version="18.4",
    database="shop",
    user="app",
    wal_level="logical",
    max_replication_slots=10,
    used_replication_slots=1,
    max_wal_senders=10,
    used_wal_senders=1,
    max_slot_wal_keep_bytes=50 * 2**30,
    idle_slot_timeout_s=None,
    is_standby=False,
    has_replication=True,
    may_create=True,
    is_read_only=False,
)
_SYSTEM = SystemIdentity("1", 1, "shop")
_SLOT = SlotInfo(
    name="s",
    plugin="pgoutput",
    database="shop",
    is_temporary=False,
    is_active=False,
    active_pid=None,
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
    sends_updates=True,
)
_RIGHTS = TableRights("app", "public", "t", True, True, True)
_SPOOL = SpoolFacts("/var/spool", None, "ext4", 2**40)
_IDENTITY = SpoolIdentity(
    spool_id="a", system_identifier="1", timeline=1, database="shop", slot="s"
)
_SOURCE = SourceFacts(
    config=_CONFIG,
    spool=_SPOOL,
    server=_INFO,
    wal_sender_timeout_ms=60_000,
    is_behind_pooler=False,
    is_awaited=False,
    connection_limits=(ConnectionLimit("max_connections", "ALTER … {};", 97, 85),),
    replication=ReplicationFacts(_SYSTEM),
    slot=_SLOT,
    publications=PublicationFacts((), ("p",), (), "CREATE PUBLICATION p"),
    tables=(_TABLE,),
    rights=(_RIGHTS,),
    column_types=None,
    catalog=SourceCatalog({}),
    sent={},
)
_LOCAL = LocalFacts(_CONFIG, _SPOOL, _SYSTEM, (), Java(Path("/usr/bin/java"), 17), "4.2.1", "1.6")


def _server(**changes: Any) -> SourceFacts:
    return replace(_SOURCE, server=replace(_INFO, **changes))


def _received(frontier: Lsn) -> SpoolFacts:
    return replace(_SPOOL, identity=_IDENTITY, received=Received(History(1), Lsn(150), frontier))


def _configured(more: str) -> Config:
    """The configuration with another section, or more keys of the last one."""
    text = '[source]\ndsn = "host=db"\nslot = "s"\n[spool]\npath = "/var/spool"\n'
    return parse_config(text + more, Path("/etc/pgsluice.toml"))


def _not_ok(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level is not Level.OK]


@pytest.mark.parametrize("check", SOURCE_CHECKS)
def test_a_source_that_is_ready(check: Callable[[SourceFacts], Iterable[Finding]]) -> None:
    received = replace(_SOURCE, spool=_received(Lsn(200)))
    assert _not_ok(check(received)) == []


@pytest.mark.parametrize("check", LOCAL_CHECKS)
def test_a_machine_that_is_ready(check: Callable[[LocalFacts], Iterable[Finding]]) -> None:
    assert _not_ok(check(_LOCAL)) == []


@pytest.mark.parametrize("check", SOURCE_CHECKS)
def test_every_finding_that_is_not_ok_says_what_to_do(
    check: Callable[[SourceFacts], Iterable[Finding]],
) -> None:
    bad = replace(
        _server(
            wal_level="minimal",
            used_replication_slots=10,
            used_wal_senders=10,
            max_slot_wal_keep_bytes=None,
            has_replication=False,
            may_create=False,
        ),
        is_awaited=True,
        slot=replace(_SLOT, plugin=None),
        tables=(replace(_TABLE, has_identity=False, same_names=("A and a",)),),
        rights=(replace(_RIGHTS, may_select=False, sees_all_rows=False),),
    )
    assert all(finding.todo for finding in _not_ok(check(bad)))


def test_the_wal_level() -> None:
    (finding,) = check_wal_level(_server(wal_level="replica"))
    assert (finding.level, finding.what) == (
        Level.ERROR,
        "the server's wal_level is replica, but logical replication needs wal_level = logical",
    )


@pytest.mark.parametrize(
    ("used", "slot", "level"),
    [
        (8, None, Level.OK),
        (9, None, Level.WARNING),
        (10, None, Level.ERROR),
        (9, _SLOT, Level.OK),
        (10, _SLOT, Level.WARNING),
    ],
)
def test_a_copy_needs_one_more_slot(used: int, slot: SlotInfo | None, level: Level) -> None:
    facts = replace(_server(used_replication_slots=used), slot=slot)
    finding, _ = check_slots_and_walsenders(facts)
    assert (finding.subject, finding.level) == ("max_replication_slots", level)


def test_a_run_needs_a_connection_for_each_of_the_copy_workers() -> None:
    limits = (
        ConnectionLimit("max_connections", "SET {};", 100, 88),
        ConnectionLimit("the limit of app", 'ALTER ROLE "a{pp" CONNECTION LIMIT {};', 3, 1),
    )
    facts = replace(_SOURCE, connection_limits=limits)
    (finding,) = check_connections(facts)
    assert finding.level is Level.WARNING
    assert finding.what.startswith(
        "the limit of app allows 3 connections, and 1 of them are in use: `pgsluice run` opens up "
        "to 12"
    )
    assert finding.todo == 'lower copy_workers, or ALTER ROLE "a{pp" CONNECTION LIMIT 13;'


@pytest.mark.parametrize(
    ("facts", "subject"),
    [
        (_server(max_slot_wal_keep_bytes=None), "max_slot_wal_keep_size"),
        (_server(max_slot_wal_keep_bytes=2**20), "max_slot_wal_keep_size"),
        (_server(idle_slot_timeout_s=3600.0), "idle_replication_slot_timeout"),
        (replace(_SOURCE, wal_sender_timeout_ms=1000), "wal_sender_timeout"),
        (replace(_SOURCE, is_behind_pooler=True), "connection"),
    ],
)
def test_a_risk_is_a_warning(facts: SourceFacts, subject: str) -> None:
    (finding,) = _not_ok([*check_connection(facts), *check_limits(facts)])
    assert (finding.level, finding.subject) == (Level.WARNING, subject)


def test_before_13_slots_have_no_limit_to_set() -> None:
    old = _server(version_num=120022, max_slot_wal_keep_bytes=None)
    assert list(check_limits(old)) == []


def test_a_refused_replication_connection_points_at_hba_and_poolers() -> None:
    problem = ReplicationFacts(problem="unsupported startup parameter: replication")
    (finding,) = check_role(replace(_SOURCE, replication=problem))
    assert finding.level is Level.ERROR
    assert "pooler" in (finding.todo or "")


@pytest.mark.parametrize(
    ("slot", "frontier", "level", "text"),
    [
        (None, None, Level.OK, "does not exist yet"),
        (None, Lsn(200), Level.ERROR, "the slot no longer exists"),
        (_SLOT, Lsn(200), Level.OK, "holds 100 B"),
        (replace(_SLOT, active_pid=7), Lsn(200), Level.OK, "in use by the server's process 7"),
        (_SLOT, None, Level.WARNING, "has never used it"),
        (_SLOT, Lsn(199), Level.ERROR, "is at 0/C8, past the spool's end 0/C7"),
        (replace(_SLOT, plugin=None), None, Level.ERROR, "is a physical slot"),
        (replace(_SLOT, plugin="wal2json"), None, Level.ERROR, "(plugin wal2json)"),
        (replace(_SLOT, database="other"), None, Level.ERROR, "belongs to database other"),
        (replace(_SLOT, wal_status="lost"), Lsn(200), Level.ERROR, "is lost: its WAL was removed"),
        (
            replace(_SLOT, invalidation_reason="rows_removed"),
            Lsn(200),
            Level.ERROR,
            "is lost: rows_removed",
        ),
        (replace(_SLOT, wal_status="unreserved"), Lsn(200), Level.WARNING, "may remove this WAL"),
        (replace(_SLOT, inactive_since=time.time()), Lsn(200), Level.OK, "not in use since"),
        (replace(_SLOT, inactive_since=0.0), Lsn(200), Level.WARNING, "since 1970-01-01 00:00:00"),
    ],
)
def test_a_slot_is_judged_as_capture_does(
    slot: SlotInfo | None, frontier: Lsn | None, level: Level, text: str
) -> None:
    spool = _SPOOL if frontier is None else _received(frontier)
    (finding,) = check_slot(replace(_SOURCE, slot=slot, spool=spool))
    assert finding.level is level
    assert text in finding.what


@pytest.mark.parametrize(
    ("slot", "standbys", "text"),
    [
        (None, {}, ""),
        (_SLOT, {}, ""),
        (_SLOT, {"one": True}, "slot s is not a failover slot"),
        (replace(_SLOT, failover=True), {"one": True, "two": False}, "sends nothing to slot"),
        (replace(_SLOT, failover=True), {"one": True, "two": True}, ""),
        (replace(_SLOT, failover=True), {"one": True}, "sends nothing to slot"),
    ],
)
def test_what_a_failover_needs(slot: SlotInfo | None, standbys: dict[str, bool], text: str) -> None:
    facts = replace(_SOURCE, slot=slot, standby_slots=standbys, awaited_slots=("one", "two"))
    assert [text in finding.what for finding in _not_ok(check_failover(facts))] == [True] * bool(
        text
    )
    before_17 = replace(facts, server=replace(_INFO, version_num=160009), awaited_slots=())
    assert list(check_failover(before_17)) == []


def test_that_a_new_slot_is_a_failover_slot_is_said() -> None:
    (finding,) = check_slot(replace(_SOURCE, slot=None))
    assert "creates it as a failover slot" in finding.what
    before_17 = replace(_INFO, version_num=160009)
    (finding,) = check_slot(replace(_SOURCE, slot=None, server=before_17))
    assert "failover" not in finding.what


def test_missing_files_of_the_spool_are_named_as_the_cause() -> None:
    without_frontier = replace(_received(Lsn(199)), has_frontier=False)
    (finding,) = check_slot(replace(_SOURCE, slot=_SLOT, spool=without_frontier))
    assert "frontier.json is missing" in finding.what
    assert "restore the spool's file frontier.json from a backup" in (finding.todo or "")
    unreadable = replace(_SPOOL, unreadable="identity.json is missing", way_out="restore the file")
    (finding,) = check_slot(replace(_SOURCE, slot=_SLOT, spool=unreadable))
    assert finding.level is Level.OK, "nothing says that the slot is somebody else's"
    (finding,) = check_spool(replace(_LOCAL, spool=unreadable))
    assert (finding.level, finding.todo) == (Level.ERROR, "restore the file")


@pytest.mark.parametrize(
    ("switch_point", "level", "text"),
    [
        (160, Level.OK, "2: the next run continues there from 0/A0"),
        (140, Level.ERROR, "the server lacks changes that pgsluice has replicated"),
    ],
)
def test_a_promotion(switch_point: int, level: Level, text: str) -> None:
    promoted = ReplicationFacts(
        replace(_SYSTEM, timeline=2), (TimelineSwitch(1, Lsn(switch_point)),)
    )
    facts = replace(_SOURCE, replication=promoted, spool=_received(Lsn(200)))
    (finding,) = check_timeline(facts)
    assert finding.level is level
    assert text in finding.what
    assert list(check_timeline(replace(facts, spool=_SPOOL))) == []


def test_publications() -> None:
    (finding,) = check_publications(_SOURCE)
    assert finding.level is Level.OK
    (finding,) = check_publications(_server(may_create=False))
    assert finding.todo == "GRANT CREATE ON DATABASE shop TO app;"
    (finding,) = check_publications(_server(is_standby=True))
    assert finding.todo == "-- run on the primary:\nCREATE PUBLICATION p"
    foreign = replace(_SOURCE.publications, foreign_tables=("a.b",))
    (finding,) = check_publications(replace(_SOURCE, publications=foreign))
    assert finding.todo == (
        "-- run as a superuser, or as the owner of the tables:\nCREATE PUBLICATION p"
    )


def test_publications_of_a_role_whose_sessions_may_not_write() -> None:
    read_only = _server(is_read_only=True)
    (finding,) = check_publications(read_only)
    assert finding.level is Level.ERROR
    assert finding.what.startswith(
        "publication p does not exist, and sessions of role app may not write (default_"
    )
    let_write = "ALTER ROLE app IN DATABASE shop SET default_transaction_read_only = off;"
    assert finding.todo == let_write
    ours = PublicationFacts(("p",), (), (), "", ours=("p",))
    _, finding = check_publications(replace(read_only, publications=ours))
    assert (finding.level, finding.todo) == (Level.WARNING, let_write)
    assert finding.what.startswith("pgsluice cannot add later tables to the publications p, since")
    users_own = PublicationFacts(("p",), (), (), "")
    assert not _not_ok(check_publications(replace(read_only, publications=users_own)))


def test_what_the_first_run_would_refuse() -> None:
    taken = replace(_SOURCE.publications, problem="p_insert was not created by pgsluice")
    (finding,) = check_publications(replace(_SOURCE, publications=taken))
    assert (finding.level, finding.what) == (Level.ERROR, taken.problem)


def test_publications_that_others_own() -> None:
    theirs = PublicationFacts(("p",), (), (), "", of_others=("p", 'p"2'))
    _, finding = check_publications(replace(_SOURCE, publications=theirs))
    assert finding.level is Level.WARNING
    assert finding.todo == (
        'ALTER PUBLICATION p OWNER TO app;\nALTER PUBLICATION "p""2" OWNER TO app;'
    )
    left = PublicationFacts(("p",), (), (), "", left=("ALTER PUBLICATION p ADD TABLE t",))
    _, finding = check_publications(replace(_SOURCE, publications=left))
    assert finding.todo == "ALTER PUBLICATION p ADD TABLE t;"


def _sent(*lists: tuple[str, ...] | None) -> SourceFacts:
    """A table whose publications have these column lists; g and v are generated."""
    columns = (
        SourceColumn("a", 23),
        SourceColumn("g", 23, generated="s"),
    )
    by = tuple(PublishedBy(f"p{n}", frozenset(), names, None) for n, names in enumerate(lists))
    return replace(
        _SOURCE,
        sent={1: PublishedRelation(1, "public", "t", "r", by, 1)},
        catalog=SourceCatalog({1: SourceTable(1, "public", "t", columns=columns)}),
    )


def test_column_lists_that_differ() -> None:
    assert not list(check_column_lists(_sent(("a",), ("a",))))
    (finding,) = check_column_lists(_sent(("a",), ("a", "g")))
    assert finding.level is Level.ERROR
    assert finding.what == (
        'cannot use different column lists for table "public.t" in different publications'
    )


def test_generated_columns_that_are_not_sent() -> None:
    assert not list(check_generated_columns(_sent(("a", "g"))))
    assert not list(check_generated_columns(_sent(("a",)))), "a list leaves it out on purpose"
    (finding,) = check_generated_columns(_sent(None))
    assert "table public.t: the target will lack the generated column(s) g" in finding.what
    assert "`pgsluice check CONFIG`" in (finding.todo or ""), "there is no publication yet"
    made = replace(_sent(None), publications=PublicationFacts(("p0",), (), (), ""))
    (finding,) = check_generated_columns(made)
    assert finding.todo == (
        "to receive these columns:\nALTER PUBLICATION p0 SET (publish_generated_columns = stored);"
    )
    older = replace(made, server=replace(_INFO, version_num=160004))
    (finding,) = check_generated_columns(older)
    assert "publish_generated_columns" not in (finding.todo or "")


def test_options_that_the_server_does_not_have() -> None:
    config = _configured("").model_copy(
        update={"source": _CONFIG.source.model_copy(update={"two_phase": True})}
    )
    facts = replace(_server(version_num=140000), config=config)
    (finding,) = check_options(facts)
    assert (finding.level, finding.subject) == (Level.ERROR, "options")
    assert not list(check_options(replace(facts, server=_INFO)))
    (finding,) = check_slot(replace(_SOURCE, config=config))
    assert "two_phase = false" in finding.what


def test_what_is_in_captures_way() -> None:
    assert not list(check_capture(_LOCAL))
    full = CaptureStatus(True, "waiting for room in the spool", message="it is at its limit")
    (finding,) = check_capture(replace(_LOCAL, capture=full))
    assert finding.level is Level.WARNING
    assert finding.what == "waiting for room in the spool: it is at its limit"
    again = CaptureStatus(True, "reconnecting", message="refused\n  → do this", times=7)
    (finding,) = check_capture(replace(_LOCAL, capture=again))
    assert (finding.what, finding.todo) == ("reconnecting, 7 times in a row: refused", "do this")


def test_an_object_store_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "s3cret",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    problem = parse_sink({"type": "delta", "path": "s3://lake/{schema}/{table}"}).why_unreachable()
    assert problem is not None
    assert "127.0.0.1:1" in problem
    assert problem.isprintable()
    assert "s3cret" not in problem
    assert parse_sink({"type": "delta", "path": "/lake/{table}"}).why_unreachable() is None


_SECTION = '[[subscription]]\nname = "{}"\nsink = {{ type = "delta", path = "/{}/{{table}}" }}\n'
_NEEDS_KEY = 'deleted_column = "gone_at"'


def test_replica_identities() -> None:
    without = replace(_TABLE, has_identity=False)
    (finding,) = check_replica_identity(replace(_SOURCE, tables=(without,)))
    assert finding.level is Level.ERROR
    insert_only = replace(without, sends_updates=False)
    (finding,) = check_replica_identity(replace(_SOURCE, tables=(insert_only,)))
    assert finding.level is Level.WARNING
    full = replace(_SOURCE, tables=(replace(_TABLE, is_full=True, has_key=False),))
    assert not list(check_replica_identity(full)), "whole old rows identify rows"
    for needs_key in (_NEEDS_KEY, 'mode = "history"'):
        section = _SECTION + needs_key + "\n"
        alone = _configured(section.format("a", "a"))
        (finding,) = check_replica_identity(replace(full, config=alone))
        assert finding.what.endswith("parks the table: public.t")
        keyed = section.format("a", "a") + 'key = { "public.t" = ["a", "b"] }\n'
        assert not list(check_replica_identity(replace(full, config=_configured(keyed))))
        another = _configured(keyed + section.format("b", "b"))
        assert list(check_replica_identity(replace(full, config=another))) == [finding]


def test_a_key_is_proposed_that_can_be_one() -> None:
    keyless = replace(_TABLE, is_full=True, has_key=False)
    proved = replace(keyless, name="u", unique=UniqueIndex("U", ("a", "b")))
    config = _configured(_SECTION.format("a", "a") + _NEEDS_KEY)
    (finding,) = check_replica_identity(replace(_SOURCE, tables=(keyless, proved), config=config))
    assert finding.todo == (
        'set key = { "public.u" = ["a", "b"] } in the subscription\n'
        "choose columns that identify each row of public.t, and make them its primary key: no "
        "unique index has only columns that are NOT NULL"
    )
    inserts = replace(_TABLE, has_identity=False, has_key=False, sends_updates=False)
    indexed = replace(inserts, name="u", unique=UniqueIndex("U", ("a",)))
    (finding,) = check_replica_identity(replace(_SOURCE, tables=(indexed,)))
    assert finding.todo == (
        "to receive the updates and deletes of a table:\n"
        'ALTER TABLE public.u REPLICA IDENTITY USING INDEX "U";'
    )
    (finding,) = check_replica_identity(replace(_SOURCE, tables=(inserts,)))
    assert finding.todo == (
        "to receive the updates and deletes of a table:\n"
        "choose columns that identify each row of public.t, and make them its primary key: no "
        "unique index has only columns that are NOT NULL. If there are none:\n"
        "ALTER TABLE public.t REPLICA IDENTITY FULL;"
    )


def test_configured_keys() -> None:
    key = ConfiguredKey("lake", "public", "t", ("a", "B"), "t_unique", is_shared=False)
    (finding,) = check_keys(replace(_SOURCE, keys=(key,)))
    assert finding.level is Level.OK
    assert finding.what == (
        'subscription "lake": the key (a, B) of table public.t is unique by index t_unique'
    )
    (finding,) = check_keys(replace(_SOURCE, keys=(replace(key, index=None),)))
    assert finding.level is Level.WARNING
    assert finding.todo == (
        'ALTER TABLE public.t ALTER a SET NOT NULL, ALTER "B" SET NOT NULL;\n'
        'CREATE UNIQUE INDEX ON public.t (a, "B");'
    )
    of_parts = replace(key, columns=("a",), index=None, lacking=("B",))
    (finding,) = check_keys(replace(_SOURCE, keys=(of_parts,)))
    assert (finding.todo or "").startswith(
        'add the partition columns to `key` in the subscription: ["a", "B"];'
    )
    assert (finding.todo or "").endswith('CREATE UNIQUE INDEX ON public.t (a, "B");')
    shared = replace(key, index=None, is_shared=True)
    (finding,) = check_keys(replace(_SOURCE, keys=(shared,)))
    assert (finding.level, "is not unique" in finding.what) == (Level.ERROR, True)


def test_names_that_differ_only_in_case() -> None:
    (finding,) = check_table_names(replace(_SOURCE, tables=(_TABLE, replace(_TABLE, name="T"))))
    assert finding.what.startswith("the names of the tables public.t and public.T differ only")
    columns = replace(_TABLE, same_names=("A and a",))
    (finding,) = check_column_names(replace(_SOURCE, tables=(columns,)))
    assert finding.level is Level.ERROR


def test_privileges() -> None:
    (finding,) = check_privileges(replace(_SOURCE, tables=()))
    assert (finding.level, finding.subject) == (Level.WARNING, "tables")
    odd = replace(_RIGHTS, role='we"ird', name='a"b', may_select=False)
    (finding,) = check_privileges(replace(_SOURCE, rights=(odd,)))
    assert finding.todo == 'GRANT SELECT ON public."a""b" TO "we""ird";', "names are quoted"
    odd = replace(_RIGHTS, role="a\nb", namespace="\u202ex\\", may_use_schema=False)
    (finding,) = check_privileges(replace(_SOURCE, rights=(odd,)))
    assert finding.todo == r'GRANT USAGE ON SCHEMA U&"\202Ex\\" TO U&"a\000Ab";'


def test_row_level_security() -> None:
    assert not list(check_row_security(_SOURCE))
    (finding,) = check_row_security(
        replace(_SOURCE, rights=(replace(_RIGHTS, sees_all_rows=False),))
    )
    assert (finding.level, finding.subject) == (Level.ERROR, "row level security")
    assert "public.t" in finding.what
    assert finding.todo == "ALTER ROLE app BYPASSRLS;"


def test_binary_forms() -> None:
    sent = ColumnType(1, "c", "public.t.c (x)", "x", is_sent=True, is_inside=False, is_read=True)
    unsendable = replace(sent, is_sent=False, is_inside=True)
    as_text = replace(sent, is_sent=False)
    unreadable = replace(sent, is_read=False)
    for column_type, level in (
        (sent, Level.OK),
        (as_text, Level.OK),
        (unsendable, Level.ERROR),
        (unreadable, Level.WARNING),
    ):
        (finding,) = check_binary(replace(_SOURCE, column_types=(column_type,)))
        assert finding.level is level


@pytest.mark.parametrize(
    ("changes", "more", "level", "text"),
    [
        ({}, "", Level.OK, "is writable"),
        ({"problem": "read-only"}, "", Level.ERROR, "read-only"),
        (
            {"unreadable": "damaged"},
            "",
            Level.ERROR,
            "cannot read the spool in /var/spool: damaged",
        ),
        ({"identity": replace(_IDENTITY, slot="x")}, "", Level.ERROR, 'the spool of slot "x"'),
        ({"identity": replace(_IDENTITY, system_identifier="2")}, "", Level.ERROR, "system 2"),
        ({"identity": _IDENTITY}, "", Level.OK, "is writable"),
        ({"file_system": "tmpfs"}, "", Level.WARNING, "in memory"),
        ({"file_system": "nfs4"}, "", Level.WARNING, "another machine"),
        ({"file_system": "nfs4"}, "shared = true\n" + _YARN, Level.OK, "is writable"),
        ({}, "shared = true\n" + _YARN, Level.WARNING, "need the spool at the same path"),
        ({"free_bytes": 2**20}, "", Level.WARNING, "1.0 MiB left"),
    ],
)
def test_spools(changes: dict[str, Any], more: str, level: Level, text: str) -> None:
    spool = replace(_SPOOL, **changes)
    (finding,) = check_spool(replace(_LOCAL, config=_configured(more), spool=spool))
    assert finding.level is level
    assert text in finding.what


def test_targets() -> None:
    target = TargetFacts("lake", "/lake", None)
    (finding,) = check_targets(replace(_LOCAL, targets=(target,)))
    assert finding.level is Level.OK
    (finding,) = check_targets(replace(_LOCAL, targets=(replace(target, problem="full"),)))
    assert finding.what == 'subscription "lake", target folder /lake: full'


@pytest.mark.parametrize(
    ("master", "copy_cores", "cores"),
    [
        ("local[2]", 2, 2),
        ("local[4,3]", 9, 4),
        ("local", 2, 1),
        ("local[2]", 1, None),
        ("local[4]", 3, None),
        ("local", 1, None),
        ("local[*]", 1 + (os.cpu_count() or 1), os.cpu_count()),
        ("k8s://cluster", 64, None),
    ],
)
def test_copies_that_leave_the_stream_no_core(
    master: str, copy_cores: int, cores: int | None
) -> None:
    subscription = 'name = "lake"\nsink = { type = "delta", path = "l/{table}" }\n'
    text = f"[[subscription]]\n{subscription}copy_cores = {copy_cores}\n"
    config = _configured(text).model_copy(update={"spark": {"spark.master": master}})
    said = [finding.what for finding in check_copy_cores(replace(_LOCAL, config=config))]
    sentence = (
        f'subscription "lake": copy_cores = {copy_cores} lets copies take all {cores} cores of '
        "Spark: changes then wait some seconds for a copy's task to end"
    )
    assert said == ([] if cores is None else [sentence])


def test_targets_that_do_not_get_everything() -> None:
    table = TableRecord("s", "t", TableState.READY, incomplete=("it lacks\n  → do this",))
    former = {
        ("s", "users"): FormerTarget((1,), why="another one has the name\n  → ALTER PUBLICATION"),
        ("s", "old"): FormerTarget((2,), why="its table is called s.new now"),
    }
    record = SubscriptionRecord(
        "lake", Owner.CONFIG, "current", "", Lsn(1), Lsn(1), {1: table}, former=former
    )
    lacking, standing = check_incomplete_targets(replace(_LOCAL, records=(record,)))
    assert (lacking.what, lacking.todo) == ('subscription "lake", target s.t: it lacks', "do this")
    assert (standing.level, standing.todo) == (Level.WARNING, "ALTER PUBLICATION")


def test_tables_that_wait_or_are_parked() -> None:
    waiting = TableRecord("s", "t", TableState.READY, error="a file cannot be read\n  → restore it")
    parked = TableRecord("s", "u", TableState.PARKED, error="no key")
    tables = {1: waiting, 2: parked, 3: TableRecord("s", "v", TableState.READY)}
    record = SubscriptionRecord("lake", Owner.CONFIG, "current", "", Lsn(1), Lsn(1), tables)
    waits, stands = check_failing_tables(replace(_LOCAL, records=(record,)))
    assert waits.what == 'subscription "lake", table s.t is not applied: a file cannot be read'
    assert (waits.level, waits.todo) == (Level.WARNING, "restore it")
    assert stands.what == 'subscription "lake", table s.u is parked: no key'
    assert stands.todo == "resolve this problem, then copy the table: pgsluice copy CONFIG s.u"


def test_what_is_installed() -> None:
    nothing = replace(_LOCAL, java=None, pyspark=None, deltalake=None)
    findings = _not_ok(check_environment(nothing))
    assert [finding.subject for finding in findings] == ["java", "pyspark", "deltalake"]
    old = replace(_LOCAL, java=Java(Path("/usr/bin/java"), 11), pyspark="3.4.4", deltalake="1")
    findings = _not_ok(check_environment(old))
    assert [finding.subject for finding in findings] == ["java", "pyspark"]
    (finding,) = check_environment(replace(_LOCAL, config=_configured("")))
    assert (finding.level, finding.subject) == (Level.WARNING, "subscription")


@pytest.mark.parametrize(
    ("setting", "pyspark", "is_said"),
    [
        ('json = "variant"', "3.5.9", True),
        ('types = { "public.t.c" = "variant" }', "3.5.9", True),
        ('json = "variant"', "4.0.5", False),
        ('json = "variant"', None, False),
        ("", "3.5.9", False),
    ],
)
def test_variants_that_the_installed_spark_does_not_read(
    setting: str, pyspark: str | None, is_said: bool
) -> None:
    text = '[[subscription]]\nname = "lake"\nsink = { type = "delta", path = "l/{table}" }\n'
    facts = replace(_LOCAL, config=_configured(text + setting), pyspark=pyspark)
    said = [finding.what for finding in check_variants(facts)]
    sentence = 'subscription "lake" makes VARIANT columns; Spark 3.5.9 refuses tables that have one'
    assert said == ([sentence] if is_said else [])


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


def test_a_folder_that_seems_writable_is_tried() -> None:
    """To root, each folder of /proc seems so."""
    assert folder_problem(Path("/proc/x/y")) == (
        "it does not exist and cannot be made in /proc: No such file or directory"
    )
    assert folder_problem(Path("/proc")) == "it is not writable: No such file or directory"
