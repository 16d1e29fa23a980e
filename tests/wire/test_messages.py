"""Each message, both ways, on golden bytes; and each way in which bytes can be wrong."""

from __future__ import annotations

import dataclasses
import pickle
import tracemalloc
from typing import Any, get_args

import pytest
from tests.wire.wire_vectors import FRAME_VECTORS, VECTORS, WIDTHS, Vector

from pgsluice.errors import ProtocolError
from pgsluice.lsn import Lsn
from pgsluice.wire import (
    MESSAGES,
    POSTGRES_EPOCH_US,
    UNCHANGED,
    Begin,
    Commit,
    CopyData,
    Insert,
    Keepalive,
    LogicalMessage,
    Message,
    Relation,
    RelationColumn,
    ReplicaIdentity,
    StreamAbort,
    Truncate,
    TupleData,
    Type,
    XLogData,
    decode_copy_data,
    decode_message,
)

ALL = VECTORS + FRAME_VECTORS
each_vector = pytest.mark.parametrize("vector", ALL, ids=[vector.name for vector in ALL])


def decode(vector: Vector, data: bytes) -> Message | CopyData:
    if vector in FRAME_VECTORS:
        return decode_copy_data(data)
    return decode_message(data, **vector.options)


# ── both ways ───────────────────────────────────────────────────────────────────────────────


@each_vector
def test_the_fields_are_as_wide_as_their_names_say(vector: Vector) -> None:
    for width, name, part in vector.fields:
        assert WIDTHS[width] in (None, len(part)), name
        assert width != "String" or part.endswith(b"\0"), name


@each_vector
def test_bytes_become_the_message(vector: Vector) -> None:
    assert decode(vector, vector.data) == vector.message
    assert type(vector.message).decode(vector.data, **vector.options) == vector.message


@each_vector
def test_the_message_becomes_the_bytes(vector: Vector) -> None:
    assert vector.message.encode() == vector.data


@each_vector
def test_any_bytes_like_object_will_do(vector: Vector) -> None:
    assert decode(vector, memoryview(vector.data)) == vector.message  # type: ignore[arg-type]
    assert decode(vector, bytearray(vector.data)) == vector.message  # type: ignore[arg-type]


@each_vector
def test_a_message_is_a_frozen_slotted_value(vector: Vector) -> None:
    message = vector.message
    assert hash(message) == hash(decode(vector, vector.data))
    assert not hasattr(message, "__dict__")
    for name in [field.name for field in dataclasses.fields(message)][:1]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(message, name, None)
    assert pickle.loads(pickle.dumps(message)) == message


@pytest.mark.parametrize("identity", ReplicaIdentity)
def test_every_replica_identity_travels(identity: ReplicaIdentity) -> None:
    relation = Relation(1, "s", "t", identity, ())
    assert decode_message(relation.encode()) == relation


def test_the_table_of_messages_is_the_protocol() -> None:
    assert "".join(sorted(map(chr, MESSAGES))) == "".join(sorted("BCORYIUDTMSEcAbPKrp"))
    assert set(MESSAGES.values()) == set(get_args(Message))
    assert {type(vector.message) for vector in VECTORS} == set(get_args(Message))
    assert {type(vector.message) for vector in FRAME_VECTORS} == set(get_args(CopyData))


def test_the_epoch_is_2000_01_01() -> None:
    assert POSTGRES_EPOCH_US == 10_957 * 86_400 * 1_000_000


# ── what a message says of itself ───────────────────────────────────────────────────────────


def test_what_flags_mean() -> None:
    assert RelationColumn(1, "a", 23, -1).is_key
    assert not RelationColumn(0, "a", 23, -1).is_key
    assert (Truncate((1,), 1).is_cascade, Truncate((1,), 1).is_restart_identity) == (True, False)
    assert (Truncate((1,), 2).is_cascade, Truncate((1,), 2).is_restart_identity) == (False, True)
    assert LogicalMessage(1, Lsn(0), "", b"").is_transactional
    assert not LogicalMessage(0, Lsn(0), "", b"").is_transactional
    assert StreamAbort(731, 731).is_top_level
    assert not StreamAbort(731, 732).is_top_level


def test_an_empty_namespace_is_pg_catalog() -> None:
    assert Relation(1, "", "t", ReplicaIdentity.FULL, ()).schema == "pg_catalog"
    assert Relation(1, "s", "t", ReplicaIdentity.FULL, ()).schema == "s"


def test_what_a_tuple_says_of_its_columns() -> None:
    row = TupleData.of("ü", None, UNCHANGED, b"\0")
    assert (row.kinds, row.values) == (b"tnub", ("ü".encode(), None, None, b"\0"))
    assert len(row) == 4
    assert [row.is_null(i) for i in range(4)] == [False, True, False, False]
    assert [row.is_unchanged(i) for i in range(4)] == [False, False, True, False]
    assert [row.is_binary(i) for i in range(4)] == [False, False, False, True]


# ── wrong bytes ─────────────────────────────────────────────────────────────────────────────


def refused(data: bytes, decoder: Any = decode_message, **options: bool) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        decoder(data, **options)
    error = caught.value
    # Where it is, what should be there; and nothing of what was there.
    assert error.tag == (chr(data[0]) if data else None)
    assert 0 <= error.offset <= len(data)
    assert error.expected in str(error)
    assert error.__cause__ is None
    assert error.__context__ is None or error.__suppress_context__
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.facts) == (str(error), error.facts)
    return error


@each_vector
def test_cut_short_at_every_byte(vector: Vector) -> None:
    data = vector.data
    header = 25  # XLogData's own fields; its message may be of any length
    whole = header if isinstance(vector.message, XLogData) else len(data)
    for size in range(whole):
        error = refused(data[:size], lambda data: decode(vector, data))
        assert error.offset <= size


@pytest.mark.parametrize(
    "vector",
    [vector for vector in ALL if not isinstance(vector.message, XLogData)],
    ids=lambda vector: vector.name,
)
def test_with_bytes_left_over(vector: Vector) -> None:
    for rest in (b"\0", b"B", vector.data):
        error = refused(vector.data + rest, lambda data: decode(vector, data))
        assert error.offset == len(vector.data)


WRONG: list[tuple[str, bytes, dict[str, bool], int, str]] = [
    ("nothing at all", b"", {}, 0, "a tag"),
    ("an unknown tag", b"Z", {}, 0, "a tag"),
    ("a tag in lower case, as one of the documents has it", b"i", {}, 0, "a tag"),
    ("an LSN of 2^63", b"B\x80" + bytes(19), {}, 1, "up to 2^63 - 1"),
    ("the second LSN of 2^63", b"C" + bytes(9) + b"\x80" + bytes(15), {}, 10, "up to 2^63 - 1"),
    ("flags on a commit", b"C\x01" + bytes(24), {}, 1, "no other bits"),
    ("flags on a stream commit", b"c\0\0\0\1\x80" + bytes(24), {}, 5, "no other bits"),
    ("flags on a prepare", b"P\x01" + bytes(29), {}, 1, "no other bits"),
    ("flags on a commit prepared", b"K\x01" + bytes(29), {}, 1, "no other bits"),
    ("a third first-segment", b"S\0\0\0\1\2", {}, 5, "no other bits"),
    ("a name without its NUL", b"O" + bytes(8) + b"name", {}, 9, "a NUL"),
    ("a name that is not UTF-8", b"O" + bytes(8) + b"ok\xff\0", {}, 11, "UTF-8"),
    ("a name in an encoded surrogate", b"Y\0\0\0\1\xed\xa0\x80\0t\0", {}, 5, "UTF-8"),
    ("an overlong NUL in a name", b"Y\0\0\0\1s\0\xc0\x80\0", {}, 7, "UTF-8"),
    ("no replica identity", b"R\0\0\0\1s\0t\0x\0\0", {}, 9, "'d' or 'n' or 'f' or 'i'"),
    ("fewer than no columns", b"R\0\0\0\1s\0t\0d\xff\xff", {}, 10, "at least 0"),
    ("more columns than bytes", b"R\0\0\0\1s\0t\0d\0\2" + bytes(19), {}, 10, "19 bytes left"),
    ("unknown column flags", b"R\0\0\0\1s\0t\0d\0\1\2a\0" + bytes(8), {}, 12, "no other bits"),
    ("an insert of an old row", b"I\0\0\0\1O\0\0", {}, 5, "'N'"),
    ("an insert of a new row in lower case", b"I\0\0\0\1n\0\0", {}, 5, "'N'"),
    ("an update that begins otherwise", b"U\0\0\0\1X\0\0", {}, 5, "'K' or 'O' or 'N'"),
    ("an update with both key and row", b"U\0\0\0\1K\0\0O\0\0N\0\0", {}, 8, "'N'"),
    ("a delete of a new row", b"D\0\0\0\1N\0\0", {}, 5, "'K' or 'O'"),
    ("an unknown kind of value", b"I\0\0\0\1N\0\1x", {}, 8, "kind of column 0"),
    ("a value of negative length", b"I\0\0\0\1N\0\1t\xff\xff\xff\xff", {}, 9, "from 0 to the 0"),
    ("a value longer than the rest", b"I\0\0\0\1N\0\1b\0\0\0\2a", {}, 9, "from 0 to the 1"),
    ("a row of fewer than no columns", b"I\0\0\0\1N\x80\0", {}, 6, "at least 0"),
    ("a row of more columns than bytes", b"I\0\0\0\1N\0\2n", {}, 6, "1 bytes left"),
    ("more relations than bytes", b"T\x7f\xff\xff\xff\0\0\0\0\1", {}, 1, "bytes left"),
    ("one relation too many", b"T\0\0\0\2\0" + bytes(7), {}, 6, "8 bytes"),
    ("fewer than no relations", b"T\xff\xff\xff\xff\0", {}, 1, "at least 0"),
    ("an unknown truncate flag", b"T\0\0\0\1\4\0\0\0\1", {}, 5, "no other bits"),
    ("unknown message flags", b"M\2" + bytes(13), {}, 1, "no other bits"),
    ("a content of negative length", b"M\0" + bytes(9) + b"\x80\0\0\0", {}, 11, "at least 0"),
    ("a content longer than the rest", b"M\0" + bytes(9) + b"\0\0\0\2x", {}, 11, "1 bytes left"),
    ("an insert without the stream's xid", b"I\0\0\0\1N\0\0", {"in_stream": True}, 1, "xid"),
    ("an abort without where and when", b"A\0\0\0\1\0\0\0\1", {"parallel": True}, 9, "abort_lsn"),
    ("an abort with where and when", b"A\0\0\0\1\0\0\0\1" + bytes(16), {}, 9, "end"),
]


@pytest.mark.parametrize(
    ("data", "options", "offset", "expected"),
    [case[1:] for case in WRONG],
    ids=[case[0] for case in WRONG],
)
def test_wrong_bytes_are_named(
    data: bytes, options: dict[str, bool], offset: int, expected: str
) -> None:
    error = refused(data, **options)
    assert error.offset == offset
    assert expected in error.expected


WRONG_FRAMES: list[tuple[str, bytes, int, str]] = [
    ("nothing at all", b"", 0, "a tag"),
    ("an unknown tag", b"B", 0, "a tag"),
    ("a reply flag of 2", b"k" + bytes(16) + b"\2", 17, "no other bits"),
    ("an LSN of 2^63", b"w\x80" + bytes(23), 1, "up to 2^63 - 1"),
]


@pytest.mark.parametrize(
    ("data", "offset", "expected"),
    [case[1:] for case in WRONG_FRAMES],
    ids=[case[0] for case in WRONG_FRAMES],
)
def test_wrong_frames_are_named(data: bytes, offset: int, expected: str) -> None:
    error = refused(data, decode_copy_data)
    assert error.offset == offset
    assert expected in error.expected


def test_a_message_asked_for_by_name_is_that_message() -> None:
    assert "Commit" in str(refused(b"B" + bytes(20), Commit.decode))
    assert "Keepalive" in str(refused(b"", Keepalive.decode))


def test_the_error_says_where_in_the_wal() -> None:
    with pytest.raises(
        ProtocolError, match=r"^at 0/10: Begin message .* expected 8 bytes"
    ) as caught:
        decode_message(b"B", lsn=Lsn(16))
    assert (caught.value.lsn, caught.value.tag, caught.value.offset) == (16, "B", 1)


def test_errors_carry_nothing_of_a_row() -> None:
    secret = b"Kowalski"
    for data in (
        Insert(1, TupleData.of(secret)).encode()[:-1],
        Insert(1, TupleData.of(secret)).encode() + secret,
        Type(1, "Kowalski", "x").encode()[:-1],
        b"O" + bytes(8) + secret + b"\xff\0",
        LogicalMessage(1, Lsn(0), "p", secret).encode()[:-1],
    ):
        assert "Kowalski" not in repr(refused(data).__reduce__())


@pytest.mark.parametrize(
    "data",
    [
        b"R\0\0\0\1s\0t\0d\x7f\xff" + bytes(100),
        b"I\0\0\0\1N\x7f\xff" + b"n" * 100,
        b"I\0\0\0\1N\0\1t\x7f\xff\xff\xff" + bytes(100),
        b"T\x7f\xff\xff\xff\0" + bytes(100),
        b"M\0" + bytes(9) + b"\x7f\xff\xff\xff" + bytes(100),
    ],
    ids=["columns", "values", "a value", "relations", "content"],
)
def test_a_claim_costs_no_memory(data: bytes) -> None:
    refused(data)  # what is loaded once is loaded now
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decode_message(data)
        assert tracemalloc.get_traced_memory()[1] < 32 * 1024
    finally:
        tracemalloc.stop()


# ── messages that have no bytes ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (Begin(Lsn(0), 0, -1), "xid is between 0 and 4294967295"),
        (Begin(Lsn(0), 0, 2**32), "xid is between"),
        (Begin(Lsn(0), 2**63, 0), "commit_timestamp is between"),
        (Begin(2**63, 0, 0), "final_lsn is between"),  # type: ignore[arg-type]
        (Commit(1, Lsn(0), Lsn(0), 0), "flags has no other bits"),
        (Truncate((1,), 4), "flags has no other bits"),
        (Truncate((-1,), 0), "relation oid is between"),
        (Type(1, "a\0b", "t"), "namespace holds no NUL"),
        (Type(1, "s", "\ud800"), "name is text that UTF-8 can hold"),
        (Relation(1, "s", "t", "x", ()), "ReplicaIdentity"),  # type: ignore[arg-type]
        (
            Relation(1, "s", "t", ReplicaIdentity.FULL, (RelationColumn(0, "a", 1, 0),) * 2**15),
            "column count is between",
        ),
        (Insert(1, TupleData(b"t", ())), "as many kinds as values"),
        (Insert(1, TupleData(b"n", (b"1",))), "do not belong together"),
        (Insert(1, TupleData(b"t", (None,))), "do not belong together"),
        (Insert(1, TupleData(b"x", (None,))), "do not belong together"),
    ],
)
def test_what_cannot_be_read_back_is_not_written(message: Message, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        message.encode()
