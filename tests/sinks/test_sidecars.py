"""Sidecar files: what they find, and how much memory they take."""

from __future__ import annotations

import re
import resource
import uuid
from contextlib import ExitStack, suppress
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgsluice.sinks.lake import mapped_files
from pgsluice.sinks.lake.keys import sidecars
from pgsluice.sinks.lake.keys.index import KeyIndex
from pgsluice.sinks.lake.snapshot import DataFile
from pgsluice.stores.local import LocalFolder

KEYS: dict[str, list[tuple[Any, ...]]] = {
    "number": [(number,) for number in (5, -3, 8, 0, 2**62, 7, 1, 9, -9, 4)],
    "text": [
        (text,) for text in ("b", "a", "", "ä", "a ", "longer than eight", "B", "c", "d", "e")
    ],
    "NULL in the last run": [(1,), (2,), (3,), (4,), (5,), (6,), (7,), (8,), (None,), (9,)],
    "two columns": [(number, str(10 - number)) for number in range(10)],
    "date": [(date(2026, 1, day),) for day in range(10, 0, -1)],
}


def table_of(keys: list[tuple[Any, ...]]) -> pa.Table:
    columns = [list(column) for column in zip(*keys, strict=True)]
    return pa.table(columns, [f"k{number}" for number in range(len(columns))])


def data_file(folder: Path, keys: pa.Table) -> DataFile:
    name = f"{uuid.uuid4()}.parquet"  # names of data files never come twice
    pq.write_table(keys, folder / name)
    return DataFile(name, 0)


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("rows_in_a_run", [1, 3, 4, 10, 100])
def test_each_key_is_found_in_whatever_run_it_is(
    tmp_path: Path, kind: str, rows_in_a_run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sidecars, "ROWS_IN_A_RUN", rows_in_a_run)
    keys = table_of(KEYS[kind])
    file = data_file(tmp_path, keys)
    index = KeyIndex(f"{tmp_path}/cache", LocalFolder(tmp_path), keys.schema)
    wanted = keys.take(pa.array([9, 2, 5, 0, 8]))
    [(found, hits)] = index.find([file], wanted)
    assert found is file
    assert dict(zip(hits.wanted.tolist(), hits.rows.tolist(), strict=True)) == {
        0: 9, 1: 2, 2: 5, 3: 0, 4: 8,
    }  # fmt: skip


def test_a_file_without_rows_has_none_of_the_keys(tmp_path: Path) -> None:
    keys = table_of(KEYS["number"])
    file = data_file(tmp_path, keys.slice(0, 0))
    index = KeyIndex(f"{tmp_path}/cache", LocalFolder(tmp_path), keys.schema)
    assert list(index.find([file], keys)) == []


LIMIT_BYTES = 1_000_000


@pytest.fixture
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_files, "RESIDENT_BYTES", LIMIT_BYTES)
    monkeypatch.setattr(sidecars, "ROWS_IN_A_RUN", 20_000)


@pytest.mark.soak  # make soak AREA=long
@pytest.mark.usefixtures("_small_limits")
def test_a_search_through_a_large_table_keeps_few_of_its_sidecars_in_memory(
    tmp_path: Path,
) -> None:
    numbers = np.random.default_rng(1).permutation(800_000).reshape(-1, 20_000)
    files = [data_file(tmp_path, pa.table({"k": some})) for some in numbers]
    index = KeyIndex(f"{tmp_path}/cache", LocalFolder(tmp_path), pa.schema({"k": pa.int64()}))
    wanted = pa.table({"k": np.arange(0, 800_000, 7)})
    for _ in range(2):
        resident, found = [], 0
        for _, hits in index.find(files, wanted):
            found += len(hits.rows)
            resident.append(resident_bytes(tmp_path))
        assert found == len(wanted)
        assert 0 < max(resident) < 2 * LIMIT_BYTES
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.keys")) > 9 * LIMIT_BYTES


@pytest.mark.usefixtures("_small_limits")
def test_a_search_through_a_large_file_keeps_one_run_of_its_sidecar_in_memory(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file.keys"
    parts = np.random.default_rng(1).permutation(800_000).reshape(4, -1)
    sidecars.write_sidecar(path, "keys", (pa.table({"k": part}) for part in parts))
    sidecar = mapped_files.OpenFiles(sidecars.Sidecar).get(path, "keys")
    assert sidecar is not None
    resident, rows = [], []
    for run in sidecar.runs():
        rows += run.rows[np.argsort(run.rows)].tolist()
        resident.append(resident_bytes(tmp_path))
    assert rows == list(range(800_000))
    assert path.stat().st_size > 9 * LIMIT_BYTES
    assert 0 < max(resident) < 4 * LIMIT_BYTES  # the system maps some pages around each


def resident_bytes(folder: Path) -> int:
    """How much of the files in a folder is in this process's memory."""
    total, is_inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_inside = str(folder) in line
        elif is_inside and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def test_a_mapped_sidecar_holds_no_file_descriptor(tmp_path: Path) -> None:
    """A worker maps thousands, and may often open only 1024 files."""
    opened = mapped_files.OpenFiles(sidecars.Sidecar)
    for number in range(20):
        path = tmp_path / f"{number}.keys"
        sidecars.write_sidecar(path, "keys", [pa.table({"k": [number]})])
        assert opened.get(path, "keys") is not None
    with (tmp_path / "open").open("w"):
        assert open_files_in(tmp_path) == ["open"]


def open_files_in(folder: Path) -> list[str]:
    """The names of this process's open files in a folder."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # another thread has closed it
            found.append(descriptor.readlink())
    return [file.name for file in found if file.parent == folder]


def descriptors() -> list[int]:
    """Those of this process's open files."""
    return [int(path.name) for path in Path("/proc/self/fd").iterdir()]


def test_a_limit_of_open_files_is_not_taken_for_a_damaged_sidecar(tmp_path: Path) -> None:
    path = tmp_path / "one.keys"
    sidecars.write_sidecar(path, "keys", [pa.table({"k": [1]})])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = max(descriptors()) + 1
    with ExitStack() as files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (least + 1, limits[1]))
        try:
            with suppress(OSError):
                while True:
                    files.enter_context(path.open("rb"))
            with pytest.raises(OSError, match="Too many open files"):
                mapped_files.OpenFiles(sidecars.Sidecar).get(path, "keys")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_zeros_are_no_sidecar(tmp_path: Path) -> None:
    path = tmp_path / "one.keys"
    for size in (0, 4, 12, 1000):
        path.write_bytes(bytes(size))
        assert mapped_files.OpenFiles(sidecars.Sidecar).get(path, "keys") is None


def test_a_damaged_data_file_is_not_taken_for_trouble_of_the_cache(tmp_path: Path) -> None:
    keys = table_of(KEYS["number"])
    file = data_file(tmp_path, keys)
    path = tmp_path / file.name
    data = bytearray(path.read_bytes())
    data[8 : len(data) // 2] = bytes(len(data) // 2 - 8)
    path.write_bytes(data)
    index = KeyIndex(f"{tmp_path}/cache", LocalFolder(tmp_path), keys.schema)
    with pytest.raises(OSError) as raised:
        list(index.find([file], keys))
    assert "None" not in str(raised.value)
    assert f"{tmp_path}/cache" not in str(raised.value)
