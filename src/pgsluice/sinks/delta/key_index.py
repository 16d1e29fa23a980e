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
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from pgsluice.changes.key_numbers import numbers_of
from pgsluice.disk import naming
from pgsluice.errors import PgsluiceError
from pgsluice.failpoints import failpoint
from pgsluice.sinks.delta.key_entries import Hits, KeyEntries, Wanted
from pgsluice.sinks.delta.snapshot import DataFile, Snapshot, open_data_file

_FORMAT = "2"
_CHECKSUM_BYTES = 4
_OPEN_AT_ONCE = 4096
"""Sidecars that a process has mapped at a time."""


class KeyIndex:
    """The sidecars of one table.

    Args:
        cache_dir: where the sidecars of all tables lie; None: a folder of this user among the
            temporary files.
        folder: the table's. Names of data files never come twice, also not in another table that
            has its place later.
        keys: the key columns in the table's types.
    """

    def __init__(self, cache_dir: str | None, folder: Path, keys: pa.Schema) -> None:
        self._table = folder
        self._keys = keys
        columns = [f"{field.name} {field.type}" for field in keys]
        definition = "\n".join([_FORMAT, str(folder), *columns])
        name = hashlib.sha256(definition.encode()).hexdigest()[:32]
        self._folder = _cache_folder(cache_dir) / name

    @classmethod
    def of(cls, snapshot: Snapshot, cache_dir: str | None, key: Sequence[str]) -> KeyIndex:
        """The sidecars of a table, by the names of its key columns."""
        keys = pa.schema([snapshot.schema.field(name) for name in key])
        return cls(cache_dir, snapshot.folder, keys)

    def find(self, files: Iterable[DataFile], wanted: pa.Table) -> Iterator[tuple[DataFile, Hits]]:
        """The rows of each file that have one of the wanted keys; files without any are left out.

        Args:
            wanted: the key columns.
        """
        keys = Wanted(wanted, self._keys)
        for file in files:
            hits = keys.among(self._sidecar(file.name))
            if hits is not None:
                yield file, hits

    def prepare(self, names: Iterable[str]) -> None:
        """Make the sidecars of data files that have just been written, by their paths inside of
        the table's folder.

        They are not mapped: a process that makes those of a whole table would grow with it.
        """
        for name in names:
            self._make(name)

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

    def _sidecar(self, name: str) -> KeyEntries:
        path = self._path(name)
        if (opened := _OPENED.get(path)) is not None:
            return opened
        sidecar = _read(path)
        if sidecar is None:
            self._make(name)
            sidecar = _read(path)
        if sidecar is None:
            raise PgsluiceError(
                f"the key file {path} cannot be read, although it has just been written",
                hint="set cache_dir of the sink to a folder on a healthy local disk",
                location=str(path),
            )
        _OPENED.put(path, sidecar)
        return sidecar

    def _make(self, name: str) -> None:
        """Make the sidecar of a data file from its key columns."""
        with open_data_file(self._table, name) as parquet:
            self.add(name, parquet.read(columns=list(self._keys.names), use_threads=False))

    def _write(self, name: str, keys: pa.Table) -> None:
        entries = KeyEntries.of(keys, numbers_of(keys))
        # Names that no column of a table can have: Delta's names are never empty.
        columns = {"": pa.array(entries.numbers), "\0": pa.array(entries.rows)}
        if entries.keys is not None:
            columns.update(
                (f"\0{name}", _joined(entries.keys.column(name)))
                for name in entries.keys.schema.names
            )
        batch = pa.record_batch(columns)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        data = sink.getvalue()
        with naming(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            written = self._folder / f"{uuid.uuid4()}.tmp"
            with written.open("wb") as file:
                file.write(data)
                file.write(zlib.crc32(data).to_bytes(_CHECKSUM_BYTES, "big"))
            written.replace(self._path(name))
        failpoint("delta.written")


@lru_cache(maxsize=_OPEN_AT_ONCE)
def _sidecar_path(folder: Path, name: str) -> Path:
    return folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.keys"


class _OpenSidecars:
    """The sidecars that this process has mapped; its threads share them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_path: OrderedDict[Path, KeyEntries] = OrderedDict()

    def get(self, path: Path) -> KeyEntries | None:
        """A sidecar that is mapped."""
        with self._lock:
            if path in self._by_path:
                self._by_path.move_to_end(path)
            return self._by_path.get(path)

    def put(self, path: Path, sidecar: KeyEntries) -> None:
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


def _read(path: Path) -> KeyEntries | None:
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
    return KeyEntries(batch.column(0).to_numpy(), batch.column(1).to_numpy(), keys)


def _joined(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays([pa.nulls(0, column.type), *column.chunks])


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
