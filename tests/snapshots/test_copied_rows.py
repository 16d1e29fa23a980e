"""The rows of a COPY in blocks: over a plain socket, and through libpq over TLS."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from tests.snapshots.tls_proxy import tls_proxy
from tests.support.databases import MakeDatabase

from pgsluice.errors import ProtocolError
from pgsluice.replication import connect_sql
from pgsluice.snapshots.copied_rows import blocks_of_libpq, copied_blocks
from pgsluice.snapshots.row_block import RowBlock

Session = psycopg.Connection[tuple[object, ...]]
BLOCK_BYTES = 100


@pytest.fixture(params=["plain", "TLS"])
def session(
    request: pytest.FixtureRequest, database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Session]:
    """A session whose blocks are small."""
    monkeypatch.setattr("pgsluice.snapshots.copied_rows.BLOCK_BYTES", BLOCK_BYTES)
    shop = database()
    if request.param == "plain":
        with connect_sql(shop.dsn) as connection:
            yield connection
        return
    with tls_proxy(shop.server.port) as port:
        dsn = make_conninfo(shop.dsn, port=port, sslmode="require")
        with connect_sql(dsn) as connection:
            assert connection.pgconn.ssl_in_use
            yield connection


def blocks_of(session: Session, query: str) -> Iterator[RowBlock]:
    return copied_blocks(
        session,
        sql.SQL("COPY ({}) TO STDOUT (FORMAT binary)").format(
            sql.SQL(query)  # type: ignore[arg-type]
        ),
    )


def numbers_of(blocks: Iterable[RowBlock], columns: int) -> list[int]:
    """The first column's values."""
    values = [next(block.columns([None] * columns)).array().to_pylist() for block in blocks]
    return [int.from_bytes(value) for of_block in values for value in of_block]


def test_blocks_have_whole_rows_and_none_is_empty(session: Session) -> None:
    assert list(blocks_of(session, "SELECT 1 WHERE false")) == []
    rows = "SELECT i, repeat('x', i % 7 * 30) FROM generate_series(1, 50) i"
    blocks = list(blocks_of(session, rows))
    assert len(blocks) > 10
    longest = [int((block.ends - block.starts).max()) for block in blocks]
    assert all(
        block.ends[-1] - block.starts[0] <= BLOCK_BYTES + size
        for block, size in zip(blocks, longest, strict=True)
    )
    assert numbers_of(blocks, 2) == list(range(1, 51))
    assert session.execute("SELECT 1").fetchall() == [(1,)], "the session goes on"


def test_a_row_that_is_larger_than_a_block_is_one_of_its_own(session: Session) -> None:
    text = "repeat('x', CASE i % 3 WHEN 1 THEN 70000 ELSE 3 END)"
    rows = f"SELECT i, {text} FROM generate_series(1, 9) i"
    blocks = list(blocks_of(session, rows))
    large = [block for block in blocks if (block.ends - block.starts).max() > BLOCK_BYTES]
    assert [numbers_of([block], 2) for block in large] == [[1], [4], [7]]
    for block in large:
        *_, values = block.columns([None, None])
        text = values.array()
        held = np.frombuffer(text.buffers()[2], np.uint8)
        assert np.shares_memory(held, block.data), "it is not copied"
        assert text.to_pylist() == [b"x" * 70000]
    assert numbers_of(blocks, 2) == list(range(1, 10))


def low_water_mark(session: Session) -> int:
    """How many bytes the session's socket has when it counts as readable."""
    with socket.socket(fileno=os.dup(session.fileno())) as duplicate:
        return duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)


def test_much_is_waited_for_only_while_a_long_copy_lasts(session: Session) -> None:
    (block,) = blocks_of(session, "SELECT 1")
    assert numbers_of([block], 1) == [1]
    assert low_water_mark(session) == 1
    blocks = blocks_of(session, "SELECT generate_series(1, 1000)")
    first, second = next(blocks), next(blocks)
    if not session.pgconn.ssl_in_use:  # there, libpq reads what the socket carries
        assert low_water_mark(session) > BLOCK_BYTES
    assert numbers_of([first, second, *blocks], 1) == list(range(1, 1001))
    assert low_water_mark(session) == 1
    assert session.execute("SELECT 1").fetchall() == [(1,)], "a short answer is seen"


def test_rows_that_come_slowly_and_fewer_than_are_waited_for(session: Session) -> None:
    slow = "pg_sleep(CASE WHEN i > 50 THEN 0.02 ELSE 0 END)::text"
    blocks = blocks_of(session, f"SELECT i, {slow} FROM generate_series(1, 60) i")
    assert numbers_of(blocks, 2) == list(range(1, 61))


def test_values_that_look_like_rows_and_like_the_end(session: Session) -> None:
    """Of messages: a row of two columns, and ReadyForQuery."""
    like_rows = r"'\x640000000e0002ffffffffffffffff5a0000000554'::bytea"
    rows = f"SELECT i, {like_rows} FROM generate_series(1, 200) i"
    blocks = list(blocks_of(session, rows))
    assert numbers_of(blocks, 2) == list(range(1, 201))


def test_notices_come_between_rows(session: Session) -> None:
    session.execute(
        """
        CREATE FUNCTION public.noisy(i int) RETURNS int LANGUAGE plpgsql AS
        $$ BEGIN RAISE NOTICE 'row %', i; RETURN i; END $$
        """
    )
    session.execute("SET client_min_messages = notice")
    blocks = list(blocks_of(session, "SELECT public.noisy(i) FROM generate_series(1, 99) i"))
    assert numbers_of(blocks, 1) == list(range(1, 100))
    assert session.execute("SELECT 1").fetchall() == [(1,)], "the session goes on"


def test_a_statement_longer_than_a_socket_takes_at_once(session: Session) -> None:
    text = "x" * 9_000_000
    (block,) = blocks_of(session, f"SELECT length('{text}')")
    assert numbers_of([block], 1) == [len(text)]


def test_rows_with_other_columns_are_refused(session: Session) -> None:
    (block,) = blocks_of(session, "SELECT 1, 2")
    for count in (1, 3):
        with pytest.raises(ProtocolError):
            list(block.columns([None] * count))
    cut_off = RowBlock(block.data, block.starts, block.ends - 2)
    with pytest.raises(ProtocolError):
        list(cut_off.columns([None] * 2))


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("SELECT 1 / (90000 - i) FROM generate_series(1, 100000) i", "DivisionByZero"),
        ("SELECT 1 FROM no_such_table", "UndefinedTable"),
    ],
)
def test_an_error_of_the_server_ends_the_session(session: Session, query: str, error: str) -> None:
    with pytest.raises(psycopg.Error) as raised:
        list(blocks_of(session, query))
    assert type(raised.value).__name__ == error
    assert raised.value.diag.message_primary
    assert session.closed


def test_a_session_that_the_server_ends(
    session: Session, database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgsluice.snapshots.copied_rows.BLOCK_BYTES", 2**20)
    blocks = blocks_of(session, "SELECT generate_series(1, 100000000)")
    next(blocks)
    database().execute(f"SELECT pg_terminate_backend({session.info.backend_pid})")
    with pytest.raises(psycopg.OperationalError) as raised:
        list(blocks)
    assert raised.value.sqlstate in (None, "57P01")
    assert session.closed


def test_a_copy_that_is_not_read_to_its_end_ends_the_session(session: Session) -> None:
    blocks = blocks_of(session, "SELECT generate_series(1, 100000000)")
    next(blocks)
    blocks.close()  # type: ignore[attr-defined]
    assert session.closed


def test_other_threads_go_on_while_the_end_of_a_copy_is_waited_for() -> None:
    """The server is one of them: it ends the copy when its rows have been taken."""
    taken = threading.Event()
    header = b"PGCOPY\n\xff\r\n\0" + bytes(8)
    row = struct.pack(">hii", 1, 4, 7)

    def serve(listener: socket.socket) -> None:
        client, _ = listener.accept()
        with client:
            client.recv(8192)
            client.sendall(message(b"R", bytes(4)) + message(b"Z", b"I"))
            client.recv(8192)
            client.sendall(
                message(b"H", b"\x01" + struct.pack(">hh", 1, 1))
                + message(b"d", header + row)
                + message(b"d", b"\xff\xff")
                + message(b"c", b"")
            )
            taken.wait()
            client.sendall(message(b"C", b"COPY 1\0") + message(b"Z", b"I"))
            client.recv(8192)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as threads:
        served = threads.submit(serve, listener)
        port = listener.getsockname()[1]
        connection = psycopg.connect(
            f"host=127.0.0.1 port={port} sslmode=disable gssencmode=disable"
        )
        blocks = blocks_of_libpq(connection.pgconn, b"COPY t TO STDOUT (FORMAT binary)")
        assert numbers_of([next(blocks)], 1) == [7]
        taken.set()
        assert list(blocks) == []
        connection.close()
        served.result()


def message(kind: bytes, content: bytes) -> bytes:
    """A message of the protocol."""
    return kind + struct.pack(">i", len(content) + 4) + content
