"""A position counts when its commit is durable, with all that the commit names.

Our own commits are: :mod:`.commit` settles what they name, and a folder creates files durably. A
process may be killed between the two, and deltalake leaves written files to the operating system.
The spool deletes changes once they are applied: a power cut in between would lose them. So the
newest commits of a table are settled before its position is believed. An object store answers when
it has the data: there this does nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from pgsluice.sinks.delta.deletion_vectors import Descriptor
from pgsluice.sinks.delta.log import commit_name, read_commit
from pgsluice.stores.contract import Folder

_COMMITS_OF_AN_ATTEMPT = 5
"""A killed attempt leaves at most so many: of its changes, a compaction and a clean-up."""

_settled: dict[Folder, int] = {}
_lock = threading.Lock()


def settle_through(folder: Folder, version: int) -> None:
    """Make the newest commits of a table durable, unless this process has done so.

    Args:
        folder: the table's.
        version: the newest.
    """
    if folder.path is None:
        return
    with _lock:
        last = _settled.get(folder, -1)
    if last == version:
        return
    first = max(version - _COMMITS_OF_AN_ATTEMPT + 1, 0)
    for number in range(first if last > version else max(first, last + 1), version + 1):
        actions = read_commit(folder, number) or ()
        folder.settle([*new_files(folder, actions), commit_name(number)])
    note_settled(folder, version)


def note_settled(folder: Folder, version: int) -> None:
    """This process has made a version durable."""
    with _lock:
        _settled[folder] = version


def new_files(
    folder: Folder, actions: Iterable[Mapping[str, Any]], known: Container[str] = ()
) -> Iterator[str]:
    """The files that actions add to a table, by their names.

    Args:
        folder: the table's.
        known: data files that the table has already.
    """
    for action in actions:
        if (add := action.get("add")) is None:
            continue
        if (name := unquote(add["path"])) not in known:
            yield name
        vector = add.get("deletionVector")
        stored = None if vector is None else Descriptor.from_json(vector).name(folder)
        if stored is not None:
            yield stored
