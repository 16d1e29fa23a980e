"""Commits to a Delta table's log without deltalake: a commit becomes exactly one version, or fails.

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
from pgsluice.sinks.delta.log.deletion_vectors import Descriptor, write_vectors
from pgsluice.sinks.delta.log.durability import SETTLED, new_files
from pgsluice.sinks.delta.log.reading import after_commit, commit_name, remember
from pgsluice.sinks.delta.log.snapshot import DeltaFile, DeltaSnapshot
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
    """Create the version after a snapshot.

    Only one writer can create the file of a version; deltalake uses the same rule. The files of the
    commit are durable before it, and the version is durable when this returns. The commit has a
    UUID (``txnId``), by which it is recognised if the answer to its creation was lost, and has that
    of the commit before it, by which it is noticed that another program has overwritten that one.

    Args:
        operation: the operation in the table's history.
        actions: the actions of the change.
        transactions: ``txn`` actions, identifier -> version.
        information: additional fields of the ``commitInfo``.

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
        **snapshot.commits.as_information(),
        **information,
    }
    identifiers = [
        {"txn": {"appId": name, "version": version, "lastUpdated": now_ms}}
        for name, version in transactions.items()
    ]
    everything = [{"commitInfo": info}, *identifiers, *actions]
    lines = "".join(f"{as_text(action)}\n" for action in everything)
    version = snapshot.version + 1
    folder = snapshot.folder
    folder.settle(new_files(folder, actions, snapshot.files))
    failpoint("delta.before_commit")
    with commits():
        tag = _make_version(folder, version, lines.encode())
    failpoint("delta.after_commit")
    SETTLED[folder] = version
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


def actions_of(snapshot: DeltaSnapshot, edit: Edit) -> tuple[list[dict[str, Any]], int]:
    """The actions of an edit, whose deletion vectors are written now, and the size of the new files
    and vectors in bytes."""
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
    """The action that removes a file, with its deletion vector, from the table."""
    action = {
        "path": file.action["path"],
        "deletionTimestamp": int(time.time() * 1000),
        "dataChange": changes_data,
        "extendedFileMetadata": True,
        "partitionValues": {**file.partition},
        "size": file.size,
    }
    if file.vector is not None:
        action["deletionVector"] = file.vector.as_json()
    return {"remove": action}


def _with_vector(file: DataFile, vector: Descriptor, rows: int) -> dict[str, Any]:
    """The action that adds a file again with a larger deletion vector. Its statistics stay, but
    their bounds may be wider than those of the live rows; ``rows`` counts the deleted rows, too."""
    old = file.action if isinstance(file, DeltaFile) else _added(file, True)["add"]
    statistics = {**file.statistics(), "numRecords": rows, "tightBounds": False}
    action = {
        "path": old["path"],
        "partitionValues": {**file.partition},
        "size": file.size,
        "modificationTime": old["modificationTime"],
        "dataChange": True,
        "stats": as_text(statistics),
        "deletionVector": vector.as_json(),
    }
    return {"add": action}


def _added(file: DataFile, changes_data: bool) -> dict[str, Any]:
    action = {
        "path": file.name,
        "partitionValues": {**file.partition},
        "size": file.size,
        "modificationTime": int(time.time() * 1000),
        "dataChange": changes_data,
        "stats": as_text(file.statistics()),
    }
    return {"add": action}


def as_text(value: Mapping[str, Any]) -> str:
    """An action, or statistics, as JSON for the log, without escapes for characters.

    deltalake misreads escaped characters of the last plane (from U+100000 on), and then skips the
    file that has the row.
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
