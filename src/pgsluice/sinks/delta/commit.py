"""One commit to a table's log, made by ourselves: it becomes one version, or fails.

Source: the Delta protocol, "Actions", and "Delta Log Entries" on who may write a version's file.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pgsluice.errors import TableError
from pgsluice.failpoints import failpoint
from pgsluice.sinks.contract import Overtaken
from pgsluice.sinks.delta.deletion_vectors import Descriptor, write_vectors
from pgsluice.sinks.delta.durability import new_files, note_settled
from pgsluice.sinks.delta.log import after_commit, commit_name, remember
from pgsluice.sinks.delta.snapshot import DeltaFile, DeltaSnapshot
from pgsluice.sinks.lake.attempt import commits
from pgsluice.sinks.lake.edit import Edit
from pgsluice.sinks.lake.snapshot import DataFile
from pgsluice.stores.contract import Folder, LinksRefused, NameTaken


def commit(
    snapshot: DeltaSnapshot,
    operation: str,
    actions: Sequence[dict[str, Any]],
    *,
    transactions: Mapping[str, int] = MappingProxyType({}),
    information: Mapping[str, Any] = MappingProxyType({}),
) -> DeltaSnapshot:
    """Make the version after a snapshot.

    One writer creates the file of a version; deltalake does the same. What the commit names is
    durable before, and the version when this returns. Its content is no other writer's: it has a
    UUID (``txnId``), by which a create whose answer was lost is recognised.

    Args:
        operation: as readers of the table's history see it.
        actions: what changes.
        transactions: ``txn`` actions, identifier -> version.
        information: more of the ``commitInfo``.

    Raises:
        Overtaken: another commit has this version.
        TableError: the disk's file system refuses hard links.
    """
    now_ms = int(time.time() * 1000)
    info = {
        "timestamp": now_ms,
        "operation": operation,
        "operationParameters": {},
        "engineInfo": "pgsluice",
        "txnId": str(uuid.uuid4()),
        **information,
    }
    identifiers = [
        {"txn": {"appId": name, "version": version, "lastUpdated": now_ms}}
        for name, version in transactions.items()
    ]
    everything = [{"commitInfo": info}, *identifiers, *actions]
    lines = "".join(f"{_as_json(action)}\n" for action in everything)
    version = snapshot.version + 1
    folder = snapshot.folder
    folder.settle(new_files(folder, actions, snapshot.files))
    failpoint("delta.before_commit")
    with commits():
        tag = _make_version(folder, version, lines.encode())
    failpoint("delta.after_commit")
    note_settled(folder, version)
    made = after_commit(snapshot, everything, tag)
    remember(made)
    return made


def _make_version(folder: Folder, version: int, content: bytes) -> Hashable:
    try:
        return folder.create(commit_name(version), content)
    except NameTaken:
        raise Overtaken(f"another commit made version {version} of {folder.uri}") from None
    except LinksRefused as error:
        raise TableError(str(error), hint=error.hint, location=folder.uri) from error


def _as_json(action: dict[str, Any]) -> str:
    return json.dumps(action, ensure_ascii=False, separators=(",", ":"))


def actions_of(snapshot: DeltaSnapshot, edit: Edit) -> tuple[list[dict[str, Any]], int]:
    """An edit as actions; the dead rows are written for it.

    Returns:
        the actions, and the bytes of the new files and of the vectors.
    """
    leaving = [*edit.gone, *(name for name in edit.dead if name in snapshot.files)]
    actions = [_removed(snapshot.files[name], edit.changes_data) for name in leaving]
    new = {file.name: file for file in edit.new}
    descriptors, size = write_vectors(snapshot.folder, [*edit.dead.values()])
    for name, descriptor in zip(edit.dead, descriptors, strict=True):
        file = new.pop(name, None) or snapshot.files[name]
        actions.append(_with_vector(file, descriptor, file.rows(snapshot.folder)))
    actions += [_added(file, edit.changes_data) for file in new.values()]
    return actions, edit.bytes_written + size


def _removed(file: DeltaFile, changes_data: bool) -> dict[str, Any]:
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


def _with_vector(file: DataFile, vector: Descriptor, rows: int) -> dict[str, Any]:
    """The action that puts a file into the table with more dead rows than it had.

    Its statistics stay; their bounds are no longer those of the live rows.

    Args:
        rows: how many the file has, dead ones included.
    """
    old = file.action if isinstance(file, DeltaFile) else _added(file, True)["add"]
    statistics = {**file.statistics(), "numRecords": rows, "tightBounds": False}
    action = {
        "path": old["path"],
        "partitionValues": {},
        "size": file.size,
        "modificationTime": old["modificationTime"],
        "dataChange": True,
        "stats": statistics_text(statistics),
        "deletionVector": vector.as_json(),
    }
    return {"add": action}


def _added(file: DataFile, changes_data: bool) -> dict[str, Any]:
    """The action that puts a new file into the table."""
    action = {
        "path": file.name,
        "partitionValues": {},
        "size": file.size,
        "modificationTime": int(time.time() * 1000),
        "dataChange": changes_data,
        "stats": statistics_text(file.statistics()),
    }
    return {"add": action}


def statistics_text(statistics: Mapping[str, Any]) -> str:
    """Statistics as the log has them: characters stand as they are.

    deltalake reads an escaped one of the last plane (from U+100000 on) as another one, and then
    skips the file that has the row.
    """
    return json.dumps(statistics, ensure_ascii=False, separators=(",", ":"))
