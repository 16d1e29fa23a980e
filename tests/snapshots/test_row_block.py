"""Rows in COPY's binary form are split into columns: against a parser of one value at a time."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import numpy as np
import pytest

from pgsluice.errors import ProtocolError
from pgsluice.snapshots.row_block import RowBlock
from pgsluice.types.codec import Spans

Row = Sequence[bytes | None]


def row_bytes(row: Row) -> bytes:
    """A row as the server sends it."""
    fields = (
        struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
        for value in row
    )
    return struct.pack(">h", len(row)) + b"".join(fields)


def block_of(rows: Sequence[Row], gap: bytes = b"d....") -> RowBlock:
    """A block with nothing behind its last row."""
    data, starts, ends = bytearray(), [], []
    for row in rows:
        data += gap
        starts.append(len(data))
        data += row_bytes(row)
        ends.append(len(data))
    return RowBlock(np.frombuffer(data, np.uint8), np.array(starts), np.array(ends))


def values_of(column: Spans, width: int | None) -> list[bytes | None]:
    """A column's values; those of one width are read in the way of a decoder, too."""
    values: list[bytes | None] = column.array().to_pylist()
    if width is not None:
        matrix = column.of_width(width, "any")
        assert [bytes(line) for line in matrix] == [value or bytes(width) for value in values]
    return values


def split(block: RowBlock, widths: Sequence[int | None]) -> list[Row]:
    columns = map(values_of, block.columns(widths), widths)
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize("seed", range(60))
def test_columns_are_those_of_the_rows(seed: int) -> None:
    """Of all widths, with and without NULLs; also in the last row, behind which nothing lies."""
    chance = random.Random(seed)
    widths = [chance.choice([1, 2, 4, 4, 8, None]) for _ in range(chance.randint(1, 40))]
    nulls = chance.choice([0, 0, 0.02, 0.5, 1])
    may_be_null = [chance.random() < 0.3 for _ in widths]

    def value(width: int | None, has_nulls: bool) -> bytes | None:
        if has_nulls and chance.random() < nulls:
            return None
        return chance.randbytes(chance.randint(0, 9) if width is None else width)

    rows = [tuple(map(value, widths, may_be_null)) for _ in range(chance.choice([1, 2, 3, 50]))]
    assert split(block_of(rows), widths) == rows


def test_rows_of_equal_length_need_not_have_equal_columns() -> None:
    rows = [(b"abcd", b"1234", b"x", None), (None, b"1234", b"abcde", None), (b"", b"", b"", b"")]
    rows = [(*row, bytes(4)) for row in rows]
    rows[2] = (b"abcd", bytes(4), b"", b"", b"zzzz")
    assert split(block_of(rows), [None, 4, None, None, 4]) == rows


def test_a_row_of_nulls_may_be_the_last_one() -> None:
    """Its columns are shorter than they should be: what is taken together would lie behind it."""
    rows = [(bytes(8),) * 9, (None,) * 9]
    assert split(block_of(rows, b""), [8] * 9) == rows
    assert split(block_of(rows[1:], b""), [8] * 9) == rows[1:]


@pytest.mark.parametrize(
    "row",
    [
        row_bytes([bytes(4)]),
        row_bytes([bytes(4), bytes(4), bytes(4)]),
        row_bytes([bytes(4), bytes(4)])[:-1],
        row_bytes([bytes(4), bytes(4)]) + b".",
        struct.pack(">hi4si", 2, 4, bytes(4), 5) + bytes(4),
        struct.pack(">hi4si", 2, 4, bytes(4), 2**31 - 1) + bytes(4),
        struct.pack(">hi", 2, 10) + bytes(8),
    ],
)
@pytest.mark.parametrize("widths", [[4, 4], [4, None], [None, 4]])
def test_bytes_that_are_no_rows_are_refused(row: bytes, widths: list[int | None]) -> None:
    good = row_bytes([bytes(4), bytes(4)])
    data = np.frombuffer(good + row, np.uint8)
    block = RowBlock(data, np.array([0, len(good)]), np.array([len(good), len(data)]))
    with pytest.raises(ProtocolError):
        list(block.columns(widths))
