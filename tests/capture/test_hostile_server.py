"""A server that breaks the protocol: capture ends in one clear error, or goes on.

Each case is one line: what a proxy before a real server does wrong, and the words of the error;
None where capture goes on. Afterwards a start against the server itself makes the spool whole.

What a proxy may do and nobody can see is not here: a change or a transaction that is left out when
it would be sent first, and a value that is another one. What is sent again has to be the same.
"""

from __future__ import annotations

import copy
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from psycopg.conninfo import make_conninfo
from tests.support.databases import Database, fresh_database
from tests.support.hostile_server import (
    COPY_BOTH,
    COPY_IN,
    COPY_OUT,
    READY,
    Action,
    Asked,
    Connecting,
    EachFrame,
    Fault,
    HostileProxy,
    Message,
    Reply,
    Said,
    Swapped,
    data_row,
    done,
    error,
    message,
    table,
)
from tests.support.spool_changes import all_changes
from tests.support.waiting import HANGS_S

from pgsluice.capture import run_capture
from pgsluice.capture.process import Waits
from pgsluice.capture.receiving.receiver import ReceiverOptions
from pgsluice.config import Config, SourceConfig, SpoolConfig
from pgsluice.embedded import EmbeddedServer
from pgsluice.errors import ForeignSource, PgsluiceError, ProtocolError
from pgsluice.lsn import Lsn
from pgsluice.replication import ReplicationConnection
from pgsluice.wire import Begin, Commit

CLOSE, RESET, SILENCE = Action.CLOSE, Action.RESET, Action.SILENCE
LSN_MAX = 2**64 - 1
HISTORY = [
    "INSERT INTO t SELECT i, 'x' FROM generate_series(1, 3) i",
    "UPDATE t SET v = 'y' WHERE id = 2",
    "DELETE FROM t WHERE id = 3",
    "TRUNCATE other",
    # Larger than logical_decoding_work_mem: it is streamed.
    """BEGIN; INSERT INTO t SELECT i, repeat('x', 400) FROM generate_series(10, 210) i;
    SAVEPOINT s; INSERT INTO t SELECT i, repeat('y', 400) FROM generate_series(300, 500) i;
    ROLLBACK TO s; INSERT INTO t VALUES (211, 'after'); COMMIT""",
    "BEGIN; INSERT INTO t VALUES (600, 'prepared'); PREPARE TRANSACTION '{gid}'",
    "COMMIT PREPARED '{gid}'",
    "INSERT INTO other VALUES ('calm')",
    "INSERT INTO t VALUES (601, 'last')",
]


class Source(NamedTuple):
    """A database with a history, and a slot before it that is copied for each case."""

    db: Database
    slot: str
    changes: list[object]


@pytest.fixture(scope="module")
def source(pg18: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    with fresh_database(pg18) as db:
        slot, gid = f"{db.name}_base", db.name
        db.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v text)",
            "CREATE TYPE mood AS ENUM ('calm')",
            "CREATE TABLE other (m mood PRIMARY KEY)",
            "CREATE PUBLICATION p FOR TABLE t, other",
            f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput', false, true)",
            *(statement.format(gid=gid) for statement in HISTORY),
        )
        source = Source(db, slot, [])
        path = tmp_path_factory.mktemp("sound") / "spool"
        with with_slot(source, "sound") as sound:
            capture(source, configure(source, sound, path))
        source.changes.extend(all_changes(path))
        assert len(source.changes) == 211
        yield source


@contextmanager
def with_slot(source: Source, name: str) -> Iterator[str]:
    """A copy of the slot before the history, while the block runs."""
    slot = f"{source.db.name}_{name}"
    source.db.execute(f"SELECT pg_copy_logical_replication_slot('{source.slot}', '{slot}')")
    with ReplicationConnection.connect(source.db.dsn) as connection:
        connection.command(f"ALTER_REPLICATION_SLOT {slot} (TWO_PHASE true)")
    try:
        yield slot
    finally:
        source.db.execute(f"SELECT pg_drop_replication_slot('{slot}')")


def configure(
    source: Source, slot: str, path: Path, silence_s: float = 60.0, connect_s: float = 60.0
) -> Config:
    return Config(
        source=SourceConfig(
            dsn=make_conninfo(source.db.dsn, options="-c logical_decoding_work_mem=64kB"),
            slot=slot,
            publications=("p",),
            two_phase=True,
            connect_timeout_s=connect_s,
            silence_timeout_s=silence_s,
        ),
        spool=SpoolConfig(path=path, segment_ms=10),
    )


def capture(
    source: Source,
    config: Config,
    proxy: HostileProxy | None = None,
    pauses_s: Sequence[float] = (0.01,),
) -> None:
    """Capture all there is, through the proxy; a test that hangs fails."""
    if proxy is not None:
        through = config.source.model_copy(update={"dsn": proxy.dsn(config.source.dsn)})
        config = config.model_copy(update={"source": through})
    stop = threading.Event()
    hangs = threading.Timer(HANGS_S, stop.set)
    hangs.start()
    try:
        run_capture(config, once=True, stop=stop, waits=Waits(pauses_s=pauses_s))
    finally:
        hangs.cancel()
    assert not stop.is_set(), "capture did not come to an end"


# What is broken


def frame(tag: str, edit: Callable[[Message], list[bytes | Action]], nth: int = 1) -> Said:
    return Said(lambda said: said.frame_tag == tag.encode(), edit, nth)


def content(tag: str, edit: Callable[[bytes], bytes], nth: int = 1) -> Said:
    """Another pgoutput message instead of the nth of a tag."""
    return frame(tag, lambda said: [said.with_pgoutput(edit(said.pgoutput))], nth)


def put(offset: int, form: str, value: int) -> Callable[[bytes], bytes]:
    """Bytes with another number at an offset."""
    size = struct.calcsize(form)
    return lambda old: old[:offset] + struct.pack(form, value) + old[offset + size :]


def add(offset: int, number: int) -> Callable[[bytes], bytes]:
    """Bytes with a number of 64 bits increased."""
    return lambda old: (
        old[:offset]
        + (int.from_bytes(old[offset : offset + 8]) + number).to_bytes(8)
        + old[offset + 8 :]
    )


def length(number: int) -> Callable[[Message], list[bytes | Action]]:
    return lambda said: [said.tag + struct.pack(">I", number) + said.body]


def longer(by: int) -> Callable[[Message], list[bytes | Action]]:
    return lambda said: [said.tag + struct.pack(">I", len(said.body) + 4 + by) + said.body]


def before(*parts: bytes | Action) -> Callable[[Message], list[bytes | Action]]:
    return lambda said: [*parts, said.raw]


def instead(*parts: bytes | Action) -> Callable[[Message], list[bytes | Action]]:
    return lambda said: list(parts)


def twice(said: Message) -> list[bytes | Action]:
    return [said.raw, said.raw]


def half_then(action: Action) -> Callable[[Message], list[bytes | Action]]:
    return lambda said: [said.raw[: len(said.raw) // 2], action]


def framed(body: bytes) -> bytes:
    return message(b"d", body)


def pgoutput(body: bytes) -> bytes:
    return framed(b"w" + bytes(24) + body)


def keepalive(end: int, *, asks: bool = False) -> bytes:
    return framed(b"k" + struct.pack(">QqB", end, 0, asks))


IDENTITY = ("systemid", "timeline", "xlogpos", "dbname")


def identity(*rows: tuple[str | None, ...], names: tuple[str, ...] = IDENTITY) -> Asked:
    return Asked("IDENTIFY_SYSTEM", table(names, *rows))


class Case(NamedTuple):
    """What is wrong.

    Attributes:
        error: the words of the error; None: capture goes on.
        silence_s: how long the server may be silent: to a command, or, if capture goes on, in the
            stream.
        connect_s: how long it may take to connect.
    """

    fault: Fault
    error: str | None = None
    silence_s: float = 60.0
    connect_s: float = 60.0


NO_ROW = "IDENTIFY_SYSTEM: "
CASES: dict[str, Case] = {
    # Connections
    "connect: closed at once": Case(Connecting(CLOSE), "cannot reach"),
    "connect: reset": Case(Connecting(RESET), "cannot reach"),
    "connect: no answer": Case(Connecting(SILENCE), "cannot reach .*timeout", connect_s=2),
    "connect: a web server": Case(
        Connecting(b"HTTP/1.1 400 Bad Request\r\n", CLOSE), "cannot reach the server"
    ),
    "connect: an error without a code": Case(Connecting(message(b"E", b"Mno\0\0"), CLOSE), ": no"),
    "connect: shutting down": Case(
        Connecting(error("57P03", "the database system is shutting down", "FATAL"), CLOSE),
        "refuses the connection for now: the database system is shutting down",
    ),
    # IDENTIFY_SYSTEM
    "identity: no row": Case(identity(), NO_ROW + "the server answered with 0 rows"),
    "identity: two rows": Case(identity(("1", "1", "0/1", "d"), ("1", "1", "0/1", "d")), "2 rows"),
    "identity: other columns": Case(identity(("1",), names=("id",)), "has no systemid"),
    "identity: no columns": Case(identity((), names=()), "has no systemid"),
    "identity: no system": Case(identity((None, "1", "0/1", "d")), "has no systemid"),
    "identity: an empty system": Case(identity(("", "1", "0/1", "d")), "is not a number"),
    "identity: no timeline": Case(identity(("1", None, "0/1", "d")), "has no timeline"),
    "identity: timeline 0": Case(identity(("1", "0", "0/1", "d")), "timeline is not a number"),
    "identity: timeline -1": Case(identity(("1", "-1", "0/1", "d")), "timeline is not a number"),
    "identity: a timeline of 5,000 digits": Case(
        identity(("1", "1" * 5000, "0/1", "d")), "timeline is not a number"
    ),
    "identity: no database": Case(identity(("1", "1", "0/1", None)), "has no dbname"),
    "identity: only a command's end": Case(Asked("IDENTIFY", done("IDENTIFY_SYSTEM")), "0 rows"),
    "identity: another system": Case(identity(("1", "1", "0/1", "d")), "use it for database d"),
    "identity: an error": Case(Asked("IDENTIFY", error("XX000", "no"), READY), NO_ROW + "no"),
    "identity: CopyOut": Case(Asked("IDENTIFY", COPY_OUT), "answered with COPY_OUT"),
    "identity: CopyBoth": Case(Asked("IDENTIFY", COPY_BOTH), "answered with COPY_BOTH"),
    "identity: a row of no description": Case(Asked("IDENTIFY", data_row(["1"]), READY), NO_ROW),
    "identity: no answer": Case(Asked("IDENTIFY", SILENCE), "did not answer within 1 s", 1),
    "identity: closed": Case(Asked("IDENTIFY", CLOSE), NO_ROW),
    "settings: no answer": Case(Asked("SET", SILENCE), "did not answer within 1 s", 1),
    # START_REPLICATION
    "start: CopyOut": Case(Asked("START_REPL", COPY_OUT), "answered with COPY_OUT"),
    "start: CopyIn": Case(Asked("START_REPL", COPY_IN), "answered with COPY_IN"),
    "start: rows": Case(Asked("START_REPL", table(["a"], ["1"])), "answered with TUPLES_OK"),
    "start: only its end": Case(Asked("START_REPL", done("START_REPL")), "with COMMAND_OK"),
    "start: an error": Case(Asked("START_REPL", error("XX000", "no"), READY), "starting .* no"),
    "start: an error without its end": Case(
        Asked("START_REPL", error("XX000", "no"), SILENCE), "did not answer", 1
    ),
    "start: nothing": Case(Asked("START_REPL", READY), "answered with"),
    "start: no answer": Case(Asked("START_REPL", SILENCE), "did not answer within 1 s", 1),
    "start: closed": Case(Asked("START_REPL", CLOSE), "starting replication"),
    "catalog: no answer": Case(
        Asked("SELECT", SILENCE, is_walsender=False), "did not answer within 1 s", 1
    ),
    "catalog: CopyOut": Case(Asked("SELECT", COPY_OUT, is_walsender=False), "reading the catalog"),
    "catalog: closed": Case(Asked("SELECT", CLOSE, is_walsender=False), "reading the catalog"),
    # Bytes
    "bytes: closed inside a frame": Case(frame("I", half_then(CLOSE))),
    "bytes: reset inside a frame": Case(frame("I", half_then(RESET))),
    "bytes: silence inside a frame": Case(frame("I", half_then(SILENCE)), None, 1),
    "bytes: silence between frames": Case(frame("I", instead(SILENCE)), None, 1),
    "bytes: silence before the first frame": Case(
        Asked("START_REPL", COPY_BOTH, SILENCE), None, 1
    ),
    "bytes: closed between frames": Case(frame("C", before(CLOSE))),
    "bytes: a few at a time": Case(
        EachFrame(lambda said: [said.raw[i : i + 50] for i in range(0, len(said.raw), 50)])
    ),
    "bytes: rubbish between frames": Case(frame("I", before(b"\xff" * 100))),
    "bytes: zeros between frames": Case(frame("I", before(bytes(100)))),
    "bytes: a length of 0": Case(frame("I", length(0))),
    "bytes: a length of 2^31 - 1": Case(frame("I", length(2**31 - 1)), None, 1),
    "bytes: a length of 2^32 - 1": Case(frame("I", length(2**32 - 1))),
    "bytes: one too few": Case(frame("I", longer(-1))),
    "bytes: one too many": Case(frame("I", longer(1))),
    # Messages of the server
    "server: an error": Case(frame("I", before(error("XX000", "no")))),
    "server: a fatal error": Case(frame("I", before(error("57P01", "end", "FATAL"), CLOSE))),
    "server: an error without fields": Case(frame("I", before(message(b"E", b"\0")))),
    "server: an error without an end": Case(frame("I", before(message(b"E", b"Mx")))),
    "server: notices": Case(frame("I", before(message(b"N", b"SNOTICE\0Mx\x1b[2J\n\0\0") * 50))),
    "server: a parameter": Case(frame("I", before(message(b"S", b"application_name\0x\0")))),
    "server: another encoding": Case(frame("I", before(message(b"S", b"client_encoding\0SJIS\0")))),
    "server: CopyDone": Case(frame("I", before(message(b"c")))),
    "server: the command's end": Case(frame("I", before(message(b"C", b"COPY 0\0"), READY))),
    "server: ready": Case(frame("I", before(READY))),
    "server: CopyBoth again": Case(frame("I", before(COPY_BOTH))),
    "server: a row": Case(frame("I", before(data_row(["1"])))),
    # Frames
    "frame: empty": Case(frame("I", before(framed(b"")))),
    "frame: w alone": Case(frame("I", before(framed(b"w"))), "Keepalive message, offset 0"),
    "frame: w without a message": Case(frame("I", before(pgoutput(b""))), "frame|message"),
    "frame: unknown": Case(frame("I", before(framed(b"z" + bytes(40)))), "frame|message|tag"),
    "frame: LSNs of 0": Case(frame("C", lambda said: [pgoutput(said.pgoutput)])),
    "frame: LSNs of 2^64 - 1": Case(
        frame("C", lambda said: [framed(b"w" + b"\xff" * 24 + said.pgoutput)])
    ),
    "frame: a keepalive that is cut": Case(frame("I", before(framed(b"k" + bytes(9)))), "k"),
    "frame: a keepalive that is too long": Case(
        frame("I", before(framed(b"k" + bytes(40)))), "0x6b"
    ),
    "frame: a keepalive of 0": Case(frame("I", before(keepalive(0)))),
    "frame: a keepalive of 2^62": Case(frame("I", before(keepalive(2**62))), "flushed up to"),
    "frame: a keepalive of 2^64 - 1": Case(
        frame("I", before(keepalive(LSN_MAX))), "up to 2.63 - 1"
    ),
    "frame: 500 keepalives that ask": Case(frame("I", before(keepalive(0, asks=True) * 500))),
    # Order
    "order: a Begin is lost": Case(frame("B", instead()), "Relation .* cannot come"),
    "order: a Commit is lost": Case(frame("C", instead()), "Begin .* cannot come"),
    "order: a Relation is lost": Case(frame("R", instead()), "a Relation message"),
    "order: a Begin comes twice": Case(frame("B", twice), "Begin .* cannot come"),
    "order: a Commit comes twice": Case(frame("C", twice), "Commit .* cannot come"),
    "order: a Commit before its row": Case(Swapped("I", "C"), "Insert .* cannot come"),
    "order: a row before its Relation": Case(Swapped("R", "I"), "a Relation message"),
    "order: a Begin after its row": Case(Swapped("B", "I"), "Relation .* cannot come"),
    "order: a Stream Start is lost": Case(frame("S", instead()), "Relation message"),
    "order: a Stream Start comes twice": Case(frame("S", twice), "StreamStart .* cannot come"),
    "order: a Stream Stop is lost": Case(frame("E", instead()), "StreamStart .* cannot come"),
    "order: a Stream Stop comes twice": Case(frame("E", twice), "StreamStop .* cannot come"),
    "order: a Stream Commit comes twice": Case(frame("c", twice), "is not open"),
    "order: a Begin Prepare is lost": Case(frame("b", instead()), "Insert .* cannot come"),
    "order: a Prepare is lost": Case(frame("P", instead()), "CommitPrepared .* cannot come"),
    "order: a Prepare comes twice": Case(frame("P", twice), "Prepare .* cannot come"),
    "order: a Commit Prepared comes twice": Case(frame("K", twice), "a position past"),
    "order: a Type alone": Case(
        frame("B", before(pgoutput(b"Y\0\0\0\1a\0b\0"))), "Type .* cannot come"
    ),
    # Messages of pgoutput
    "message: unknown": Case(content("I", lambda old: b"?" + old[1:]), "expected a tag"),
    "message: a row of another relation": Case(content("I", put(1, ">I", 1)), "a Relation message"),
    "message: a relation that is cut": Case(content("R", lambda old: old[:-3]), "column typmod"),
    "message: a relation of an unknown identity": Case(
        content("R", lambda old: old.replace(b"t\0d", b"t\0?", 1)), "replica_identity, got"
    ),
    "message: a relation whose name has no end": Case(
        content("R", lambda old: old[:8]), "a NUL at the end"
    ),
    "message: a truncate of 2^31 tables": Case(content("T", put(1, ">I", 2**31)), "relation count"),
    "message: a truncate with unknown options": Case(
        content("T", put(5, ">B", 0xFF)), "no other bits"
    ),
    "message: a Stream Commit of another": Case(content("c", put(1, ">I", 7)), "is not open"),
    "message: a Stream Start without its end": Case(
        content("S", lambda old: old[:3]), "bytes of xid"
    ),
    "message: a gid without an end": Case(content("P", lambda old: old[:-1]), "a NUL at the end"),
    "message: a Prepare of another": Case(
        content("P", lambda old: old[:-2] + b"?\0"), "the fields with which"
    ),
    "message: a Commit Prepared of another": Case(
        content("K", lambda old: old[:-2] + b"?\0"), "not have the changes of that prepared"
    ),
    # Positions
    "position: a Commit at 0": Case(content("C", put(10, ">Q", 0)), "a position past"),
    "position: a Commit at 2^63": Case(content("C", put(10, ">Q", 2**63)), "up to 2.63 - 1"),
    "position: a Commit at 2^64 - 1": Case(content("C", put(10, ">Q", LSN_MAX)), "up to 2.63 - 1"),
    "position: a Commit at 2^62": Case(content("C", put(10, ">Q", 2**62)), "flushed up to"),
    "position: a Commit of another Begin": Case(content("C", add(2, 8)), "the fields with which"),
    "position: a second Commit before the first": Case(
        content("C", put(10, ">Q", 16), 2), "a position past"
    ),
    "position: a Stream Commit at 2^62": Case(content("c", put(14, ">Q", 2**62)), "flushed up to"),
    "position: a Stream Commit at 0": Case(content("c", put(14, ">Q", 0)), "a position past"),
    "position: a Commit Prepared at 0": Case(content("K", put(10, ">Q", 0)), "a position past"),
    "position: a Commit Prepared at 2^62": Case(
        content("K", put(10, ">Q", 2**62)), "flushed up to"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_server_ends_capture_clearly_or_not_at_all(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    case = CASES[name]
    fault = copy.deepcopy(case.fault)
    with with_slot(source, "case") as slot:
        if case.error is None:
            stream_ends_after(case.silence_s, monkeypatch)
        silence_s = 60.0 if case.error is None else case.silence_s
        config = configure(source, slot, tmp_path / "spool", silence_s, case.connect_s)
        with HostileProxy(source.db.server.port, fault) as proxy:
            if case.error is None:
                capture(source, config, proxy)
            else:
                with pytest.raises(PgsluiceError, match=case.error):
                    capture(source, config, proxy)
        assert fault.has_acted
        capture(source, configure(source, slot, tmp_path / "spool"))
        assert all_changes(config.spool.path) == source.changes


def stream_ends_after(silence_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up a stream that is silent for so long. Commands have their time: the server is busy."""

    def make(*given: Any, **named: Any) -> ReceiverOptions:
        return replace(ReceiverOptions(*given, **named), silence_s=silence_s)

    monkeypatch.setattr("pgsluice.capture.streaming.ReceiverOptions", make)


ROWS: dict[str, tuple[Fault, str]] = {
    "a row that is cut": (content("I", lambda old: old[:-1]), "the value is truncated"),
    "a row with more bytes": (content("I", lambda old: old + b"x"), "bytes follow the new tuple"),
    "a row of 65,535 columns": (
        content("I", put(6, ">H", 65535)),
        "does not have the relation's 2 columns",
    ),
    "a value of -1 bytes": (content("I", put(9, ">i", -1)), "the value is truncated"),
    "a value of 2^31 - 1 bytes": (content("I", put(9, ">i", 2**31 - 1)), "the value is truncated"),
    "a value of an unknown kind": (content("I", put(8, ">B", 0x7A)), "of an unknown kind"),
    "an update without a new row": (content("U", lambda old: old[:5]), "the message is truncated"),
    "a delete without an old row": (content("D", lambda old: old[:5]), "the message is truncated"),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_bytes_of_a_row_are_checked_when_they_are_read(
    source: Source, tmp_path: Path, name: str
) -> None:
    """Capture does not look into rows, which would cost more than all the rest. What cannot be
    read is never guessed: it parks its table, which is copied again."""
    fault, words = ROWS[name]
    with with_slot(source, "row") as slot:
        config = configure(source, slot, tmp_path / "spool")
        with HostileProxy(source.db.server.port, copy.deepcopy(fault)) as proxy:
            capture(source, config, proxy)
        with pytest.raises(ProtocolError, match=words):
            all_changes(config.spool.path)


def test_a_server_that_closes_after_each_transaction_gets_through(
    source: Source, tmp_path: Path
) -> None:
    """Progress begins the pauses anew: the fifth one in a row would last ten minutes here."""
    ends = (b"C", b"c", b"K")
    fault = EachFrame(lambda said: [said.raw, *([CLOSE] if said.frame_tag in ends else [])])
    with with_slot(source, "closes") as slot:
        config = configure(source, slot, tmp_path / "spool")
        with HostileProxy(source.db.server.port, fault) as proxy:
            capture(source, config, proxy, pauses_s=(0.1, 0.1, 0.1, 0.1, 600.0))
        assert all_changes(config.spool.path) == source.changes


class Dropped(Fault):
    """Leaves out the nth transaction that comes at its commit."""

    def __init__(self, nth: int) -> None:
        super().__init__(lasts=True)
        self._left, self.has_ended = nth, False

    def said(self, said: Message) -> Reply | None:
        self._left -= said.frame_tag == b"B"
        if self._left or self.has_ended:
            return None
        self.has_ended = said.frame_tag == b"C"
        return []


def one_more(said: Message) -> list[bytes | Action]:
    """Another transaction before the one that begins."""
    begin = Begin.decode(said.pgoutput)
    commit = Commit(0, Lsn(begin.final_lsn - 2), Lsn(begin.final_lsn - 1), begin.commit_timestamp)
    change = b"I" + struct.pack(">IcH", 1, b"N", 1) + b"n"
    messages = replace(begin, final_lsn=commit.commit_lsn).encode(), change, commit.encode()
    return [*map(pgoutput, messages), said.raw]


ANOTHER = "restored from an older state"
RESENT: dict[str, tuple[Fault, str | None]] = {
    "all": (Fault(), None),
    "all, and each asks for a status": (
        EachFrame(lambda said: [keepalive(0, asks=True), said.raw]),
        None,
    ),
    "all, on many connections": (
        EachFrame(lambda said: [said.raw, *([CLOSE] if said.frame_tag in (b"C", b"K") else [])]),
        None,
    ),
    "not the first": (Dropped(1), ANOTHER),
    "not one in between": (Dropped(3), ANOTHER),
    "not the last": (Dropped(7), ANOTHER),
    "one more": (frame("B", one_more, 3), ANOTHER),
    "another xid": (content("B", put(17, ">I", 7), 2), ANOTHER),
    "another time": (content("C", add(18, 1), 2), ANOTHER),
    "another position": (content("C", add(10, 1), 2), ANOTHER),
    "another prepared one": (content("K", put(26, ">I", 7)), ANOTHER),
    "not what was prepared": (frame("K", instead()), ANOTHER),
    "nothing": (EachFrame(lambda said: [keepalive(2**40)]), ANOTHER),
}


@pytest.mark.parametrize("name", RESENT)
def test_a_server_sends_the_same_commits_again_or_is_refused(
    source: Source, tmp_path: Path, name: str
) -> None:
    """The slot of the second start is one from before the history, as after a crash of the server
    or in a restored one."""
    fault, error = RESENT[name]
    path = tmp_path / "spool"
    with with_slot(source, "resent") as slot:
        capture(source, configure(source, slot, path))
    with with_slot(source, "resent") as slot:
        before = acknowledged(source, slot)
        config = configure(source, slot, path)
        source.db.execute("CREATE TABLE unsent ()", "DROP TABLE unsent")  # there is something left
        for _ in range(1 if error is None else 2):
            with HostileProxy(source.db.server.port, copy.deepcopy(fault)) as proxy:
                if error is None:
                    capture(source, config, proxy)
                    continue
                with pytest.raises(ForeignSource, match=error):
                    capture(source, config, proxy)
                assert acknowledged(source, slot) == before
        capture(source, config)
        assert acknowledged(source, slot) > before
        assert all_changes(path) == source.changes


def acknowledged(source: Source, slot: str) -> Lsn:
    ((lsn,),) = source.db.execute(
        f"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{slot}'"
    )
    return Lsn.parse(lsn)
