"""Finds the rows of keys: one sidecar file for each data file, on a disk of this machine.

A data file never changes, so neither does its sidecar (:mod:`.sidecars`): which rows are dead, its
deletion vector says, and which files are live, the log. So a sidecar may be lost at any time:
the next search writes a new one from its data file.

Of a table in an object store, the sidecars of large data files are objects, too, in the folder
``_keys`` of the table. They are uploaded beside the data files, before the commit. An executor that
has no sidecar yet fetches the object instead of reading the data file. If the object is missing or
damaged, it reads the key columns of the data file, as on a disk.

Its figure: merging 500 keys into 1 million rows, at least 50 times less CPU than a MERGE.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path

import pyarrow as pa

from pgsluice.disk import naming
from pgsluice.errors import PgsluiceError
from pgsluice.sinks.lake.attempt import ORPHAN_AGE, writes
from pgsluice.sinks.lake.keys.entries import Hits, Indexes, Wanted
from pgsluice.sinks.lake.keys.sidecars import FORMAT, ROWS_IN_A_RUN, Sidecar, write_sidecar
from pgsluice.sinks.lake.layout.layout import with_partition
from pgsluice.sinks.lake.mapped_files import OpenFiles, place
from pgsluice.sinks.lake.row_cache import RowCache
from pgsluice.sinks.lake.snapshot import DataFile, Snapshot
from pgsluice.small_files import TEMPORARY
from pgsluice.stores.contract import Folder, at_once

KEYS_FOLDER = "_keys/"
"""The folder of the sidecars in a table's own folder in an object store. VACUUM by deltalake and by
Delta's jar skips folders with this prefix."""
SHARED_BYTES = 2**20
"""The sidecars of data files of at least this size are written as objects, too. For a smaller file,
reading the key columns is as cheap: with the fetch, 500 rows (16 KiB) take 3 ms of CPU from the
file and 2 ms from the sidecar, 20,000 rows (0.5 MiB) 7 and 3, 60,000 rows (1.5 MiB) 19 and 5,
800,000 rows (21 MiB) 174 and 58. An object for each small file would add a write
to each batch."""
_SUFFIX = ".keys"
_FETCHED_AT_ONCE = 4
_NAMES_KEPT = 4096


class KeyIndex:
    """The sidecars of one table.

    Args:
        cache_dir: the folder of the sidecars of all tables; None: a folder of this user among the
            temporary files.
        folder: the table's. No two data files have the same name, even if another table is at the
            same path later.
        keys: the key columns in the table's types.
        shares: in an object store, other executors will want the sidecars that this one makes.
        meaning: what the keys are, if they are not columns of the table.
    """

    def __init__(
        self,
        cache_dir: str | None,
        folder: Folder,
        keys: pa.Schema,
        *,
        shares: bool = True,
        meaning: str = "",
    ) -> None:
        self._table = folder
        self._shares = shares
        self._keys = keys
        columns = [f"{field.name} {field.type}" for field in keys]
        columns += [meaning] if meaning else []
        self._definition = "\n".join([FORMAT, *columns])
        definition = "\n".join([FORMAT, folder.uri, *columns])
        name = hashlib.sha256(definition.encode()).hexdigest()[:32]
        cache = _cache_folder(cache_dir)
        self._folder = cache / name
        self._rows = RowCache(cache / "rows", folder)

    @classmethod
    def of(
        cls, snapshot: Snapshot, cache_dir: str | None, key: Sequence[str], *, shares: bool = True
    ) -> KeyIndex:
        """The sidecars of a table, by the names of its key columns."""
        keys = pa.schema([snapshot.schema.field(name) for name in key])
        return cls(cache_dir, snapshot.folder, keys, shares=shares)

    def find(self, files: Iterable[DataFile], wanted: pa.Table) -> Iterator[tuple[DataFile, Hits]]:
        """The rows of each file that have one of the wanted keys; files without any are missing."""
        keys = Wanted(wanted, self._keys)
        files = [*files]
        self._fetch_missing(files)
        for file in files:
            found = map(keys.among, self._sidecar(file).runs())
            hits = Hits.joined([hits for hits in found if hits is not None])
            if len(hits.rows):
                yield file, hits

    def rows_at(self, file: DataFile, rows: Indexes, schema: pa.Schema) -> Iterator[pa.Table]:
        """Some rows of a file, as :func:`.data_files.rows_at`; those that batches read often are
        kept decoded."""
        return self._rows.rows_at(file, rows, schema)

    def keys_of(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """The key columns of some rows of the table; None: the table has no key."""
        return rows.select(self._keys.names) if len(self._keys) else None

    def add(self, file: DataFile, keys: pa.Table) -> None:
        """Make the sidecar of a data file that has just been written, from its key columns. It is
        not mapped: a process that makes those of a whole table would grow with it."""
        self._write(file.name, [self._in_types(keys)])
        self._share(file)

    def drop(self, files: Iterable[DataFile]) -> None:
        """Delete sidecars of this machine that have just been made, and may not be used."""
        for file in files:
            self._path(file.name).unlink(missing_ok=True)

    def forget(self, live: Iterable[str]) -> None:
        """Delete the sidecars of files that are not live, by their names, and the leftovers of
        killed processes."""
        live = [*live]
        self._rows.forget(live)
        kept = {self._path(name) for name in live}
        for path in self._folder.glob(f"*{_SUFFIX}"):
            if path not in kept:
                OPENED.drop(path)
                path.unlink(missing_ok=True)
        oldest = time.time() - ORPHAN_AGE.total_seconds()
        for path in self._folder.glob(f"*{TEMPORARY}"):  # a process was killed that wrote it
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < oldest:
                    path.unlink()

    def _path(self, name: str) -> Path:
        return _sidecar_path(self._folder, name)

    def _subject(self, name: str) -> str:
        return f"{name}\n{self._definition}"

    def _sidecar(self, file: DataFile) -> Sidecar:
        path, subject = self._path(file.name), self._subject(file.name)
        if (sidecar := OPENED.get(path, subject)) is not None:
            return sidecar
        self._make(file)
        if (sidecar := OPENED.get(path, subject)) is not None:
            return sidecar
        raise PgsluiceError(
            f"pgsluice cannot read the cached file {path}, which it has just written with the "
            "keys of a table's rows",
            hint="set the sink's option cache_dir to a folder on a healthy local disk",
            location=str(path),
        )

    def _fetch_missing(self, files: Sequence[DataFile]) -> None:
        """Get several sidecars at a time from an object store, whose answers take a while."""
        if self._table.path is not None:
            return
        paths = ((file, self._path(file.name)) for file in files)
        missing = [file for file, path in paths if not OPENED.has(path) and not path.exists()]
        deque(at_once(self._table, self._make, missing, _FETCHED_AT_ONCE), 0)

    def _make(self, file: DataFile) -> None:
        """Fetch the sidecar of a data file, or make it from its key columns."""
        if not self._fetch(file):
            self._write(file.name, self._read_keys(file))

    def _write(self, name: str, keys: Iterable[pa.Table]) -> None:
        write_sidecar(self._path(name), self._subject(name), keys)

    def _fetch(self, file: DataFile) -> bool:
        """Get a sidecar from an object store; False: there is no whole one of these columns."""
        if not _is_shared(self._table, file):
            return False
        try:
            content = self._table.read(_object_name(file.name))
        except FileNotFoundError:  # another writer's data file has none
            return False
        return place(self._path(file.name), self._subject(file.name), content)

    def _share(self, file: DataFile) -> None:
        """Begin to upload a sidecar that has just been made."""
        if self._shares and _is_shared(self._table, file):
            name = _object_name(file.name)
            writes(partial(self._table.delete, name))
            with self._path(file.name).open("rb") as made, self._table.write(name) as stream:
                shutil.copyfileobj(made, stream)

    def _read_keys(self, file: DataFile) -> Iterator[pa.Table]:
        """The keys of a data file's rows, in pieces."""
        names = self._keys.names
        with naming(self._table.uri), file.open(self._table) as parquet:
            for batch in parquet.iter_batches(ROWS_IN_A_RUN, columns=names, use_threads=False):
                keys = pa.Table.from_batches([batch])
                yield self._in_types(with_partition(keys, file.partition, self._keys))

    def _in_types(self, keys: pa.Table) -> pa.Table:
        return keys.select(self._keys.names).cast(self._keys)


def with_sidecars(folder: Folder, files: Iterable[DataFile]) -> list[str]:
    """The names of data files, and of the objects that their sidecars may be."""
    files = [*files]
    shared = [_object_name(file.name) for file in files if _is_shared(folder, file)]
    return [*(file.name for file in files), *shared]


def data_file_of(name: str) -> str:
    """The name of the data file that a sidecar in an object store belongs to."""
    return name.removeprefix(KEYS_FOLDER).removesuffix(_SUFFIX)


def _object_name(name: str) -> str:
    return f"{KEYS_FOLDER}{name}{_SUFFIX}"


def _is_shared(folder: Folder, file: DataFile) -> bool:
    return folder.path is None and file.size >= SHARED_BYTES


@lru_cache(maxsize=_NAMES_KEPT)
def _sidecar_path(folder: Path, name: str) -> Path:
    return folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}{_SUFFIX}"


OPENED = OpenFiles(Sidecar)
"""The sidecars that this process has mapped."""


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
            f"the folder {folder}, for cached files with the keys of tables' rows, belongs to "
            "another user",
            hint="set the sink's option cache_dir to a folder on a local disk",
            location=str(folder),
        )
    return folder / "keys"
