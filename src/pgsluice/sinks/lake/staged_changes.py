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
from dataclasses import dataclass, field

from pyroaring import BitMap

from pgsluice.changes.net import NetChanges
from pgsluice.sinks.contract import Applied, StagedChanges
from pgsluice.sinks.lake.edit import Edit, bytes_of
from pgsluice.sinks.lake.key_index import KeyIndex, with_sidecars
from pgsluice.sinks.lake.net_merge import Merged, NetMerge
from pgsluice.sinks.lake.snapshot import NewFile, Snapshot
from pgsluice.sinks.lake.upkeep import SHARE_OF_DEAD, rewritten, write_live_rows
from pgsluice.sinks.lake.vectors import DeadRows
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
        versions.index = index_of(net.key)
        merge = NetMerge(versions.last, versions.index, table, rewrites="nothing")
        versions.add(merge.apply(net, searches_new=searches_new))
    versions.rewrite(SHARE_OF_DEAD if keeps_vectors else 0.0)
    return versions.staged()


def joined_edit(
    snapshot: Snapshot, staged: Sequence[StagedChanges], *, keeps_vectors: bool
) -> Edit:
    """What takes the table to the state after the changes of all tasks.

    Args:
        snapshot: the version that they start from.
        keeps_vectors: dead rows stay in their files; otherwise these are written anew.
    """
    share = _Share.joined([_Share.decode(part.payload) for part in staged])
    files = {**snapshot.files, **{file.name: file for file in share.new}}
    gone = share.gone | {
        name for name, rows in share.dead.items() if len(rows) == files[name].rows(snapshot.folder)
    }
    edit = Edit(
        [name for name in snapshot.files if name in gone],
        {name: rows for name, rows in share.dead.items() if name not in gone},
        [file for file in share.new if file.name not in gone],
    )
    if keeps_vectors or not edit.dead:
        return edit
    after = edit.applied(snapshot)
    written = write_live_rows(after, [after.files[name] for name in edit.dead])
    gone |= edit.dead.keys()
    return Edit(
        [name for name in snapshot.files if name in gone],
        new=[*(file for file in share.new if file.name not in gone), *written],
    )


def discard_changes(folder: Folder, staged: Iterable[StagedChanges]) -> None:
    """Delete staged files that nobody commits, as far as that is possible now.

    Args:
        folder: the table's.
    """
    new = [file for part in staged for file in _Share.decode(part.payload).new]
    with suppress(OSError, StoreError):
        folder.delete(*with_sidecars(folder, new))


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


def applied_changes(version: int, staged: Sequence[StagedChanges], bytes_written: int) -> Applied:
    """What a commit of staged changes did.

    Args:
        version: that it made.
        bytes_written: of the commit's new files and vectors.
    """
    return Applied(
        version=version,
        rows_inserted=sum(part.rows_inserted for part in staged),
        rows_updated=sum(part.rows_updated for part in staged),
        rows_deleted=sum(part.rows_deleted for part in staged),
        rows_skipped=sum(part.rows_skipped for part in staged),
        bytes_written=bytes_written,
    )


@dataclass(slots=True)
class _Versions:
    """The versions of the table that one task makes.

    Attributes:
        first: the one that it starts from, which is committed.
        last: after the pieces that are merged.
        merged: what was counted.
        key: of the changes.
        index: finds the rows of keys; None: there are no changes.
    """

    first: Snapshot
    last: Snapshot
    merged: Merged = field(default_factory=Merged)
    key: tuple[str, ...] = ()
    index: KeyIndex | None = None

    def add(self, merged: Merged) -> None:
        """Make one more version; new files that it does not have any more are deleted."""
        self.merged.rows_inserted += merged.rows_inserted
        self.merged.rows_updated += merged.rows_updated
        self.merged.rows_deleted += merged.rows_deleted
        self.merged.rows_skipped += merged.rows_skipped
        before, self.last = self.last, merged.edit.applied(self.last)
        unused = before.files.keys() - self.first.files.keys() - self.last.files.keys()
        folder = self.first.folder
        folder.delete(*with_sidecars(folder, [before.files[name] for name in unused]))

    def rewrite(self, share_of_dead: float) -> None:
        """Write new files with more dead rows anew."""
        chosen = [
            file
            for file in self._new_files()
            if file.vector is not None and file.share_of_dead(self.last.folder) > share_of_dead
        ]
        self.add(Merged(rewritten(self.last, chosen, self.index)))

    def staged(self) -> StagedChanges:
        """What there is to commit."""
        if self.first.folder.path is None:  # on a disk, the commit settles what others have written
            self.first.folder.settle()
        files, first = self.last.files, self.first.files
        changed = ((name, file.vector) for name, file in files.items())
        dead = {name: vector.rows for name, vector in changed if isinstance(vector, DeadRows)}
        new = self._new_files()
        return StagedChanges(
            version=self.first.version,
            rows_inserted=self.merged.rows_inserted,
            rows_updated=self.merged.rows_updated,
            rows_deleted=self.merged.rows_deleted,
            rows_skipped=self.merged.rows_skipped,
            bytes_written=bytes_of(new),
            payload=_Share(self.key, new, first.keys() - files.keys(), dead).encode(),
        )

    def _new_files(self) -> list[NewFile]:
        return [file for file in self.last.files.values() if isinstance(file, NewFile)]


@dataclass(frozen=True, slots=True)
class _Share:
    """What some keys' changes make of a version of the table.

    Attributes:
        key: of the changes; empty where there are none.
        new: files that the version lacks.
        gone: files of the version without live rows.
        dead: the dead rows of the version's files that changed, and those of new files.
    """

    key: tuple[str, ...]
    new: Sequence[NewFile]
    gone: set[str]
    dead: Mapping[str, BitMap]

    @classmethod
    def joined(cls, shares: Sequence[_Share]) -> _Share:
        """The shares of all tasks as one."""
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
    def decode(cls, payload: bytes) -> _Share:
        """From that JSON."""
        value = json.loads(payload)
        dead = {
            name: BitMap.deserialize(base64.b64decode(rows)) for name, rows in value["dead"].items()
        }
        new = [NewFile.from_json(file) for file in value["new"]]
        return cls(tuple(value["key"]), new, set(value["gone"]), dead)
