"""Finds the rows of keys: one sidecar file for each data file, on a disk of this machine.

A data file never changes, so neither does its sidecar (:mod:`.sidecars`): which rows are dead, its
deletion vector says, and which files are live, the log. So a sidecar may be lost at any time, and
is made again from its data file.

Its figure: merging 500 keys into 1 million rows, at least 50 times less CPU than a MERGE.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from pgsluice.disk import naming
from pgsluice.errors import PgsluiceError
from pgsluice.sinks.lake.attempt import ORPHAN_AGE
from pgsluice.sinks.lake.key_entries import Hits, Wanted
from pgsluice.sinks.lake.sidecars import (
    FORMAT,
    ROWS_IN_A_RUN,
    OpenSidecars,
    Sidecar,
    write_sidecar,
)
from pgsluice.sinks.lake.snapshot import DataFile, Snapshot, open_data_file
from pgsluice.small_files import TEMPORARY
from pgsluice.stores.contract import Folder

_NAMES_KEPT = 4096


class KeyIndex:
    """The sidecars of one table.

    Args:
        cache_dir: where the sidecars of all tables lie; None: a folder of this user among the
            temporary files.
        folder: the table's. Names of data files never come twice, also not in another table that
            has its place later.
        keys: the key columns in the table's types.
    """

    def __init__(self, cache_dir: str | None, folder: Folder, keys: pa.Schema) -> None:
        self._table = folder
        self._keys = keys
        columns = [f"{field.name} {field.type}" for field in keys]
        definition = "\n".join([FORMAT, folder.uri, *columns])
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
            found = map(keys.among, self._sidecar(file.name).runs())
            hits = Hits.joined([hits for hits in found if hits is not None])
            if len(hits.rows):
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
        write_sidecar(self._path(name), [self._in_types(keys)])

    def forget(self, live: Iterable[str]) -> None:
        """Delete the sidecars of files that are not live any more, and what killed processes
        have left."""
        kept = {self._path(name) for name in live}
        for path in self._folder.glob("*.keys"):
            if path not in kept:
                _OPENED.drop(path)
                path.unlink(missing_ok=True)
        oldest = time.time() - ORPHAN_AGE.total_seconds()
        for path in self._folder.glob(f"*{TEMPORARY}"):  # a process was killed that wrote it
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < oldest:
                    path.unlink()

    def _path(self, name: str) -> Path:
        return _sidecar_path(self._folder, name)

    def _sidecar(self, name: str) -> Sidecar:
        path = self._path(name)
        if (sidecar := _OPENED.get(path)) is not None:
            return sidecar
        self._make(name)
        if (sidecar := _OPENED.get(path)) is not None:
            return sidecar
        raise PgsluiceError(
            f"the key file {path} cannot be read, although it has just been written",
            hint="set cache_dir of the sink to a folder on a healthy local disk",
            location=str(path),
        )

    def _make(self, name: str) -> None:
        """Make the sidecar of a data file from its key columns."""
        write_sidecar(self._path(name), self._keys_of(name))

    def _keys_of(self, name: str) -> Iterator[pa.Table]:
        """The keys of a data file's rows, some after the others."""
        columns = list(self._keys.names)
        with naming(self._table.uri), open_data_file(self._table, name) as parquet:
            for batch in parquet.iter_batches(ROWS_IN_A_RUN, columns=columns, use_threads=False):
                yield self._in_types(pa.Table.from_batches([batch]))

    def _in_types(self, keys: pa.Table) -> pa.Table:
        return keys.select(self._keys.names).cast(self._keys)


@lru_cache(maxsize=_NAMES_KEPT)
def _sidecar_path(folder: Path, name: str) -> Path:
    return folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.keys"


_OPENED = OpenSidecars()


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
