"""The rows of data files on their way into new files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap

from pgsluice.sinks.lake.data_files import live_batches, whole_groups
from pgsluice.sinks.lake.layout.layout import ROWS_IN_A_GROUP
from pgsluice.sinks.lake.snapshot import DataFile
from pgsluice.stores.local import LocalFolder

MIB = 2**20
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("text", pa.large_string())])


def wide(ids: range, text_bytes: int) -> pa.RecordBatch:
    texts = pa.array(["x" * text_bytes], pa.large_string()).take(pa.array([0] * len(ids)))
    return pa.record_batch([pa.array(ids, pa.int64()), texts], schema=SCHEMA)


def test_groups_have_as_many_rows_as_is_worth_reading_at_once() -> None:
    batches = [wide(range(start, start + 1000), 1) for start in range(0, 100_000, 1000)]
    groups = [*whole_groups(batches)]
    assert [len(group) for group in groups] == [66_000, 34_000]
    assert pa.Table.from_batches(groups)["id"].to_pylist() == [*range(100_000)]


def test_groups_of_wide_rows_are_no_larger_than_memory_allows() -> None:
    batches = [wide(range(start, start + 4), 4 * MIB) for start in range(0, 24, 4)]
    groups = [*whole_groups(batches)]
    assert max(group.nbytes for group in groups) < 33 * MIB
    assert pa.Table.from_batches(groups)["id"].to_pylist() == [*range(24)]


def write_file(folder: Path, name: str, groups: list[pa.RecordBatch]) -> DataFile:
    with pq.ParquetWriter(folder / name, SCHEMA) as writer:
        for group in groups:
            writer.write_batch(group)
    return DataFile(name, 0, recorded_rows=sum(map(len, groups)))


def test_the_live_rows_of_many_groups_come_in_their_order(tmp_path: Path) -> None:
    size = ROWS_IN_A_GROUP // 2
    groups = [wide(range(first, first + size), 1) for first in range(0, 4 * size, size)]
    files = [write_file(tmp_path, "a", groups[:3]), write_file(tmp_path, "b", groups[3:])]
    dead = [BitMap([0, size, 2 * size + 1]), BitMap([size - 1])]
    live = live_batches(LocalFolder(tmp_path), zip(files, dead, strict=True), SCHEMA)
    gone = {0, size, 2 * size + 1, 4 * size - 1}
    ids = pa.Table.from_batches([*live])["id"].to_pylist()
    assert ids == [number for number in range(4 * size) if number not in gone]


def test_an_error_while_rows_are_read_ahead_ends_the_rows(tmp_path: Path) -> None:
    size = ROWS_IN_A_GROUP
    file = write_file(tmp_path, "a", [wide(range(size), 1), wide(range(size), 1)])

    def files() -> Iterator[tuple[DataFile, BitMap]]:
        yield file, BitMap()
        yield DataFile("missing", 0, recorded_rows=1), BitMap()

    live = live_batches(LocalFolder(tmp_path), files(), SCHEMA)
    assert len(next(live)) == len(next(live)) == size
    with pytest.raises(Exception, match=r"the data file missing .* does not exist"):
        next(live)
