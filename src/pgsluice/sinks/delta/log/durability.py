"""Makes the newest commits of a table durable before its position is trusted.

:mod:`.commit` makes our own commits durable: first their files, then the commit. But a process may
be killed in between, and deltalake does not sync its files. The spool deletes changes once they are
applied, so a power failure could then lose them. Therefore the newest commits of a table are synced
before its position is trusted. An object store answers only when it has the data, so there this
does nothing.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from pgsluice.sinks.delta.log.deletion_vectors import Descriptor
from pgsluice.sinks.delta.log.reading import commit_name, read_commit
from pgsluice.stores.contract import Folder

_COMMITS_OF_AN_ATTEMPT = 5
"""The largest number of commits that a killed attempt leaves: its changes, a compaction and a
clean-up."""

SETTLED: dict[Folder, int] = {}
"""The newest version of each table that this process has made durable."""


def settle_through(folder: Folder, version: int) -> None:
    """Make the commits up to a table's newest version durable, unless this process has already done
    so."""
    if folder.path is None:
        return
    last = SETTLED.get(folder, -1)
    if last == version:
        return
    first = max(version - _COMMITS_OF_AN_ATTEMPT + 1, 0)
    for number in range(first if last > version else max(first, last + 1), version + 1):
        actions = read_commit(folder, number) or ()
        folder.settle([*new_files(folder, actions), commit_name(number)])
    SETTLED[folder] = version


def new_files(
    folder: Folder, actions: Iterable[Mapping[str, Any]], known: Container[str] = ()
) -> Iterator[str]:
    """The names of the files that actions add to a table; ``known``: data files that it already
    has."""
    for action in actions:
        if (add := action.get("add")) is None:
            continue
        if (name := unquote(add["path"])) not in known:
            yield name
        vector = add.get("deletionVector")
        stored = None if vector is None else Descriptor.from_json(vector).name(folder)
        if stored is not None:
            yield stored
