"""The log of a Delta table on a disk, as far as deletion vectors need it.

deltalake does not show vectors, so the log is read here: the newest checkpoint, then the commits
after it. A process keeps what it has read of a table and reads only new commits later.

Source: the Delta protocol, "Delta Log Entries", "Checkpoints" and "Action Reconciliation".
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import Schema as DeltaSchema

from pgsluice.errors import PgsluiceError
from pgsluice.sinks.delta.deletion_vectors import Descriptor

_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
_READ = ["add", "remove", "protocol", "metaData", "txn"]
_KEPT_TABLES = 2000
"""Tables whose state a process keeps."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A live file of a table.

    Attributes:
        name: its path inside of the table's folder.
        action: the ``add`` action that made it live.
        vector: its dead rows; None: all rows are live.
    """

    name: str
    action: Mapping[str, Any] = field(compare=False, repr=False)
    vector: Descriptor | None = None

    @property
    def size(self) -> int:
        """In bytes."""
        return int(self.action["size"])

    def statistics(self) -> dict[str, Any]:
        """Delta's statistics of the file; empty where its writer left them out."""
        text = self.action.get("stats")
        return json.loads(text) if text else {}

    def rows(self, folder: Path) -> int:
        """How many rows the file has, dead ones included."""
        counted = self.statistics().get("numRecords")
        if counted is None:
            counted = pq.read_metadata(folder / self.name).num_rows
        return int(counted)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table at one version.

    Attributes:
        folder: the table's.
        files: the live files by name.
        transactions: the ``txn`` actions, identifier -> version.
        stamp: tells the newest commit's file from another one with its name.
    """

    folder: Path
    version: int
    protocol: Mapping[str, Any]
    metadata: Mapping[str, Any]
    schema: pa.Schema
    files: Mapping[str, DataFile]
    transactions: Mapping[str, int]
    stamp: tuple[int, ...] | None = field(default=None, compare=False)

    def transaction_version(self, name: str) -> int | None:
        """The version of a transaction identifier; None: no commit had it."""
        return self.transactions.get(name)

    @property
    def configuration(self) -> Mapping[str, str]:
        """The table's properties."""
        return self.metadata.get("configuration") or {}

    @property
    def has_vectors(self) -> bool:
        """Whether files of the table may have deletion vectors, and writers are to make them."""
        listed = self.protocol.get("writerFeatures") or ()
        wanted = self.configuration.get("delta.enableDeletionVectors")
        return "deletionVectors" in listed and wanted == "true"


def local_folder(uri: str) -> Path | None:
    """The folder of a table on a disk of this machine; None for a table in an object store."""
    if "://" not in uri:
        return Path(uri).absolute()
    url = urlsplit(uri)
    return Path(unquote(url.path)) if url.scheme.lower() == "file" else None


def commit_path(folder: Path, version: int) -> Path:
    """The file of a version's commit."""
    return folder / "_delta_log" / f"{version:020}.json"


def read_commit(folder: Path, version: int) -> list[dict[str, Any]] | None:
    """The actions of a version's commit; None: there is no such file."""
    try:
        lines = commit_path(folder, version).read_text("utf-8").splitlines()
    except FileNotFoundError:
        return None
    return [json.loads(line) for line in lines if line.strip()]


def operations(folder: Path, after: int, through: int) -> list[str]:
    """What the commits did, one for each whose file is still there."""
    commits = (read_commit(folder, version) for version in range(after + 1, through + 1))
    return [_operation(actions) for actions in commits if actions is not None]


def _operation(actions: Iterable[dict[str, Any]]) -> str:
    return next((str(a["commitInfo"].get("operation")) for a in actions if "commitInfo" in a), "")


_known: dict[Path, Snapshot] = {}
_known_lock = threading.Lock()


def newest_snapshot(folder: Path) -> Snapshot | None:
    """The table as it is now; None: there is none.

    Raises:
        PgsluiceError: the log cannot be read.
    """
    with _known_lock:
        known = _known.get(folder)
    if known is not None and known.stamp != _stamp(commit_path(folder, known.version)):
        known = None  # another table has its place, or the commit was cleaned up
    snapshot = _advanced(known, None) if known is not None else read_snapshot(folder)
    if snapshot is not None and snapshot is not known:
        remember(snapshot)
    return snapshot


def remember(snapshot: Snapshot) -> None:
    """Keep a table's state for the next use in this process."""
    stamped = replace(snapshot, stamp=_stamp(commit_path(snapshot.folder, snapshot.version)))
    with _known_lock:
        _known[snapshot.folder] = stamped
        while len(_known) > _KEPT_TABLES:
            del _known[next(iter(_known))]


def no_table(folder: Path) -> Snapshot:
    """The place where a table will be made, as its version -1."""
    return Snapshot(folder, -1, {}, {}, pa.schema([]), {}, {})


def read_snapshot(folder: Path, version: int | None = None) -> Snapshot | None:
    """The table at a version, read from its log; None: there is none.

    Args:
        version: None: the newest.

    Raises:
        PgsluiceError: the log cannot be read, or does not reach back far enough.
    """
    start, actions = _checkpoint(folder, version)
    if start is None:
        first = read_commit(folder, 0)
        if first is None:
            return None
        start, actions = 0, iter(first)
    began = _Building(folder).applied(actions)
    return _advanced(began.snapshot(start), version)


def after_commit(snapshot: Snapshot, actions: Iterable[dict[str, Any]]) -> Snapshot:
    """The table after one more commit."""
    return _Building.of(snapshot).applied(actions).snapshot(snapshot.version + 1)


def _advanced(snapshot: Snapshot, version: int | None) -> Snapshot:
    """The table after the commits that follow, up to a version."""
    building: _Building | None = None
    reached = snapshot.version
    while version is None or reached < version:
        actions = read_commit(snapshot.folder, reached + 1)
        if actions is None:
            break
        building = (building or _Building.of(snapshot)).applied(actions)
        reached += 1
    return snapshot if building is None else building.snapshot(reached)


class _Building:
    """A snapshot while actions are applied to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.protocol: Mapping[str, Any] | None = None
        self.metadata: Mapping[str, Any] | None = None
        self.schema: pa.Schema | None = None
        self.files: dict[str, DataFile] = {}
        self.transactions: dict[str, int] = {}

    @classmethod
    def of(cls, snapshot: Snapshot) -> _Building:
        """Begin with a snapshot."""
        new = cls(snapshot.folder)
        new.protocol, new.metadata = snapshot.protocol, snapshot.metadata
        new.schema = snapshot.schema
        new.files, new.transactions = dict(snapshot.files), dict(snapshot.transactions)
        return new

    def applied(self, actions: Iterable[dict[str, Any]]) -> _Building:
        """Apply one commit: what it removes first, because a file with a new vector is added
        under the same name."""
        added = []
        for action in actions:
            if add := action.get("add"):
                added.append(_data_file(add))
            elif remove := action.get("remove"):
                name, vector = unquote(remove["path"]), _descriptor(remove)
                live = self.files.get(name)
                if live is not None and live.vector == vector:
                    del self.files[name]
            elif txn := action.get("txn"):
                self.transactions[txn["appId"]] = txn["version"]
            elif protocol := action.get("protocol"):
                self.protocol = protocol
            elif metadata := action.get("metaData"):
                self.metadata = metadata
                self.schema = pa.schema(DeltaSchema.from_json(metadata["schemaString"]).to_arrow())
        self.files.update((file.name, file) for file in added)
        return self

    def snapshot(self, version: int) -> Snapshot:
        """What has been built.

        Raises:
            PgsluiceError: the log lacks the table's definition.
        """
        if self.protocol is None or self.metadata is None or self.schema is None:
            raise PgsluiceError(
                f"the log of the Delta table in {self.folder} is not complete",
                hint="restore the files of _delta_log; or move the table away and copy it again",
                location=str(self.folder),
            )
        return Snapshot(
            self.folder,
            version,
            self.protocol,
            self.metadata,
            self.schema,
            self.files,
            self.transactions,
            _stamp(commit_path(self.folder, version)),
        )


def _data_file(add: Mapping[str, Any]) -> DataFile:
    return DataFile(unquote(add["path"]), add, _descriptor(add))


def _descriptor(action: Mapping[str, Any]) -> Descriptor | None:
    value = action.get("deletionVector")
    return Descriptor.from_json(value) if value else None


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _checkpoint(folder: Path, version: int | None) -> tuple[int | None, Iterator[dict[str, Any]]]:
    """The newest checkpoint up to a version, and its actions."""
    newest: tuple[int, Path] | None = None
    for path in (folder / "_delta_log").glob("*.checkpoint.parquet"):
        if (match := _CHECKPOINT.fullmatch(path.name)) is not None:
            number = int(match[1])
            if (version is None or number <= version) and (newest is None or number > newest[0]):
                newest = number, path
    if newest is None:
        return None, iter(())
    return newest[0], _checkpoint_actions(newest[1])


def _checkpoint_actions(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with pq.ParquetFile(path) as file:
            there = [name for name in _READ if name in file.schema_arrow.names]
            for batch in file.iter_batches(columns=there):
                for row in batch.to_pylist(maps_as_pydicts="strict"):
                    yield {name: value for name, value in row.items() if value is not None}
    except (OSError, pa.ArrowInvalid) as error:
        raise PgsluiceError(
            f"the checkpoint {path} of a Delta table cannot be read: {error}",
            hint="restore the file, or delete it if the commits before it are still there",
            location=str(path),
        ) from error
