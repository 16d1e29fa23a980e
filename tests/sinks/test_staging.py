"""The files that a copy's tasks write, and how much memory that takes."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.children import Child
from tests.support.waiting import HANGS_S

from pgsluice.errors import TargetUnreachable
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import StagedRows, TargetTable
from pgsluice.sinks.delta.sink import DeltaSink
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.identity import TargetIdentity
from pgsluice.types.buffers import fixed_width, large_binary

MIB = 2**20
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])


def staged(lake: Path, batches: Iterator[pa.RecordBatch]) -> StagedRows:
    """Stage batches in a table that is merged on read, so that it gets sidecars."""
    sink = DeltaSink(f"{lake}/{{table}}", merge="on_read", cache_dir=str(lake / "cache"))
    table = TargetTable("public", "t", SCHEMA, ("id",))
    return TableWriter(sink, table, TargetIdentity("a-spool", 1, 1)).stage_load(batches, Lsn(1))


def many_rows(count: int) -> Iterator[pa.RecordBatch]:
    """Rows with numbers and NULLs, in one batch."""
    numbers = fixed_width(np.arange(count), pa.int64())
    yield pa.RecordBatch.from_arrays([numbers, pa.nulls(count, pa.string())], schema=SCHEMA)


def large_rows(count: int, size: int) -> Iterator[pa.RecordBatch]:
    """Rows with a text that cannot be compressed, each in a batch that nothing else keeps."""
    for number in range(count):
        letters = np.random.default_rng(number).integers(97, 123, size, np.uint8)
        values = large_binary(letters, np.array([0, size]), None).cast(pa.string())
        del letters
        batch = pa.RecordBatch.from_arrays([pa.array([number], pa.int64()), values], schema=SCHEMA)
        del values
        yield batch
        del batch


def peak_bytes() -> int:
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def in_child(run: Callable[[Path], None], folder: Path) -> tuple[int, ...]:
    """The peaks that a process of its own wrote down."""
    child = Child(run, folder)
    assert child.wait(HANGS_S) == 0
    return tuple(map(int, (folder / "peaks").read_text().split()))


def stage_portions(folder: Path) -> None:
    """Stage 4 portions of a table, and 12 more."""
    peaks = []
    for portions in (4, 12):
        for _ in range(portions):
            staged(folder, many_rows(256 * 1024))
        peaks.append(peak_bytes())
    (folder / "peaks").write_text(" ".join(map(str, peaks)))


def stage_huge_rows(folder: Path) -> None:
    """Stage small rows, and then some that are large, one after the other."""
    staged(folder, large_rows(2, MIB))
    peaks = [peak_bytes()]
    staged(folder, large_rows(3, 64 * MIB))
    peaks.append(peak_bytes())
    (folder / "peaks").write_text(" ".join(map(str, peaks)))


def test_a_process_does_not_grow_with_the_portions_that_it_stages(tmp_path: Path) -> None:
    after_4, after_16 = in_child(stage_portions, tmp_path)
    assert len(list(tmp_path.glob("cache/**/*.keys"))) == 16
    assert after_16 <= after_4 + 16 * MIB, "the sidecars of 12 portions have 36 MiB"


def test_a_huge_row_is_in_memory_four_times_at_most(tmp_path: Path) -> None:
    """As it is read, as Parquet's values and page, and compressed. What reads it is not counted."""
    before, after = in_child(stage_huge_rows, tmp_path)
    assert after <= before + 4.5 * 64 * MIB


def test_a_huge_row_has_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgsluice.sinks.lake.staging.HUGE_ROW_BYTES", 10_000)
    monkeypatch.setattr("pgsluice.sinks.lake.staging.UNCOMPRESSED_BYTES", 100_000)

    def rows() -> Iterator[pa.RecordBatch]:
        yield from many_rows(3)
        for size in (1000, 10_000, 100_000, 1000):
            yield from large_rows(1, size)
        yield from many_rows(2)

    files = [file["path"] for file in json.loads(staged(tmp_path, rows()).payload)]
    metadata = [pq.read_metadata(tmp_path / "t" / file) for file in files]
    assert [file.num_rows for file in metadata] == [4, 1, 1, 3]
    codecs = [file.row_group(0).column(1).compression for file in metadata]
    assert codecs == ["SNAPPY", "SNAPPY", "UNCOMPRESSED", "SNAPPY"]
    assert [file.split(".")[1] for file in files] == ["snappy", "snappy", "none", "snappy"]


def test_a_full_disk_is_said_with_the_table_and_the_folder(
    tmp_path: Path, small_disk: Callable[[Path, str], None]
) -> None:
    """That of the target, and that of ``cache_dir``; with room again the same work is done."""
    lake = tmp_path / "lake"
    small_disk(lake, "1m")
    with pytest.raises(TargetUnreachable) as caught:
        staged(lake, large_rows(4, MIB))
    assert caught.value.what == f"table public.t: no room is left on the disk of {lake}/t"
    assert caught.value.hint.startswith(
        "make room there; no data is lost, and pgsluice keeps retrying"
    )
    small_disk(lake, "16m")
    small_disk(lake / "cache", "64k")
    with pytest.raises(TargetUnreachable, match=rf"public\.t: no room .* of {lake}/cache"):
        staged(lake, many_rows(256 * 1024))
    small_disk(lake / "cache", "16m")
    assert staged(lake, many_rows(256 * 1024)).rows == 256 * 1024


def test_a_file_has_a_limit_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows may be compressed to nearly nothing, but their keys are in memory until then."""
    monkeypatch.setattr("pgsluice.sinks.lake.staging.MOST_ROWS", 1000)
    batches = (batch for _ in range(5) for batch in many_rows(400))
    files = json.loads(staged(tmp_path, batches).payload)
    assert [file["stats"]["numRecords"] for file in files] == [1200, 800]
