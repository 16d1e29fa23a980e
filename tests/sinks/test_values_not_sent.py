"""Values that changes do not carry, which are much larger than all of the changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.support.children import Child

from pgsluice.changes.net import NetChanges, net_changes
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import TargetTable
from pgsluice.sinks.delta.config import Merge
from pgsluice.sinks.delta.sink import DeltaSink
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.lake.data_files import DECODED_BYTES, rows_at
from pgsluice.sinks.lake.snapshot import DataFile
from pgsluice.stores.local import LocalFolder
from pgsluice.testing.changes import ABSENT, ChangesBuilder
from pgsluice.testing.sink_contract import identity

MIB = 2**20
ROWS = 20_000
BYTES = 10_000
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), False), pa.field("n", pa.int32()), pa.field("v", pa.string())]
)
TABLE = TargetTable("public", "t", SCHEMA, ("id",))


def make_table(folder: Path, way: Merge, how: str) -> None:
    """Make a table whose values of column ``v`` have 200 MB, as a copy writes it, or as another
    program does: in one group of rows."""
    sink = DeltaSink(f"{folder}/{{table}}", merge=way, cache_dir=f"{folder}/keys")
    characters = np.random.default_rng(1).integers(97, 123, ROWS * BYTES, np.uint8)
    if how == "repeated":
        characters[:] = 97
    offsets = np.arange(0, ROWS * BYTES + 1, BYTES, np.int32)
    values = pa.StringArray.from_buffers(ROWS, pa.py_buffer(offsets), pa.py_buffer(characters))
    ids = np.arange(ROWS)
    table = pa.table([ids, np.zeros(ROWS, np.int32), values], schema=SCHEMA)
    writer = TableWriter(sink, TABLE, identity())
    writer.load(table.to_batches(max_chunksize=ROWS if how == "repeated" else 512), Lsn(100))
    location = sink.location("public", "t")
    if how == "of another program":
        write_deltalake(location, table, mode="overwrite")


def updates(key: str) -> NetChanges:
    """Of all rows, without ``v``; some of their keys change, too."""
    changes = ChangesBuilder(SCHEMA, ("id",))
    for number in reversed(range(ROWS)):
        if key == "other keys":
            changes.update({"id": number + ROWS, "n": 1, "v": ABSENT}, old={"id": number})
        else:
            changes.update({"id": number, "n": 1, "v": ABSENT})
    return net_changes([changes.build()], schema=SCHEMA, key=("id",))


def apply(folder: Path, way: Merge, key: str) -> None:
    """Update all rows, and write down the most memory that this process had meanwhile."""
    sink = DeltaSink(
        f"{folder}/{{table}}", merge=way, cache_dir=f"{folder}/keys", foreign_writes="allow"
    )
    net = updates(key)
    writer = TableWriter(sink, TABLE, identity())
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    writer.apply(net, Lsn(101))
    (folder / "grown").write_text(str(memory("VmHWM") - before))


def memory(name: str) -> int:
    """A figure of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def content(folder: Path) -> pa.Table:
    """The rows by their keys, as deltalake's engine reads them."""
    table = DeltaTable(f"{folder}/t")
    scanned = pa.RecordBatchReader.from_stream(table.scan()).read_all()
    return scanned.cast(SCHEMA).sort_by("id").combine_chunks()


@pytest.mark.parametrize(
    ("way", "key", "how"),
    [
        ("on_read", "other keys", "repeated"),
        # make soak AREA=long
        pytest.param("on_read", "same keys", "of a copy", marks=pytest.mark.soak),
        pytest.param("on_write", "same keys", "repeated", marks=pytest.mark.soak),
        pytest.param("on_write", "other keys", "of another program", marks=pytest.mark.soak),
    ],
)
def test_a_task_has_some_of_them_in_memory(way: Merge, key: str, how: str, tmp_path: Path) -> None:
    make_table(tmp_path, way, how)
    before = content(tmp_path)
    child = Child(apply, tmp_path, way, key)
    assert child.wait(120) == 0
    after = content(tmp_path)
    moved = ROWS if key == "other keys" else 0
    assert after.column("id").equals(pc.add(before.column("id"), moved))
    assert after.column("v").equals(before.column("v"))
    assert pc.all(pc.equal(after.column("n"), 1)).as_py()
    grown = int((tmp_path / "grown").read_text())
    assert grown < 500 * MIB, "all of them together take 800"


def parts_of(folder: Path, tables: list[pa.Table], rows: list[int], column: str) -> list[pa.Table]:
    """How rows of a file are read that has these groups of rows."""
    with pq.ParquetWriter(folder / "file", tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)
    schema = pa.schema([tables[0].schema.field(column)])
    parts = list(rows_at(LocalFolder(folder), DataFile("file", 0), np.array(rows), schema))
    expected = pa.concat_tables(tables).select([column]).take(pa.array(rows))
    assert pa.concat_tables(parts).equals(expected)
    return parts


def test_scattered_rows_are_read_together(tmp_path: Path) -> None:
    """Single rows would be written and joined one by one."""
    kinds = pa.table({"kind": [f"kind {number % 7}" for number in range(200_000)]})
    rows = list(range(0, 200_000, 40))
    assert (
        len(parts_of(tmp_path, [kinds.slice(0, 100_000), kinds.slice(100_000)], rows, "kind")) == 1
    )


@pytest.mark.parametrize("column", ["doc", "doc.body"])
def test_large_values_are_read_in_parts(column: str, tmp_path: Path) -> None:
    """Also where most groups of rows have small ones."""
    small = pa.table({column: ["x"] * 60_000})
    large = pa.table({column: [f"{number:09}" * 1000 for number in range(3000)]})
    parts = parts_of(tmp_path, [small, large], list(range(0, 63_000, 2)), column)
    assert max(part.nbytes for part in parts) < 2 * DECODED_BYTES
