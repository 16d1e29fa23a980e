"""What a server must not send: it is refused, nothing of it is durable, and nothing is lost.

Each case is a script that a sound server cannot send, after one transaction that it can. After
the refusal a sound server sends the same transactions again, and all of them are there.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from tests.support.scripted_server import (
    RELATION,
    NoFacts,
    Played,
    commit,
    commit_prepared,
    files,
    frames_of,
    plain,
    prepare,
    receive,
    receive_frames,
    row,
    rows,
    stream,
)
from tests.support.transactions import new_spool

from pgsluice.capture.receiving.receiver import Receiver, ReceiverOptions
from pgsluice.capture.receiving.store import Store
from pgsluice.errors import ProtocolError
from pgsluice.lsn import Lsn
from pgsluice.spool import SpoolReader, SpoolWriter
from pgsluice.wire import (
    Begin,
    Commit,
    Keepalive,
    LogicalMessage,
    StreamAbort,
    StreamStart,
    Truncate,
    Type,
)

GOOD = plain(8, 2000, RELATION, row("1"))
NEXT = plain(9, 2100, RELATION, row("2"))
OTHER = replace(RELATION, oid=16400, name="other")
OTHER_ROW = replace(row("2"), oid=16400)
MAX = 2**64 - 1


def ended(end: int) -> list[bytes]:
    """A transaction whose Commit has this end LSN, as bytes that no Lsn could hold."""
    begin, *inside, last = plain(9, 2100, row("2"))
    return [begin, *inside, last[:10] + end.to_bytes(8, "big") + last[18:]]


def streamed(end: int) -> list[bytes]:
    last = commit(9, 2100)
    return [*stream(9, RELATION, row("2")), last[:14] + end.to_bytes(8, "big") + last[22:]]


def prepared(end: int) -> list[bytes]:
    last = commit_prepared(9, "g", 2100)
    return [*prepare(9, "g", 2090, row("2")), last[:10] + end.to_bytes(8, "big") + last[18:]]


ILLEGAL = {
    "a relation that was never announced": plain(9, 2100, OTHER_ROW),
    "a relation announced after its change": plain(9, 2100, OTHER_ROW, OTHER),
    "a truncate of a relation that was never announced": plain(9, 2100, Truncate((16400,), 0)),
    "a relation that only the connection knows, in a stream": [
        *stream(9, row("2")), commit(9, 2100),
    ],
    "a relation of another stream": [
        *stream(7, OTHER, OTHER_ROW), *stream(9, OTHER_ROW), commit(9, 2100), commit(7, 2200),
    ],
    "a stream's relation before its commit": [
        *stream(7, OTHER, OTHER_ROW), *plain(9, 2100, OTHER_ROW), commit(7, 2200),
    ],
    "a relation of an aborted stream": [
        *stream(7, OTHER, OTHER_ROW), StreamAbort(7, 7).encode(), *plain(9, 2100, OTHER_ROW),
    ],
    "a relation of a subtransaction that was aborted": [
        *stream(9, RELATION, row("2"), replace(OTHER, xid=91), replace(OTHER_ROW, xid=91)),
        StreamAbort(9, 91).encode(),
        *stream(9, OTHER_ROW, is_first=False),
        commit(9, 2100),
    ],
    "a change outside of a transaction": [row("2").encode(), *NEXT],
    "a change after its transaction": [*plain(7, 2050), row("2").encode(), *NEXT],
    "a relation outside of a transaction": [RELATION.encode(), *NEXT],
    "a type outside of a transaction": [Type(20000, "public", "mood").encode(), *NEXT],
    "a transactional message outside of a transaction": [
        LogicalMessage(1, Lsn(2010), "p", b"").encode(), *NEXT,
    ],
    "a commit outside of a transaction": [Commit(0, Lsn(2095), Lsn(2100), 0).encode(), *NEXT],
    "a commit of another transaction": [
        Begin(Lsn(2094), 0, 9).encode(), row("2").encode(), *NEXT[-1:],
    ],
    "a begin inside a transaction": [*NEXT[:-1], *plain(10, 2200)],
    "a block inside a transaction": [*NEXT[:-1], StreamStart(7, True).encode()],
    "a row that ends before its relation": [*NEXT[:-1], b"I\0\0", *NEXT[-1:]],
    "a relation that is cut short": [*NEXT[:1], RELATION.encode()[:-1], *NEXT[2:]],
    "an unknown message": [b"z" + bytes(30), *NEXT],
    **{
        f"a position of {name} that is {end:#x}": make(end)
        for make, name in ((ended, "C"), (streamed, "c"), (prepared, "K"))
        for end in (0, 1999, 2000, 2**63, MAX)
    },
    "a position of M that goes back": [
        LogicalMessage(0, Lsn(1999), "p", b"").encode(), *NEXT,
    ],
    "a position of M that is not a signed number": [
        LogicalMessage(0, Lsn(2**63 - 1), "p", b"").encode(), *NEXT,
    ],
}  # fmt: skip


@pytest.mark.parametrize("case", ILLEGAL)
@pytest.mark.parametrize("segment_bytes", [64, 2**20])
def test_an_illegal_stream_is_refused_and_nothing_of_it_is_durable(tmp_path, case, segment_bytes):
    path = tmp_path / "spool"
    with pytest.raises(ProtocolError):
        receive(path, [*GOOD, *ILLEGAL[case]], segment_bytes=segment_bytes)
    assert rows(path) in ({}, {8: [b"1"]})
    assert SpoolReader(path).frontier() in (10, 2000, 2050)
    receive(path, [*GOOD, *NEXT], segment_bytes=segment_bytes)
    assert rows(path) == {8: [b"1"], 9: [b"2"]}


@pytest.mark.parametrize("name", ["C", "c", "K"])
def test_what_is_durable_already_may_come_again_at_the_start_of_a_connection(tmp_path, name):
    path = tmp_path / "spool"
    receive(path, [*GOOD, *NEXT])
    make = {"C": ended, "c": streamed, "K": prepared}[name]
    receive(path, [*GOOD, *make(2100), *plain(10, 2200, RELATION, row("3"))])
    assert rows(path) == {8: [b"1"], 9: [b"2"], 10: [b"3"]}


@pytest.mark.parametrize(
    "frame",
    [
        b"d" + frames_of(NEXT)[1][1:],
        b"k" + frames_of(NEXT)[1][1:],
        b"\0" + bytes(40),
        b"d" + bytes(17),
        b"w" + bytes(24),
        b"w",
    ],
    ids=["long d", "long k", "long NUL", "short d", "w without a message", "w alone"],
)
def test_a_frame_is_known_by_its_first_byte(tmp_path, frame):
    path = tmp_path / "spool"
    with pytest.raises(ProtocolError):
        receive_frames(path, [*frames_of([*GOOD, NEXT[0]]), frame, *frames_of(NEXT[1:])])
    receive(path, [*GOOD, *NEXT])
    assert rows(path) == {8: [b"1"], 9: [b"2"]}


def keepalive(end: int) -> bytes:
    return Keepalive(Lsn(end), 0, reply_requested=False).encode()


ABSURD = 2**62


@pytest.mark.parametrize(
    "frames",
    [
        [*frames_of(GOOD), keepalive(ABSURD)],
        [keepalive(ABSURD), *frames_of(GOOD)],
        [*frames_of(GOOD), b"k" + bytes([0xFF] * 8) + bytes(9)],
        [*frames_of(GOOD), *frames_of(plain(9, ABSURD, row("2")))],
        frames_of(
            [*GOOD, *(m for n in range(5) for m in plain(9 + n, 2100 + n)), *plain(20, ABSURD)]
        ),
        [*frames_of([*GOOD, *stream(9, RELATION, row("2")), commit(9, ABSURD)])],
        [*frames_of([*GOOD, *prepare(9, "g", 2090, row("2")), commit_prepared(9, "g", ABSURD)])],
        frames_of([*GOOD, LogicalMessage(0, Lsn(ABSURD), "p", b"").encode()]),
    ],
    ids=[
        "keepalive",
        "keepalive first",
        "keepalive of FFFFFFFF/FFFFFFFF",
        "C",
        "C of many",
        "c",
        "K",
        "M",
    ],
)
def test_no_lsn_is_believed_past_the_server_s_flush_lsn(tmp_path, frames):
    path = tmp_path / "spool"
    with pytest.raises(ProtocolError, match=r"flushed up to 0/898 only|expected an? LSN|end"):
        receive_frames(path, frames, facts=NoFacts(lambda: Lsn(2200)))
    assert SpoolReader(path).frontier() <= 2000
    receive(path, [*GOOD, *NEXT])
    assert rows(path) == {8: [b"1"], 9: [b"2"]}


def test_a_keepalive_within_the_flush_lsn_moves_the_frontier(tmp_path):
    """It is acknowledged only when it is durable."""
    path, far = tmp_path / "spool", Lsn(2**40)
    spool = new_spool(path, Lsn(10))
    played = Played([*frames_of(GOOD), keepalive(far)], threading.Event())
    facts, stop = NoFacts(lambda: far), threading.Event()
    with SpoolWriter(spool) as writer, Store(writer, None) as store:
        Receiver(played, store, facts, ReceiverOptions(2048, 0, until=far), stop).run()
    assert SpoolReader(path).frontier() == far
    assert played.acknowledged[-1] == far


def test_the_server_is_asked_only_for_a_jump_past_what_is_known(tmp_path):
    asked: list[Lsn] = []

    def flush_lsn() -> Lsn:
        asked.append(Lsn(2**40))
        return asked[-1]

    steps = [keepalive(end) for end in range(2**20, 2**27, 2**20)]
    facts, size = NoFacts(flush_lsn), 16 * 2**20
    receive_frames(tmp_path / "near", steps[:10], facts=facts, segment_bytes=size)
    assert not asked
    receive_frames(tmp_path / "far", steps, facts=facts, segment_bytes=size)
    assert len(asked) == 1
    receive_frames(tmp_path / "small", steps[:1], facts=facts, segment_bytes=2**20 - 16)
    assert len(asked) == 2


def test_a_relation_is_announced_once_for_the_connection(tmp_path):
    """In the chunk of its announcement and in later ones."""
    path = tmp_path / "spool"
    script = [*GOOD, *plain(9, 2100, row("2"), OTHER, OTHER_ROW), *plain(10, 2200, OTHER_ROW)]
    many = [plain(100 + n, 3000 + n * 10, row("3")) for n in range(1000)]
    receive(path, [*script, *(message for one in many for message in one)])
    assert len(rows(path)) == 1003


def test_an_aborted_stream_leaves_no_parts_while_the_connection_lives(tmp_path):
    path = tmp_path / "spool"
    seen: list[int] = []
    frames = [
        *frames_of(stream(7, RELATION, row("1" * 100))),
        lambda: None,
        *frames_of([StreamAbort(7, 7).encode()]),
        *frames_of(plain(8, 2000, RELATION, row("2"))),
        *frames_of(plain(9, 2100, row("3"))),
    ]
    spool = new_spool(path, Lsn(10))
    played = Played(frames, stop := threading.Event())
    with SpoolWriter(spool) as writer, Store(writer, None) as store:
        Receiver(played, store, NoFacts(), ReceiverOptions(64, 3600), stop).run()
        seen.append(len(files(path)))
    assert seen == [0]
