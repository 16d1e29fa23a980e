"""Row groups that are kept decoded: what is read from them, and when they are not used."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.sinks.cached_files import fill_disk

from pgsluice.errors import PgsluiceError
from pgsluice.sinks.lake import row_cache
from pgsluice.sinks.lake.data_files import rows_at
from pgsluice.sinks.lake.mapped_files import OpenFiles
from pgsluice.sinks.lake.row_cache import RowCache
from pgsluice.sinks.lake.snapshot import DataFile
from pgsluice.stores.local import LocalFolder
from pgsluice.types.nested.variants import ARROW as VARIANT
from pgsluice.types.nested.variants import STORED

ROWS, GROUP = 1000, 300
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
TABLE = pa.table([range(ROWS), [f"text {number}" * (number % 3) for number in range(ROWS)]], SCHEMA)
SOME = np.array([0, 1, 1, 299, 300, 650, 999])

pytestmark = pytest.mark.usefixtures("keeps_small_groups")


@pytest.fixture(autouse=True)
def _of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_cache, "ROOM", row_cache.Room())
    forget_process(monkeypatch)


def forget_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in another process."""
    monkeypatch.setattr(row_cache, "KNOWN", OrderedDict())
    monkeypatch.setattr(row_cache, "OPENED", OpenFiles(row_cache.KeptGroup))


class Place:
    """A table's folder with one data file, and a cache."""

    def __init__(self, path: Path, table: pa.Table = TABLE) -> None:
        self.path, self.root = path / "table", path / "cache"
        self.path.mkdir()
        self.file = DataFile(f"{uuid.uuid4()}.parquet", 0)
        pq.write_table(table, self.path / self.file.name, row_group_size=GROUP)
        self.cache = RowCache(self.root, LocalFolder(self.path))

    def read(self, rows: np.ndarray = SOME, schema: pa.Schema = SCHEMA) -> pa.Table:
        return pa.concat_tables(self.cache.rows_at(self.file, rows, schema))

    def lose_data_file(self) -> None:
        (self.path / self.file.name).rename(self.path / "away")

    @property
    def kept(self) -> list[Path]:
        return sorted(self.root.rglob("*.rows"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_rows_are_read_without_the_data_file_once_their_groups_are_kept(place: Place) -> None:
    expected = TABLE.take(pa.array(SOME))
    assert place.read().equals(expected)
    place.lose_data_file()
    assert place.read().equals(expected)
    others = np.array([2, 3, 998])
    assert place.read(others).equals(TABLE.take(pa.array(others)))
    assert len(place.kept) == 4


def test_only_groups_with_wanted_rows_are_kept(place: Place) -> None:
    place.read(np.array([650]))
    assert [path.name.partition("-")[2] for path in place.kept] == ["2.rows"]
    place.lose_data_file()
    with pytest.raises(PgsluiceError, match="does not exist"):
        place.read()


def test_another_process_finds_the_kept_groups(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.read()
    before = [(path, path.stat().st_ino) for path in place.kept]
    forget_process(monkeypatch)
    assert place.read().equals(TABLE.take(pa.array(SOME)))
    assert [(path, path.stat().st_ino) for path in place.kept] == before


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "of another group"])
def test_a_damaged_group_is_made_again(
    place: Place, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.read()
    first, *others = place.kept
    whole = first.read_bytes()
    first.write_bytes(
        {
            "cut": whole[: len(whole) // 2],
            "changed": whole[:500] + bytes([whole[500] ^ 1]) + whole[501:],
            "empty": b"",
            "of another group": others[0].read_bytes(),
        }[damage]
    )
    forget_process(monkeypatch)
    assert place.read().equals(TABLE.take(pa.array(SOME)))
    assert first.read_bytes() == whole


def test_columns_come_as_the_table_has_them_now(place: Place) -> None:
    now = pa.schema([("text", pa.large_string()), ("new", pa.int32()), ("id", pa.float64())])
    direct = pa.concat_tables(rows_at(LocalFolder(place.path), place.file, SOME, now))
    for _ in range(2):
        assert place.read(schema=now).equals(direct)
    only_new = pa.schema([("new", pa.int32())])
    assert place.read(schema=only_new).num_rows == len(SOME)


KINDS: dict[str, pa.Array] = {
    "lists": pa.array([[number] * (number % 4) for number in range(ROWS)]),
    "NULL and structs": pa.array(
        [None if number % 3 else {"a": number, "b": str(number)} for number in range(ROWS)]
    ),
    "decimals": pa.array(range(ROWS)).cast(pa.decimal128(38, 4)),
    "bytes": pa.array([bytes([number % 256]) * (number % 5) for number in range(ROWS)]),
    "maps": pa.array(
        [[(str(number), number)] for number in range(ROWS)], pa.map_(pa.string(), pa.int64())
    ),
    "variants": pa.array(
        [{"metadata": b"\x01\0\0", "value": bytes([number % 256])} for number in range(ROWS)],
        STORED,
    ),
    "times": pa.array(range(ROWS)).cast(pa.timestamp("us", "UTC")),
    "repeating text": pa.array(["a" * (number % 3) for number in range(ROWS)]),
    "nothing": pa.nulls(ROWS, pa.string()),
    "truths": pa.array([number % 2 == 0 for number in range(ROWS)]),
    "views": pa.array([f"a text that is long enough {number}" for number in range(ROWS)]).cast(
        pa.string_view()
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_each_type_are_those_of_the_data_file(kind: str, tmp_path: Path) -> None:
    values = KINDS[kind]
    place = Place(tmp_path, pa.table({"v": values}))
    as_type = VARIANT if kind == "variants" else values.type
    schema = pa.schema([("v", pa.string() if kind == "views" else as_type)])
    direct = pa.concat_tables(rows_at(LocalFolder(place.path), place.file, SOME, schema))
    for _ in range(2):
        found = place.read(schema=schema)
        assert found.schema.equals(direct.schema)
        assert found.equals(direct)
    assert bool(place.kept) == (kind != "views")


def test_row_groups_that_are_cheap_to_decode_are_not_kept(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_cache, "SMALLEST_BYTES", 2**20)
    assert place.read().equals(TABLE.take(pa.array(SOME)))
    assert not place.kept


def test_row_groups_of_which_a_batch_takes_much_are_not_kept(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_cache, "FEW_ROWS", 0.2)
    rows = np.arange(0, ROWS, 2)
    assert place.read(rows).equals(TABLE.take(pa.array(rows)))
    assert not place.kept


def test_row_groups_that_are_large_when_decoded_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the file, a repeating value is there once."""
    table = pa.table({"text": ["x" * 1000] * ROWS})
    place = Place(tmp_path, table)
    monkeypatch.setattr(row_cache, "LARGEST_BYTES", 50_000)
    for _ in range(2):
        assert place.read(schema=table.schema).equals(table.take(pa.array(SOME)))
    assert not place.kept


def test_without_room_rows_are_read_from_data_files(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.read(np.array([5]))
    [first] = place.kept
    monkeypatch.setattr(row_cache, "CACHE_BYTES", first.stat().st_size + 1000)
    for _ in range(2):
        assert place.read().equals(TABLE.take(pa.array(SOME)))
    assert place.kept == [first]


def test_without_room_row_groups_are_not_decoded_as_a_whole(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_cache, "CACHE_BYTES", 0)
    monkeypatch.setattr(row_cache.RowGroups, "decoded", None)  # a call fails
    assert place.read().equals(TABLE.take(pa.array(SOME)))


def test_row_groups_that_nobody_uses_make_room(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.read(np.array([5]))
    [first] = place.kept
    monkeypatch.setattr(row_cache, "CACHE_BYTES", first.stat().st_size + 1000)
    long_ago = time.time() - 2 * row_cache.UNUSED_S
    os.utime(first, (long_ago, long_ago))
    left = first.with_name("left.rows.tmp")  # by a killed process
    left.touch()
    os.utime(left, (long_ago, long_ago))
    monkeypatch.setattr(row_cache, "ROOM", row_cache.Room())
    assert place.read(np.array([998])).equals(TABLE.take(pa.array([998])))
    assert [path.name.partition("-")[2] for path in place.kept] == ["3.rows"]
    assert not left.exists()


def test_use_is_noted(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.read()
    for path in place.kept:
        os.utime(path, (0, 0))
    forget_process(monkeypatch)
    place.read()
    assert all(path.stat().st_mtime > time.time() - 60 for path in place.kept)


@pytest.mark.parametrize("trouble", ["full", "no folder"])
def test_trouble_with_its_disk_disturbs_no_batch(
    place: Place, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trouble == "full":
        fill_disk(monkeypatch)
    else:
        place.root.write_text("a file")
    assert place.read().equals(TABLE.take(pa.array(SOME)))
    assert not list(place.root.rglob("*.*"))


def test_the_groups_of_removed_files_are_deleted(place: Place) -> None:
    place.read()
    place.cache.forget([place.file.name, "another"])
    assert len(place.kept) == 4
    place.cache.forget(["another"])
    assert not place.kept


def test_the_cache_may_be_deleted_at_any_time(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.read()
    shutil.rmtree(place.root)
    assert place.read().equals(TABLE.take(pa.array(SOME)))
    forget_process(monkeypatch)
    assert place.read().equals(TABLE.take(pa.array(SOME)))
    assert len(place.kept) == 4


def test_others_may_not_read_the_rows(place: Place) -> None:
    place.read()
    assert {path.stat().st_mode & 0o077 for path in place.kept} == {0}
