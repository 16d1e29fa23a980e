"""The copy stream: what comes is what was sent, and only what we say is acknowledged."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable

import pytest
from tests.support.waiting import HANGS_S

from pgsluice.embedded import EmbeddedServer
from pgsluice.errors import (
    ForeignSource,
    PgsluiceError,
    SlotInUse,
    SlotLost,
    SourceRefused,
    SourceUnreachable,
)
from pgsluice.lsn import Lsn
from pgsluice.replication import PgoutputOptions, ReplicationConnection, connect_sql
from pgsluice.wire import Keepalive, StandbyStatusUpdate, XLogData, decode_copy_data

V1 = PgoutputOptions(("p",), proto_version=1)


def _name() -> str:
    return f"s_{uuid.uuid4().hex[:10]}"


def _receive_until(walsender: ReplicationConnection, end: Lsn) -> list[bytes]:
    """The messages up to where the server says that it is past ``end``."""
    messages = []
    deadline = time.monotonic() + HANGS_S
    while time.monotonic() < deadline:
        frame = walsender.receive()
        if frame is None:
            walsender.send_status(StandbyStatusUpdate(Lsn(0), Lsn(0), Lsn(0), 0, True))
            walsender.wait(1)
            continue
        match decode_copy_data(frame):
            case XLogData() as data:
                messages.append(bytes(data.data))
            case Keepalive() as keepalive if keepalive.end >= end:
                return messages
    raise AssertionError(f"the stream did not reach {end}")


def _flushed(db) -> Lsn:
    ((text,),) = db.execute("SELECT pg_current_wal_flush_lsn()::text")
    return Lsn.parse(text)


def _confirmed(db, slot: str) -> Lsn:
    ((text,),) = db.execute(
        f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{slot}'"
    )
    return Lsn.parse(text)


def _prepare(db) -> None:
    db.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, a float8, b timestamptz, c text)",
        "CREATE PUBLICATION p FOR TABLE t",
    )


@pytest.mark.parametrize("way", ["tcp", "socket"])
def test_frames_are_what_the_server_sends_by_its_other_way(
    each_server: EmbeddedServer, database, way: str
) -> None:
    db = database(each_server)
    _prepare(db)
    slot = _name()
    db.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    db.execute(
        "INSERT INTO t SELECT g, g / 3.0, '2024-01-01Z'::timestamptz + g * interval '1 us',"
        " repeat('x', g % 300) FROM generate_series(1, 3000) g",
        "UPDATE t SET a = 'NaN' WHERE id % 7 = 0",
        "DELETE FROM t WHERE id % 5 = 0",
        *(f"INSERT INTO t (id) VALUES ({10000 + i})" for i in range(50)),
    )
    end = _flushed(db)
    dsn = db.dsn if way == "tcp" else db.server.dsn(db.name, host=str(db.server.directory))
    with ReplicationConnection.connect(dsn) as walsender:
        walsender.start_replication(slot, Lsn(0), V1)
        messages = _receive_until(walsender, end)
        walsender.finish()
    with connect_sql(db.dsn) as connection:
        rows = connection.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL,"
            " 'proto_version', '1', 'publication_names', 'p')",
            [slot],
        ).fetchall()
    # 14 and older also send transactions that are empty, and those differ in number.
    empty = {b"B"[0], b"C"[0]} if each_server.programs.major < 15 else set()
    assert [m for m in messages if m[0] not in empty] == [
        bytes(row[0]) for row in rows if row[0][0] not in empty
    ]
    assert len(messages) > 3000


def test_only_a_status_acknowledges(each_server: EmbeddedServer, database) -> None:
    db = database(each_server)
    _prepare(db)
    with ReplicationConnection.connect(db.dsn) as walsender:
        slot = walsender.create_slot(_name())
        walsender.start_replication(slot.name, slot.consistent_point, V1)
        db.execute("INSERT INTO t VALUES (1)")
        end = _flushed(db)
        _receive_until(walsender, end)
        walsender.finish()
    assert _confirmed(db, slot.name) == slot.consistent_point
    # The same again, from the same place; then acknowledged.
    with ReplicationConnection.connect(db.dsn) as walsender:
        walsender.start_replication(slot.name, slot.consistent_point, V1)
        assert any(message[:1] == b"I" for message in _receive_until(walsender, end))
        walsender.send_status(StandbyStatusUpdate(end, end, end, 0, False))
        walsender.finish()
        assert _confirmed(db, slot.name) == end


def test_the_handshake_ends_a_stream_in_the_middle(each_server: EmbeddedServer, database) -> None:
    db = database(each_server)
    _prepare(db)
    with ReplicationConnection.connect(db.dsn) as walsender:
        slot = walsender.create_slot(_name())
        db.execute("INSERT INTO t (id) SELECT generate_series(1, 50000)")
        walsender.start_replication(slot.name, slot.consistent_point, V1)
        while (frame := walsender.receive()) is None or frame[:1] != b"w":
            walsender.wait(1)
        with pytest.raises(PgsluiceError, match="is streaming"):
            walsender.identify_system()
        walsender.finish()
        assert walsender.identify_system().dbname == db.name
        with pytest.raises(PgsluiceError, match="a new one is needed"):
            walsender.start_replication(slot.name, slot.consistent_point, V1)
        walsender.drop_slot(slot.name, wait=True)


def test_a_slot_has_one_reader(database) -> None:
    db = database()
    _prepare(db)
    with (
        ReplicationConnection.connect(db.dsn) as walsender,
        ReplicationConnection.connect(db.dsn) as second,
    ):
        slot = walsender.create_slot(_name())
        walsender.start_replication(slot.name, slot.consistent_point, V1)
        with pytest.raises(SlotInUse, match="is active for PID"):
            second.start_replication(slot.name, slot.consistent_point, V1)
        assert second.identify_system().dbname == db.name


def test_a_slot_that_is_not_there(database) -> None:
    db = database()
    with (
        ReplicationConnection.connect(db.dsn) as walsender,
        pytest.raises(SlotLost, match="does not exist"),
    ):
        walsender.start_replication(_name(), Lsn(0), V1)


def test_a_slot_of_another_database(each_server: EmbeddedServer, database) -> None:
    one, other = database(each_server), database(each_server)
    with ReplicationConnection.connect(one.dsn) as walsender:
        slot = walsender.create_slot(_name())

    def start() -> None:
        with ReplicationConnection.connect(other.dsn) as walsender:
            walsender.start_replication(slot.name, slot.consistent_point, V1)
            _receive_until(walsender, Lsn(2**62))  # up to 11 the server looks only now

    with pytest.raises(ForeignSource, match="not created in this database"):
        start()


def test_a_publication_that_is_not_there(pg16: EmbeddedServer, database) -> None:
    # Up to 17 the server fails at the first change; 18 leaves the publication away.
    db = database(pg16)
    with ReplicationConnection.connect(db.dsn) as walsender:
        slot = walsender.create_slot(_name())
        db.execute("CREATE TABLE t (id int)", "INSERT INTO t VALUES (1)")
        walsender.start_replication(slot.name, slot.consistent_point, V1)
        with pytest.raises(SourceRefused, match='publication "p" does not exist'):
            _receive_until(walsender, _flushed(db))


@pytest.mark.pg(">= 13")  # max_slot_wal_keep_size
def test_wal_that_is_gone(own_server: Callable[..., EmbeddedServer]) -> None:
    server = own_server(max_slot_wal_keep_size="1MB", max_wal_size="32MB", min_wal_size="32MB")
    with connect_sql(server.dsn()) as connection:
        connection.execute("CREATE TABLE public.big (a text)")
        with ReplicationConnection.connect(server.dsn()) as walsender:
            slot = walsender.create_slot(_name())
        for _ in range(3):
            connection.execute("INSERT INTO public.big VALUES ('x')")
            connection.execute("SELECT pg_switch_wal()")
        connection.execute("CHECKPOINT")
        with (
            ReplicationConnection.connect(server.dsn()) as walsender,
            pytest.raises(SlotLost) as caught,
        ):
            walsender.start_replication(slot.name, slot.consistent_point, V1)
        assert "pgsluice drop" in str(caught.value)
        connection.execute("DROP TABLE public.big")


@pytest.mark.parametrize("end", ["fast", "kill"])
def test_the_server_ends(own_server: Callable[..., EmbeddedServer], end: str) -> None:
    server = own_server()
    with connect_sql(server.dsn()) as connection:
        connection.execute("CREATE PUBLICATION p")
    with ReplicationConnection.connect(server.dsn()) as walsender:
        slot = walsender.create_slot(_name())
        walsender.start_replication(slot.name, slot.consistent_point, V1)
        # A server that shuts down waits for its walsenders' receivers to have confirmed all.
        stopping = threading.Thread(target=server.kill if end == "kill" else server.stop)
        stopping.start()
        with pytest.raises(SourceUnreachable):
            _confirm_all(walsender)
        stopping.join()
    with pytest.raises(SourceUnreachable):
        ReplicationConnection.connect(server.dsn(), timeout_s=2)
    server.start()
    with connect_sql(server.dsn()) as connection:
        connection.execute("DROP PUBLICATION p")


def _confirm_all(walsender: ReplicationConnection) -> None:
    """Receive and confirm until the stream ends."""
    while True:
        frame = walsender.receive()
        if frame is None:
            walsender.wait(1)
            continue
        match decode_copy_data(frame):
            case Keepalive() as keepalive:
                end = keepalive.end
                walsender.send_status(StandbyStatusUpdate(end, end, end, 0, False))
