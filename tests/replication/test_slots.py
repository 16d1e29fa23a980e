"""Slots: made, dropped, refused; and who holds their creation up."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable

import psycopg
import pytest

from pgsluice.embedded import EmbeddedServer
from pgsluice.errors import PgsluiceError, SlotInUse, SlotLost, SourceRefused
from pgsluice.replication import PgoutputOptions, ReplicationConnection, connect_sql
from pgsluice.replication.slots import name_blockers


def _slots(dsn: str) -> set[str]:
    with connect_sql(dsn) as connection:
        rows = connection.execute(
            "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
        )
        return {row[0] for row in rows}


def _name() -> str:
    return f"s_{uuid.uuid4().hex[:10]}"  # slots are the whole cluster's


def test_the_snapshot_of_a_slot_can_be_imported(each_server: EmbeddedServer, database) -> None:
    db = database(each_server)
    db.execute("CREATE TABLE t AS SELECT 1 AS a")
    with (
        ReplicationConnection.connect(db.dsn) as walsender,
        connect_sql(db.dsn) as reader,
    ):
        slot = walsender.create_slot(_name(), export_snapshot=True)
        assert slot.snapshot_name is not None
        db.execute("INSERT INTO t VALUES (2)")
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        reader.execute(f"SET TRANSACTION SNAPSHOT '{slot.snapshot_name}'")
        assert reader.execute("SELECT a FROM public.t").fetchall() == [(1,)]
        (end,) = db.execute("SELECT pg_current_wal_lsn()::text")
        assert str(slot.consistent_point) < end[0]
        assert _slots(db.dsn) == {slot.name}


def test_a_temporary_slot_goes_with_its_connection(database) -> None:
    db = database()
    with ReplicationConnection.connect(db.dsn) as walsender:
        slot = walsender.create_slot(_name(), temporary=True)
        assert slot.snapshot_name is None
        assert _slots(db.dsn) == {slot.name}
    with db.connect() as connection:
        while connection.execute(
            "SELECT FROM pg_stat_activity WHERE backend_type = 'walsender'"
            " AND datname = current_database()"
        ).fetchall():
            pass
    assert _slots(db.dsn) == set()


def test_sql_on_a_walsender(each_server: EmbeddedServer, database) -> None:
    db = database(each_server)
    with ReplicationConnection.connect(db.dsn) as walsender:
        assert walsender.command("SELECT 1 AS one, NULL AS none") == [{"one": "1", "none": None}]


@pytest.mark.pg(">= 17")
def test_two_phase_and_failover(database) -> None:
    db = database()
    with ReplicationConnection.connect(db.dsn) as walsender:
        walsender.create_slot(_name(), two_phase=True, failover=True)
    assert db.execute(
        "SELECT two_phase, failover FROM pg_replication_slots WHERE database = current_database()"
    ) == [(True, True)]


def test_what_a_server_is_too_old_for(pg16: EmbeddedServer, pg10: EmbeddedServer) -> None:
    with (
        ReplicationConnection.connect(pg16.dsn()) as walsender,
        pytest.raises(SourceRefused, match="17 or newer"),
    ):
        walsender.create_slot(_name(), failover=True)
    with (
        ReplicationConnection.connect(pg10.dsn()) as walsender,
        pytest.raises(SourceRefused, match="15 or newer"),
    ):
        walsender.create_slot(_name(), two_phase=True)


def test_a_creation_that_waits_names_who_it_waits_for(
    each_server: EmbeddedServer, database
) -> None:
    db = database(each_server)
    db.execute("CREATE TABLE t (a int)")
    name = _name()
    with (
        ReplicationConnection.connect(db.dsn) as walsender,
        psycopg.connect(db.dsn, application_name="nightly") as writer,
        psycopg.connect(db.dsn) as preparer,
    ):
        writer.execute("INSERT INTO t VALUES (1)")
        preparer.tpc_begin("a transfer")
        preparer.execute("INSERT INTO t VALUES (2)")
        preparer.tpc_prepare()
        with pytest.raises(SourceRefused) as caught:
            walsender.create_slot(name, export_snapshot=True, timeout_s=0.3)
        said = str(caught.value)
        assert f"pid {writer.info.backend_pid} (nightly)" in said
        assert re.search(r"\(nightly\) in .*, its last query began at 2\d{3}-", said)
        assert "prepared transaction 'a transfer'" in said
        assert "INSERT" not in said, "the query's text may have values"
        assert len(caught.value.facts["blockers"]) == 2
        # The connection and the name are free again.
        writer.rollback()
        preparer.tpc_rollback()
        assert walsender.create_slot(name).name == name


def test_a_role_that_does_not_see_since_when_others_wait(database) -> None:
    db = database()
    role = f"{db.name}_plain"
    db.execute("CREATE TABLE t (a int)", f"CREATE ROLE {role}")
    try:
        with psycopg.connect(db.dsn) as writer, db.connect() as plain:
            writer.execute("INSERT INTO t VALUES (1)")
            plain.execute(f"SET ROLE {role}")
            assert name_blockers(plain) == [f"pid {writer.info.backend_pid} in {db.name}"]
    finally:
        db.execute(f"DROP ROLE {role}")


def test_a_creation_that_waits_is_given_up_when_asked(database) -> None:
    db = database()
    db.execute("CREATE TABLE t (a int)")
    name = _name()
    with (
        ReplicationConnection.connect(db.dsn) as walsender,
        psycopg.connect(db.dsn) as writer,
    ):
        writer.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(PgsluiceError, match="asked to stop"):
            walsender.create_slot(name, is_stopping=lambda: True)
        # No slot is left behind; the connection and the name are free again.
        writer.rollback()
        assert walsender.create_slot(name).name == name


def test_a_taken_name(database) -> None:
    db = database()
    with ReplicationConnection.connect(db.dsn) as walsender:
        slot = walsender.create_slot(_name())
        with pytest.raises(SourceRefused, match="already exists"):
            walsender.create_slot(slot.name)
        with pytest.raises(SourceRefused, match="invalid character"):
            walsender.create_slot("My Slot")


def test_dropping(database) -> None:
    db = database()
    db.execute("CREATE PUBLICATION p")
    with (
        ReplicationConnection.connect(db.dsn) as walsender,
        ReplicationConnection.connect(db.dsn) as second,
    ):
        slot = walsender.create_slot(_name())
        walsender.start_replication(slot.name, slot.consistent_point, PgoutputOptions(("p",)))
        with pytest.raises(SlotInUse, match="active"):
            second.drop_slot(slot.name)
        with pytest.raises(SlotInUse, match="still active"):
            second.drop_slot(slot.name, wait=True, timeout_s=0.2)
        walsender.finish()
        second.drop_slot(slot.name, wait=True)
        with pytest.raises(SlotLost, match="does not exist"):
            second.drop_slot(slot.name)
    assert _slots(db.dsn) == set()


def test_wal_level_is_too_low(own_server: Callable[..., EmbeddedServer]) -> None:
    server = own_server(wal_level="replica")
    with (
        ReplicationConnection.connect(server.dsn()) as walsender,
        pytest.raises(SourceRefused, match="wal_level") as caught,
    ):
        walsender.create_slot(_name())
    assert "ALTER SYSTEM SET wal_level = logical" in str(caught.value)


def test_no_slot_is_free(own_server: Callable[..., EmbeddedServer]) -> None:
    server = own_server(max_replication_slots="1")
    with ReplicationConnection.connect(server.dsn()) as walsender:
        walsender.create_slot(_name())
        with pytest.raises(SourceRefused, match="in use") as caught:
            walsender.create_slot(_name())
    assert "max_replication_slots" in str(caught.value)
