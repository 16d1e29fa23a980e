"""A position counts when its commit is on the disk, with all that the commit names.

deltalake and pyarrow leave written files to the operating system, which writes them out within
half a minute. The spool deletes changes once they are applied: a power cut in between would lose
them. Object stores need none of this: they answer when they have the data.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pgsluice.failpoints import failpoint
from pgsluice.sinks.delta.deletion_vectors import Descriptor
from pgsluice.sinks.delta.log import commit_path, read_commit

_COMMITS_OF_AN_ATTEMPT = 5
"""A killed attempt leaves at most so many: of its changes, a compaction and a clean-up."""

_synced: dict[Path, int] = {}
_lock = threading.Lock()


def sync_through(folder: Path, version: int) -> None:
    """Write out the newest commits of a table, unless this process has done so.

    Args:
        folder: the table's.
        version: the newest.
    """
    with _lock:
        last = _synced.get(folder, -1)
    if last == version:
        return
    first = max(version - _COMMITS_OF_AN_ATTEMPT + 1, 0)
    for number in range(first if last > version else max(first, last + 1), version + 1):
        sync_added(folder, read_commit(folder, number) or ())
        sync(commit_path(folder, number))
    sync_log(folder, version)


def sync_added(
    folder: Path, actions: Iterable[Mapping[str, Any]], known: Container[str] = ()
) -> None:
    """Write out the files that actions add to a table, with their names in their folders.

    Args:
        folder: the table's.
        known: paths of data files that the table has already.
    """
    paths = {folder}
    for action in actions:
        if (add := action.get("add")) is None:
            continue
        if (name := unquote(add["path"])) not in known:
            paths |= {folder / name, (folder / name).parent}
        vector = add.get("deletionVector")
        file = None if vector is None else Descriptor.from_json(vector).file(folder)
        if file is not None:
            paths |= {file, file.parent}
    sync(*paths)


def sync_log(folder: Path, version: int) -> None:
    """Write out the names of the log's files; the commit of the version is on the disk.

    The first version's folders are perhaps new, too: the table's, its schema's, and the log.
    """
    sync(folder / "_delta_log", *((folder, *folder.parents[:2]) if version == 0 else ()))
    with _lock:
        _synced[folder] = version


def sync(*paths: Path) -> None:
    """Write out files and folders; those that are not there any more are left out.

    So are folders above the table's that may not be opened, and folders of a file system that has
    nothing to write out for a folder.
    """
    for path in sorted(paths):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except (FileNotFoundError, PermissionError):
            continue
        try:
            failpoint("delta.sync")
            os.fsync(descriptor)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        finally:
            os.close(descriptor)
