"""Stages the changes of a large batch as files that no version of the table refers to yet.

A task merges its pieces one after the other, each into the result of those before it: into versions
of the table that only the task knows, without a commit. So only one piece is in memory, and a piece
may change rows in files that an earlier piece has written. The difference between the last and the
first of these versions is what the task has staged: new files, and deleted rows of the table's
files. The commit combines what all tasks have staged.

Its figure: less than 1 GB in a worker for a transaction of 10 million rows.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from pyroaring import BitMap

from pgsluice.changes.net import NetChanges
from pgsluice.sinks.contract import Applied, StagedChanges
from pgsluice.sinks.lake.edit import Edit, bytes_of
from pgsluice.sinks.lake.history.merge import merge_of
from pgsluice.sinks.lake.keys.index import KeyIndex, with_sidecars
from pgsluice.sinks.lake.merge.net_merge import Merged
from pgsluice.sinks.lake.snapshot import NewFile, Snapshot
from pgsluice.sinks.lake.upkeep import SHARE_OF_DEAD, rewritten, write_live_rows
from pgsluice.sinks.lake.vectors import DeadRows
from pgsluice.stores.contract import Folder, StoreError


def stage_changes(
    snapshot: Snapshot,
    index_of: Callable[[NetChanges], KeyIndex],
    pieces: Iterable[NetChanges],
    table: str,
    *,
    searches_new: bool,
    keeps_vectors: bool,
) -> StagedChanges:
    """Write the files of consecutive net changes, without a commit.

    Args:
        snapshot: the version from which the first piece starts.
        index_of: returns what finds the rows of changes.
        searches_new: see :meth:`.NetMerge.apply`.
        keeps_vectors: whether new files may have deleted rows.
    """
    versions = _Versions(snapshot, snapshot)
    for net in pieces:
        versions.key = net.key
        versions.index = index_of(net)
        merge = merge_of(net, versions.last, versions.index, table, rewrites="nothing")
        versions.add(merge.apply(net, searches_new=searches_new))
    versions.rewrite(SHARE_OF_DEAD if keeps_vectors else 0.0)
    return versions.staged()


def joined_edit(
    snapshot: Snapshot, staged: Sequence[StagedChanges], *, keeps_vectors: bool
) -> Edit:
    """The edit that contains the changes of all tasks, which start from this version; unless it
    keeps vectors, files with deleted rows are rewritten."""
    share = _Share.of(staged)
    return edit_of(snapshot, share.new, share.gone, share.dead, keeps_vectors=keeps_vectors)


def edit_of(
    snapshot: Snapshot,
    new: Sequence[NewFile],
    gone: set[str],
    dead: Mapping[str, BitMap],
    *,
    keeps_vectors: bool,
) -> Edit:
    """The edit that adds files, removes files, and marks rows of the other files deleted.

    Args:
        gone: names of files to remove from the version, because none of their rows is live.
        dead: for each other file of the version and each new file with deleted rows: its name ->
            the numbers of all its deleted rows.
        keeps_vectors: deletion vectors mark the rows; otherwise the edit replaces such files by new
            files with only the live rows.
    """
    files = {**snapshot.files, **{file.name: file for file in new}}
    gone = gone | {
        name for name, rows in dead.items() if len(rows) == files[name].rows(snapshot.folder)
    }
    edit = Edit(
        [name for name in snapshot.files if name in gone],
        {name: rows for name, rows in dead.items() if name not in gone},
        [file for file in new if file.name not in gone],
    )
    if keeps_vectors or not edit.dead:
        return edit
    after = edit.applied(snapshot)
    written = write_live_rows(after, [after.files[name] for name in edit.dead])
    gone |= edit.dead.keys()
    return Edit(
        [name for name in snapshot.files if name in gone],
        new=[*(file for file in new if file.name not in gone), *written],
    )


def discard_changes(folder: Folder, staged: Iterable[StagedChanges]) -> None:
    """Delete staged files that nothing commits, as far as possible now."""
    with suppress(OSError, StoreError):
        folder.delete(*with_sidecars(folder, _Share.of(staged).new))


def forget_sidecars(
    made: Snapshot, cache_dir: str | None, staged: Sequence[StagedChanges]
) -> KeyIndex | None:
    """Delete the sidecars of files that only tasks had, or that the commit of the version ``made``
    removed; returns the table's sidecars, None if the changes have no key."""
    key = _Share.of(staged).key
    if not key:
        return None
    index = KeyIndex.of(made, cache_dir, key)
    index.forget(made.files)
    return index


def applied_changes(version: int, staged: Sequence[StagedChanges], bytes_written: int) -> Applied:
    """The result of a commit of staged changes, which created a version, and wrote so many bytes in
    new files and vectors."""
    merged = Merged()
    for part in staged:
        merged.count(part)
    return Applied(version, *merged.counts, bytes_written)


@dataclass(slots=True)
class _Versions:
    """The versions of the table that one task makes.

    Attributes:
        first: the one that it starts from, which is committed.
        last: after the pieces that are merged.
        key: the key columns of the changes.
        index: finds the rows of keys; None: there are no changes.
    """

    first: Snapshot
    last: Snapshot
    merged: Merged = field(default_factory=Merged)
    key: tuple[str, ...] = ()
    index: KeyIndex | None = None

    def add(self, merged: Merged) -> None:
        """Add a version; new files that it no longer has are deleted."""
        self.merged.count(merged)
        before, self.last = self.last, merged.edit.applied(self.last)
        unused = before.files.keys() - self.first.files.keys() - self.last.files.keys()
        folder = self.first.folder
        folder.delete(*with_sidecars(folder, [before.files[name] for name in unused]))

    def rewrite(self, share_of_dead: float) -> None:
        """Rewrite new files that have got deleted rows."""
        chosen = [
            file
            for file in self._new_files()
            if file.vector is not None and file.share_of_dead(self.last.folder) > share_of_dead
        ]
        self.add(Merged(rewritten(self.last, chosen, self.index)))

    def staged(self) -> StagedChanges:
        """The staged result."""
        if self.first.folder.path is None:  # on a disk, the commit settles what others have written
            self.first.folder.settle()
        files, first = self.last.files, self.first.files
        changed = ((name, file.vector) for name, file in files.items())
        dead = {name: vector.rows for name, vector in changed if isinstance(vector, DeadRows)}
        new = self._new_files()
        share = _Share(self.key, new, first.keys() - files.keys(), dead)
        return StagedChanges(self.first.version, *self.merged.counts, bytes_of(new), share.encode())

    def _new_files(self) -> list[NewFile]:
        return [file for file in self.last.files.values() if isinstance(file, NewFile)]


@dataclass(frozen=True, slots=True)
class _Share:
    """The result of some keys' changes to a version of the table.

    Attributes:
        key: the key of the changes; empty if there are none.
        gone: files of the version that are removed, because they have no live rows.
        dead: the deleted rows of changed files of the version, and of new files.
    """

    key: tuple[str, ...]
    new: Sequence[NewFile]
    gone: set[str]
    dead: Mapping[str, BitMap]

    @classmethod
    def of(cls, staged: Iterable[StagedChanges]) -> _Share:
        """What all tasks have staged."""
        shares = [cls._decode(part.payload) for part in staged]
        dead: dict[str, BitMap] = {}
        for share in shares:
            for name, rows in share.dead.items():
                dead[name] = dead.get(name, BitMap()) | rows
        new = [file for share in shares for file in share.new]
        key = max((share.key for share in shares), default=())  # one share may have no changes
        return cls(key, new, set().union(*(share.gone for share in shares)), dead)

    def encode(self) -> bytes:
        """As JSON."""
        dead = {
            name: base64.b64encode(rows.serialize()).decode() for name, rows in self.dead.items()
        }
        new = [file.as_json() for file in self.new]
        share = {"key": self.key, "new": new, "gone": sorted(self.gone), "dead": dead}
        return json.dumps(share).encode()

    @classmethod
    def _decode(cls, payload: bytes) -> _Share:
        """From that JSON."""
        value = json.loads(payload)
        dead = {
            name: BitMap.deserialize(base64.b64decode(rows)) for name, rows in value["dead"].items()
        }
        new = [NewFile.from_json(file) for file in value["new"]]
        return cls(tuple(value["key"]), new, set(value["gone"]), dead)
