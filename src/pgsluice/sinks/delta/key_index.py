"""Finds the rows of keys: one sidecar file for each data file, on a disk of this machine.

A sidecar has the numbers of a data file's keys (:mod:`pgsluice.changes.key_numbers`), sorted, the
row of each, and the keys themselves where numbers are not exact. A data file never changes, so
neither does its sidecar: which rows are dead, its deletion vector says, and which files are live,
the log. So a sidecar may be lost at any time, and is made again from its data file.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgsluice.changes.key_numbers import Numbers, numbers_of
from pgsluice.changes.lineage import number_rows
from pgsluice.errors import PgsluiceError
from pgsluice.sinks.delta.log import DataFile, Snapshot

_FORMAT = "1"
_CHECKSUM_BYTES = 4
_OPEN_AT_ONCE = 4096
"""Sidecars that a process has mapped at a time."""

Rows = npt.NDArray[np.uint32]
Indexes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Hits:
    """Rows that have one of the wanted keys, live or dead; n of one file.

    Attributes:
        wanted: n indexes of wanted keys.
        rows: n row numbers in the file.
    """

    wanted: Indexes
    rows: Indexes


@dataclass(frozen=True, slots=True)
class _Sidecar:
    """The keys of a data file, in the order of their numbers.

    Attributes:
        numbers: sorted.
        rows: the row of each.
        keys: the key columns in the same order; None where numbers are exact.
    """

    numbers: Numbers
    rows: Rows
    keys: pa.Table | None


class KeyIndex:
    """The sidecars of one table.

    Args:
        cache_dir: where the sidecars of all tables lie; None: a folder of this user among the
            temporary files.
        folder: the table's.
        table_id: Delta's identifier of the table.
        keys: the key columns in the table's types.
    """

    def __init__(self, cache_dir: str | None, folder: Path, table_id: str, keys: pa.Schema) -> None:
        self._table = folder
        self._keys = keys
        definition = f"{_FORMAT}\n{table_id}\n{folder}\n{keys}"
        name = hashlib.sha256(definition.encode()).hexdigest()[:32]
        self._folder = _cache_folder(cache_dir) / name

    @classmethod
    def of(cls, snapshot: Snapshot, cache_dir: str | None, key: Sequence[str]) -> KeyIndex:
        """The sidecars of a table, by the names of its key columns."""
        keys = pa.schema([snapshot.schema.field(name) for name in key])
        return cls(cache_dir, snapshot.folder, str(snapshot.metadata["id"]), keys)

    def find(self, files: Iterable[DataFile], wanted: pa.Table) -> Iterator[tuple[DataFile, Hits]]:
        """The rows of each file that have one of the wanted keys; files without any are left out.

        Args:
            wanted: the key columns.
        """
        wanted = wanted.select(self._keys.names).cast(self._keys)
        numbers = numbers_of(wanted).numbers
        order = np.argsort(numbers, kind="stable")
        in_order = numbers[order]
        for file in files:
            sidecar = self._sidecar(file)
            places, positions = _matches(sidecar.numbers, in_order)
            if sidecar.keys is not None and len(places):
                is_equal = _are_equal(
                    wanted.take(pa.array(order[places])),
                    sidecar.keys.take(pa.array(positions)).cast(self._keys),
                )
                places, positions = places[is_equal], positions[is_equal]
            if len(places):
                yield file, Hits(order[places], sidecar.rows[positions].astype(np.int64))

    def add(self, name: str, keys: pa.Table) -> None:
        """Make the sidecar of a data file that has just been written.

        Args:
            name: the file's path inside of the table's folder.
            keys: its key columns, in the order of its rows.
        """
        self._write(name, keys.select(self._keys.names).cast(self._keys))

    def forget(self, live: Iterable[str]) -> None:
        """Delete the sidecars of files that are not live any more."""
        kept = {self._path(name) for name in live}
        for path in self._folder.glob("*.keys"):
            if path not in kept:
                _OPENED.drop(path)
                path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return _sidecar_path(self._folder, name)

    def _sidecar(self, file: DataFile) -> _Sidecar:
        path = self._path(file.name)
        if (opened := _OPENED.get(path)) is not None:
            return opened
        sidecar = _read(path)
        if sidecar is None:
            with file.open(self._table) as parquet:
                self.add(file.name, parquet.read(columns=list(self._keys.names)))
            sidecar = _read(path)
        if sidecar is None:
            raise PgsluiceError(
                f"the key file {path} cannot be read, although it has just been written",
                hint="set cache_dir of the sink to a folder on a healthy local disk",
                location=str(path),
            )
        _OPENED.put(path, sidecar)
        return sidecar

    def _write(self, name: str, keys: pa.Table) -> None:
        numbered = numbers_of(keys)
        order = np.argsort(numbered.numbers, kind="stable")
        # Names that no column of a table can have: Delta's names are never empty.
        columns = {"": pa.array(numbered.numbers[order]), "\0": pa.array(order.astype(np.uint32))}
        if not numbered.are_exact:
            in_order = keys.combine_chunks().take(pa.array(order))
            columns.update(
                (f"\0{name}", _joined(in_order.column(name))) for name in in_order.schema.names
            )
        batch = pa.record_batch(columns)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        data = sink.getvalue()
        self._folder.mkdir(parents=True, exist_ok=True)
        written = self._folder / f"{uuid.uuid4()}.tmp"
        with written.open("wb") as file:
            file.write(data)
            file.write(zlib.crc32(data).to_bytes(_CHECKSUM_BYTES, "big"))
        written.replace(self._path(name))


@lru_cache(maxsize=_OPEN_AT_ONCE)
def _sidecar_path(folder: Path, name: str) -> Path:
    return folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.keys"


class _OpenSidecars:
    """The sidecars that this process has mapped; its threads share them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_path: OrderedDict[Path, _Sidecar] = OrderedDict()

    def get(self, path: Path) -> _Sidecar | None:
        """A sidecar that is mapped."""
        with self._lock:
            if path in self._by_path:
                self._by_path.move_to_end(path)
            return self._by_path.get(path)

    def put(self, path: Path, sidecar: _Sidecar) -> None:
        """Keep one, and let go those that were not used for the longest time."""
        with self._lock:
            self._by_path[path] = sidecar
            while len(self._by_path) > _OPEN_AT_ONCE:
                self._by_path.popitem(last=False)

    def drop(self, path: Path) -> None:
        """Let one go."""
        with self._lock:
            self._by_path.pop(path, None)


_OPENED = _OpenSidecars()


def _read(path: Path) -> _Sidecar | None:
    """A sidecar as it is mapped; None: it is missing or damaged."""
    try:
        with pa.memory_map(str(path)) as file:
            content = file.read_buffer()
        data, checksum = content[:-_CHECKSUM_BYTES], content[-_CHECKSUM_BYTES:].to_pybytes()
        if zlib.crc32(data) != int.from_bytes(checksum, "big"):
            return None
        batch = pa.ipc.open_file(data).get_batch(0)
    except (OSError, pa.ArrowInvalid):
        return None
    names = batch.schema.names[2:]
    keys = pa.table(batch.columns[2:], [name[1:] for name in names]) if names else None
    return _Sidecar(batch.column(0).to_numpy(), batch.column(1).to_numpy(), keys)


def _joined(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays([pa.nulls(0, column.type), *column.chunks])


def _matches(numbers: Numbers, wanted: Numbers) -> tuple[Indexes, Indexes]:
    """Where sorted wanted numbers stand among sorted numbers: pairs of (wanted, place)."""
    nothing = np.empty(0, np.int64)
    if not len(numbers) or not len(wanted):
        return nothing, nothing
    first = int(np.searchsorted(wanted, numbers[0]))
    end = int(np.searchsorted(wanted, numbers[-1], "right"))
    some = wanted[first:end]
    begins = np.searchsorted(numbers, some)
    ends = np.searchsorted(numbers, some, "right")
    counts = ends - begins
    which = np.repeat(np.arange(len(some)), counts)
    before = np.cumsum(counts) - counts
    places = np.arange(len(which)) - before[which] + begins[which]
    return which + first, places


def _are_equal(first: pa.Table, second: pa.Table) -> npt.NDArray[np.bool_]:
    """Which rows of two tables have the same key."""
    numbers = number_rows(pa.concat_tables([first, second]), tuple(first.schema.names))
    is_equal: npt.NDArray[np.bool_] = numbers[: len(first)] == numbers[len(first) :]
    return is_equal


def _cache_folder(cache_dir: str | None) -> Path:
    """The folder of all sidecars.

    Raises:
        PgsluiceError: it belongs to another user.
    """
    if cache_dir is not None:
        return Path(cache_dir)
    folder = Path(tempfile.gettempdir()) / f"pgsluice-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.is_symlink():
        raise PgsluiceError(
            f"the folder {folder} belongs to another user",
            hint="set cache_dir of the sink to a folder on a local disk",
            location=str(folder),
        )
    return folder / "keys"
