"""What the server says of itself and of its slots."""

from __future__ import annotations

import uuid

from pgsluice.catalog.server import flush_lsn, server_info, slot_info, wal_timeline
from pgsluice.embedded import EmbeddedServer
from pgsluice.lsn import Lsn
from pgsluice.replication import PgoutputOptions, ReplicationConnection, connect_sql


def test_the_server_and_our_role(each_server: EmbeddedServer) -> None:
    with (
        connect_sql(each_server.dsn()) as connection,
        ReplicationConnection.connect(each_server.dsn()) as walsender,
    ):
        info = server_info(connection)
        assert info.version == each_server.version
        assert info.version_num == walsender.server_version
        assert (info.database, info.user) == ("postgres", "postgres")
        assert (info.wal_level, info.is_standby) == ("logical", False)
        assert info.used_wal_senders == 1
        assert info.used_replication_slots < info.max_replication_slots == 40
        assert info.max_slot_wal_keep_bytes is None
        assert info.idle_slot_timeout_s is None
        assert info.has_replication
        assert info.may_create
        # Flushed is what was inserted, once a commit waited for it.
        (row,) = walsender.command("IDENTIFY_SYSTEM")
        assert flush_lsn(connection) <= Lsn.parse(row["xlogpos"])
        assert wal_timeline(connection) == walsender.identify_system().timeline


def test_an_ordinary_role_sees_what_it_lacks(each_server: EmbeddedServer, database) -> None:
    db = database(each_server)
    db.execute("DROP ROLE IF EXISTS ordinary", "CREATE ROLE ordinary LOGIN")
    try:
        with connect_sql(db.server.dsn(db.name, user="ordinary")) as connection:
            info = server_info(connection)
            assert not info.has_replication
            assert not info.may_create
            assert info.wal_level == "logical"
    finally:
        db.execute("DROP ROLE ordinary")


def test_a_slot_through_its_life(each_server: EmbeddedServer, database) -> None:
    db = database(each_server)
    db.execute("CREATE PUBLICATION p", "CREATE TABLE t (a text)")
    name = f"s_{uuid.uuid4().hex[:10]}"
    with (
        connect_sql(db.dsn) as connection,
        ReplicationConnection.connect(db.dsn) as walsender,
    ):
        assert slot_info(connection, name) is None
        created = walsender.create_slot(name)
        slot = slot_info(connection, name)
        assert slot is not None
        assert (slot.name, slot.plugin, slot.database) == (name, "pgoutput", db.name)
        assert (slot.is_active, slot.active_pid, slot.is_temporary) == (False, None, False)
        assert slot.confirmed_flush_lsn == created.consistent_point
        assert slot.wal_status == ("reserved" if each_server.programs.major >= 13 else None)
        assert not slot.is_lost
        assert not slot.two_phase
        assert slot.retained_bytes is not None

        walsender.start_replication(name, created.consistent_point, PgoutputOptions(("p",)))
        db.execute("INSERT INTO t SELECT repeat('x', 500) FROM generate_series(1, 2000)")
        active = slot_info(connection, name)
        assert active is not None
        assert active.is_active
        assert active.active_pid == walsender.pgconn.backend_pid
        assert active.retained_bytes is not None
        assert active.retained_bytes > slot.retained_bytes + 1_000_000
        ((restart_lsn,),) = db.execute(
            f"SELECT restart_lsn::text FROM pg_replication_slots WHERE slot_name = '{name}'"
        )
        assert flush_lsn(connection) - Lsn.parse(restart_lsn) == active.retained_bytes


def test_a_physical_slot_has_no_database(server: EmbeddedServer) -> None:
    name = f"s_{uuid.uuid4().hex[:10]}"
    with connect_sql(server.dsn()) as connection:
        connection.execute("SELECT pg_create_physical_replication_slot(%s)", [name])
        slot = slot_info(connection, name)
        connection.execute("SELECT pg_drop_replication_slot(%s)", [name])
    assert slot is not None
    assert (slot.plugin, slot.database, slot.confirmed_flush_lsn) == (None, None, None)
    assert slot.retained_bytes is None
