"""The messages of a COPY in received bytes, whatever their values look like. No server."""

from __future__ import annotations

import random
import struct

import numpy as np
import psycopg
import pytest

from pgsluice.errors import ProtocolError
from pgsluice.snapshots.copy_messages import CopyMessages, may_be_over, message_bytes

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
COLUMNS = 2


def message(tag: bytes, body: bytes) -> bytes:
    return tag + struct.pack(">I", len(body) + 4) + body


def row(*values: bytes | None, columns: int = COLUMNS) -> bytes:
    fields = [
        struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
        for value in values
    ]
    return struct.pack(">H", columns) + b"".join(fields)


def said(*rows: bytes, count: int | None = None, columns: int = COLUMNS) -> bytes:
    """What a server says to a COPY of these rows."""
    first, *others = [*rows, b"\xff\xff"]
    answer = message(b"H", struct.pack(">bH", 1, columns) + struct.pack(">H", 1) * columns)
    answer += message(b"d", HEADER + first)
    answer += b"".join(message(b"d", each) for each in others)
    answer += message(b"c", b"")
    answer += message(b"C", b"COPY %d\0" % (len(rows) if count is None else count))
    return answer + message(b"Z", b"I")


def follow(answer: bytes, *cuts: int) -> tuple[CopyMessages, list[bytes]]:
    """Follow what comes in pieces; the rows."""
    data = np.frombuffer(answer, np.uint8)
    messages, begin, rows = CopyMessages(), 0, []
    for end in (*sorted(cuts), len(data)):
        begin = messages.follow(data, begin, end)
        starts, ends = messages.take_rows()
        rows += [answer[start:stop] for start, stop in zip(starts, ends, strict=True)]
    return messages, rows


LIKE_A_ROW = message(b"d", row(b"a", b"b"))
"""Bytes of a value that look like a message with a row."""
ROWS = [
    row(b"1", b"first"),
    row(None, None),
    row(b"2", LIKE_A_ROW),
    row(LIKE_A_ROW * 3, b""),
    row(b"3", LIKE_A_ROW[:7]),
    row(b"4", b"d" * 50),
    row(b"5", b"last"),
]


def test_rows_are_found_wherever_what_came_is_cut() -> None:
    answer = said(*ROWS)
    for cut in range(len(answer) + 1):
        messages, rows = follow(answer, cut)
        assert rows == ROWS
        assert messages.is_over


@pytest.mark.parametrize("columns", [1, 2, 100, 256, 1600])
def test_many_rows_some_of_which_look_like_several(columns: int) -> None:
    chance = random.Random(columns)
    like = message(b"d", struct.pack(">H", columns) + bytes(4))
    parts = [bytes(30), b"text", like, like[:-5], b"", b"d\0\0\0"]
    rows = [
        struct.pack(">H", columns) + b"".join(chance.choices(parts, k=chance.randint(1, 9)))
        for _ in range(12000)
    ]
    answer = said(*rows, columns=columns)
    assert len(answer) > 2 * 256 * 1024
    assert follow(answer)[1] == rows
    assert follow(answer, *chance.sample(range(len(answer)), 20))[1] == rows


def test_long_rows_among_short_ones() -> None:
    chance = random.Random(7)
    rows = [row(b"1", LIKE_A_ROW * chance.choice([0, 0, 1, 90, 20000])) for _ in range(300)]
    answer = said(*rows)
    assert follow(answer)[1] == rows
    assert follow(answer, *chance.sample(range(len(answer)), 20))[1] == rows


def test_no_rows() -> None:
    messages, rows = follow(said())
    assert (messages.is_over, rows) == (True, [])


def test_notices_settings_and_notifications_may_come_at_any_time() -> None:
    others = [
        message(b"N", b"SNOTICE\0C00000\0Mhello\0\0"),
        message(b"S", b"TimeZone\0UTC\0"),
        message(b"A", bytes(8)),
    ]
    answer = said(*ROWS)
    begins = [0]
    while begins[-1] < len(answer):
        begins.append(begins[-1] + message_bytes(np.frombuffer(answer[begins[-1] :], np.uint8)))
    for begin in begins:
        for other in others:
            messages, rows = follow(answer[:begin] + other + answer[begin:])
            assert (messages.is_over, rows) == (True, ROWS)


def test_the_server_says_how_many_rows_there_are() -> None:
    for count in (0, len(ROWS) - 1, len(ROWS) + 1):
        with pytest.raises(ProtocolError):
            follow(said(*ROWS, count=count))


def test_an_error_is_what_libpq_would_make_of_it() -> None:
    fields = b"SFEHLER\0VERROR\0C22012\0Mdivision by zero\0Dsecret\0Rint4div\0\0"
    messages, _ = follow(message(b"E", fields) + message(b"Z", b"E"))
    assert messages.is_over
    error = messages.error
    assert isinstance(error, psycopg.errors.DivisionByZero)
    assert error.sqlstate == "22012"
    assert error.diag.message_primary == "division by zero"
    assert error.diag.source_function == "int4div"
    assert "secret" not in str(error)


def test_an_error_with_a_state_that_is_not_known() -> None:
    messages, _ = follow(message(b"E", b"SERROR\0CXY123\0Mno\0\0") + message(b"Z", b"E"))
    assert type(messages.error) is psycopg.DatabaseError
    assert messages.error.sqlstate == "XY123"


@pytest.mark.parametrize(
    "answer",
    [
        message(b"d", row(b"a", b"b")),
        message(b"H", bytes(3)) + message(b"d", b"1\t2\n"),
        message(b"H", bytes(3)) + message(b"d", bytes(30)),
        message(b"T", bytes(2)),
        said(ROWS[0])[:-6] + message(b"H", bytes(3)),
    ],
)
def test_what_is_no_copy_in_binary_form_is_refused(answer: bytes) -> None:
    with pytest.raises(ProtocolError):
        follow(answer)


def test_the_end_may_be_seen_in_its_last_bytes() -> None:
    assert may_be_over(np.frombuffer(said(*ROWS), np.uint8))
    assert not may_be_over(np.frombuffer(said(*ROWS)[:-1], np.uint8))
    assert not may_be_over(np.zeros(3, np.uint8))
