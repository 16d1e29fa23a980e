"""One commit to a table's log, made by ourselves: it becomes one version, or fails.

Source: the Delta protocol, "Actions", and "Delta Log Entries" on who may write a version's file.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pgsluice.errors import TableError
from pgsluice.failpoints import failpoint
from pgsluice.sinks.contract import Overtaken
from pgsluice.sinks.delta import hard_links
from pgsluice.sinks.delta.attempt import commits
from pgsluice.sinks.delta.deletion_vectors import FOLDER, Descriptor
from pgsluice.sinks.delta.durability import sync, sync_added, sync_log
from pgsluice.sinks.delta.log import after_commit, commit_path, remember
from pgsluice.sinks.delta.snapshot import DataFile, Snapshot
from pgsluice.sinks.delta.staging import statistics_text


def commit(
    snapshot: Snapshot,
    operation: str,
    actions: Sequence[dict[str, Any]],
    *,
    transactions: Mapping[str, int] = MappingProxyType({}),
    information: Mapping[str, Any] = MappingProxyType({}),
) -> Snapshot:
    """Make the version after a snapshot.

    The file of a version is linked to its name, which fails if the name is taken: so one writer
    makes a version. deltalake and Spark do the same. What it names is on the disk before, and the
    version when this returns.

    Args:
        operation: as readers of the table's history see it.
        actions: what changes.
        transactions: ``txn`` actions, identifier -> version.
        information: more of the ``commitInfo``.

    Raises:
        Overtaken: another commit has this version.
        TableError: the file system refuses hard links.
    """
    now_ms = int(time.time() * 1000)
    info = {
        "timestamp": now_ms,
        "operation": operation,
        "operationParameters": {},
        "engineInfo": "pgsluice",
        **information,
    }
    identifiers = [
        {"txn": {"appId": name, "version": version, "lastUpdated": now_ms}}
        for name, version in transactions.items()
    ]
    everything = [{"commitInfo": info}, *identifiers, *actions]
    lines = "".join(f"{_as_json(action)}\n" for action in everything)
    version = snapshot.version + 1
    folder = snapshot.folder / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    commit_path(snapshot.folder, version).parent.mkdir(exist_ok=True)
    sync_added(snapshot.folder, actions, snapshot.files)
    written = folder / f"commit-{uuid.uuid4()}.tmp"
    try:
        written.write_bytes(lines.encode())
        sync(written)
        failpoint("delta.before_commit")
        with commits():
            _make_version(snapshot.folder, version, written)
    finally:
        written.unlink(missing_ok=True)
    failpoint("delta.after_commit")
    sync_log(snapshot.folder, version)
    made = after_commit(snapshot, everything)
    remember(made)
    return made


def _make_version(folder: Path, version: int, written: Path) -> None:
    path = commit_path(folder, version)
    try:
        path.hardlink_to(written)
    except FileExistsError:
        if path.samefile(written):  # NFS repeats a call whose answer was lost
            return
        raise Overtaken(f"another commit made version {version} of {folder}") from None
    except OSError as error:
        if error.errno not in hard_links.REFUSALS:
            raise
        raise TableError(
            f"{folder} cannot have a Delta table: {hard_links.WHY}",
            hint="choose a path on another file system",
            location=str(folder),
        ) from error


def _as_json(action: dict[str, Any]) -> str:
    return json.dumps(action, ensure_ascii=False, separators=(",", ":"))


def removed(file: DataFile, *, changes_data: bool = True) -> dict[str, Any]:
    """The action that takes a file, with the vector that it has, out of the table."""
    action = {
        "path": file.action["path"],
        "deletionTimestamp": int(time.time() * 1000),
        "dataChange": changes_data,
        "extendedFileMetadata": True,
        "partitionValues": {},
        "size": file.size,
    }
    if file.vector is not None:
        action["deletionVector"] = file.vector.as_json()
    return {"remove": action}


def with_vector(file: DataFile, vector: Descriptor, rows: int) -> dict[str, Any]:
    """The action that puts the file into the table again, with more dead rows.

    Its statistics stay; their bounds are no longer those of the live rows.

    Args:
        rows: how many the file has, dead ones included.
    """
    statistics = {**file.statistics(), "numRecords": rows, "tightBounds": False}
    action = {
        "path": file.action["path"],
        "partitionValues": {},
        "size": file.size,
        "modificationTime": file.action["modificationTime"],
        "dataChange": True,
        "stats": statistics_text(statistics),
        "deletionVector": vector.as_json(),
    }
    return {"add": action}


def added(
    path: str, size: int, statistics: Mapping[str, Any], *, changes_data: bool = True
) -> dict[str, Any]:
    """The action that puts a new file into the table."""
    action = {
        "path": path,
        "partitionValues": {},
        "size": size,
        "modificationTime": int(time.time() * 1000),
        "dataChange": changes_data,
        "stats": statistics_text(statistics),
    }
    return {"add": action}
