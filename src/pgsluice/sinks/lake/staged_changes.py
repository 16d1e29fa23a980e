"""Changes of a large batch, as files that no version of the table refers to yet.

A task merges its pieces one after the other, each into what those before it left: into versions of
the table that only the task knows, since nothing is committed. So a task's memory holds one piece,
however large the batch is, and the rows that a piece changes may lie in files that an earlier piece
has written. What the last of these versions has beyond the first is what the task has staged: new
files, and which rows of the table's files are dead. The commit joins what all tasks have staged.

Its figure: less than 1 GB in a worker for a transaction of 10 million rows.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from pyroaring import BitMap

from pgsluice.changes.net import NetChanges
from pgsluice.sinks.contract import Applied, StagedChanges
from pgsluice.sinks.delta.commit import added, removed, with_vector
from pgsluice.sinks.delta.deletion_vectors import Descriptor, read_vector, write_vectors
from pgsluice.sinks.delta.log import after_commit
from pgsluice.sinks.delta.upkeep import SHARE_OF_DEAD, rewritten, write_live_rows
from pgsluice.sinks.lake.key_index import KeyIndex
from pgsluice.sinks.lake.net_merge import Merged, NetMerge
from pgsluice.sinks.lake.snapshot import DataFile, Snapshot
from pgsluice.stores.contract import Folder, StoreError


def stage_changes(
    snapshot: Snapshot,
    index_of: Callable[[Sequence[str]], KeyIndex],
    pieces: Iterable[NetChanges],
    table: str,
    *,
    searches_new: bool,
    keeps_vectors: bool,
) -> StagedChanges:
    """Write the files of net changes that follow each other; nothing is committed.

    Args:
        snapshot: the version that the first piece starts from.
        index_of: finds the rows of keys, by the key's columns.
        table: its title, for messages.
        searches_new: see :meth:`.NetMerge.apply`.
        keeps_vectors: new files may have some dead rows; otherwise they have none.
    """
    versions = _Versions(snapshot, snapshot)
    for net in pieces:
        versions.key = net.key
        merge = NetMerge(versions.last, index_of(net.key), table, rewrites="nothing")
        versions.add(merge.apply(net, searches_new=searches_new))
    versions.rewrite(SHARE_OF_DEAD if keeps_vectors else 0.0)
    return versions.staged()


def commit_actions(
    snapshot: Snapshot, staged: Sequence[StagedChanges], *, keeps_vectors: bool
) -> tuple[list[dict[str, Any]], int]:
    """What takes the table to the state after the changes of all tasks.

    Args:
        snapshot: the version that they start from.
        keeps_vectors: dead rows stay in their files; otherwise these are written anew.

    Returns:
        the actions, and the bytes of the files that are written for them.
    """
    share = _Share.joined([_Share.decode(part.payload) for part in staged])
    files = after_commit(snapshot, [{"add": action} for action in share.new]).files
    gone = share.gone | {
        name for name, rows in share.dead.items() if len(rows) == files[name].rows(snapshot.folder)
    }
    dead = {name: rows for name, rows in share.dead.items() if name not in gone}
    touched = {*gone, *dead}
    actions = [removed(file) for name, file in snapshot.files.items() if name in touched]
    actions += [{"add": file.action} for name, file in files.items()
                if name not in touched and name not in snapshot.files]  # fmt: skip
    descriptors, size = write_vectors(snapshot.folder, [*dead.values()])
    buried = [replace(files[name], vector=d) for name, d in zip(dead, descriptors, strict=True)]
    if keeps_vectors:
        actions += [
            with_vector(file, descriptor, file.rows(snapshot.folder))
            for file, descriptor in zip(buried, descriptors, strict=True)
        ]
        return actions, size
    written = write_live_rows(snapshot, buried)
    _delete(snapshot, _vector_files(snapshot, buried))
    actions += [added(file["path"], file["size"], file["stats"]) for file in written]
    return actions, sum(file["size"] for file in written)


def discard_changes(folder: Folder, staged: Iterable[StagedChanges]) -> None:
    """Delete staged files that nobody commits, as far as that is possible now.

    Args:
        folder: the table's.
    """
    new = [action for part in staged for action in _Share.decode(part.payload).new]
    with suppress(OSError, StoreError):
        folder.delete(*(action["path"] for action in new))


def forget_sidecars(
    made: Snapshot, cache_dir: str | None, staged: Sequence[StagedChanges]
) -> KeyIndex | None:
    """Delete the sidecars of files that only tasks had, or that the commit took out of the table.

    Args:
        made: the version that it made.
        cache_dir: see :class:`.KeyIndex`.

    Returns:
        the table's sidecars; None where the changes have no key.
    """
    key = _Share.joined([_Share.decode(part.payload) for part in staged]).key
    if not key:
        return None
    index = KeyIndex.of(made, cache_dir, key)
    index.forget(made.files)
    return index


def applied_changes(version: int, staged: Sequence[StagedChanges], size: int) -> Applied:
    """What a commit of staged changes did.

    Args:
        version: that it made.
        size: bytes of the files that were written for the commit itself.
    """
    return Applied(
        version=version,
        rows_inserted=sum(part.rows_inserted for part in staged),
        rows_updated=sum(part.rows_updated for part in staged),
        rows_deleted=sum(part.rows_deleted for part in staged),
        rows_skipped=sum(part.rows_skipped for part in staged),
        bytes_written=size + sum(part.bytes_written for part in staged),
    )


@dataclass(slots=True)
class _Versions:
    """The versions of the table that one task makes.

    Attributes:
        first: the one that it starts from, which is committed.
        last: after the pieces that are merged.
        merged: what was counted.
        vector_files: those of all versions.
        key: of the changes.
    """

    first: Snapshot
    last: Snapshot
    merged: Merged = field(default_factory=Merged)
    vector_files: set[str] = field(default_factory=set)
    key: tuple[str, ...] = ()

    def add(self, merged: Merged) -> None:
        """Make one more version; new files that it does not have any more are deleted."""
        self.merged.rows_inserted += merged.rows_inserted
        self.merged.rows_updated += merged.rows_updated
        self.merged.rows_deleted += merged.rows_deleted
        self.merged.rows_skipped += merged.rows_skipped
        before, self.last = self.last, after_commit(self.last, merged.actions)
        changed = [file for name, file in self.last.files.items() if file != before.files.get(name)]
        self.vector_files |= _vector_files(self.last, changed)
        _delete(self.first, before.files.keys() - self.first.files.keys() - self.last.files.keys())

    def rewrite(self, share_of_dead: float) -> None:
        """Write new files with more dead rows anew."""
        chosen = [
            file
            for file in self._new_files()
            if file.vector is not None and file.share_of_dead(self.last.folder) > share_of_dead
        ]
        self.add(Merged(actions=rewritten(self.last, chosen)))

    def staged(self) -> StagedChanges:
        """What there is to commit; the vectors' files are not needed for it any more."""
        folder, first = self.last.folder, self.first.files
        dead = {
            name: read_vector(folder, file.vector)
            for name, file in self.last.files.items()
            if file.vector is not None and (name not in first or first[name].vector != file.vector)
        }
        new = [_without_vector(file.action) for file in self._new_files()]
        _delete(self.first, self.vector_files)
        return StagedChanges(
            version=self.first.version,
            rows_inserted=self.merged.rows_inserted,
            rows_updated=self.merged.rows_updated,
            rows_deleted=self.merged.rows_deleted,
            rows_skipped=self.merged.rows_skipped,
            bytes_written=sum(file["size"] for file in new),
            payload=_Share(self.key, new, first.keys() - self.last.files.keys(), dead).encode(),
        )

    def _new_files(self) -> list[DataFile]:
        return [file for name, file in self.last.files.items() if name not in self.first.files]


@dataclass(frozen=True, slots=True)
class _Share:
    """What some keys' changes make of a version of the table.

    Attributes:
        key: of the changes; empty where there are none.
        new: ``add`` actions of new files, without vectors.
        gone: files of the version without live rows.
        dead: the dead rows of the version's files that changed, and those of new files.
    """

    key: tuple[str, ...]
    new: Sequence[Mapping[str, Any]]
    gone: set[str]
    dead: Mapping[str, BitMap]

    @classmethod
    def joined(cls, shares: Sequence[_Share]) -> _Share:
        """The shares of all tasks as one."""
        dead: dict[str, BitMap] = {}
        for share in shares:
            for name, rows in share.dead.items():
                dead[name] = dead.get(name, BitMap()) | rows
        new = [action for share in shares for action in share.new]
        key = max((share.key for share in shares), default=())  # one share may have no changes
        return cls(key, new, set().union(*(share.gone for share in shares)), dead)

    def encode(self) -> bytes:
        """As JSON."""
        dead = {
            name: base64.b64encode(rows.serialize()).decode() for name, rows in self.dead.items()
        }
        share = {"key": self.key, "new": self.new, "gone": sorted(self.gone), "dead": dead}
        return json.dumps(share).encode()

    @classmethod
    def decode(cls, payload: bytes) -> _Share:
        """From that JSON."""
        value = json.loads(payload)
        dead = {
            name: BitMap.deserialize(base64.b64decode(rows)) for name, rows in value["dead"].items()
        }
        return cls(tuple(value["key"]), value["new"], set(value["gone"]), dead)


def _without_vector(action: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in action.items() if name != "deletionVector"}


def _vector_files(snapshot: Snapshot, files: Iterable[DataFile]) -> set[str]:
    """The paths of the files' vectors inside of the table's folder."""
    vectors: Iterable[Descriptor] = (f.vector for f in files if f.vector is not None)
    names = (vector.name(snapshot.folder) for vector in vectors)
    return {name for name in names if name is not None}


def _delete(snapshot: Snapshot, names: Iterable[str]) -> None:
    snapshot.folder.delete(*names)
