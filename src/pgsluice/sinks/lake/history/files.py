"""The files of a history: their names say which versions they have.

Files of current versions may have deleted rows. Programs of others that join files give them other
names: such a file may have versions of both kinds, and its rows are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pgsluice.sinks.lake.snapshot import DataFile
from pgsluice.sinks.lake.staging import PREFIX

CLOSED: Final = "closed"
CURRENT: Final = "current"


def prefix_of(file: DataFile) -> str:
    """What the names of files with the same kind of versions begin with."""
    prefix, _, _ = file.name.partition("-")
    return prefix if prefix in (CLOSED, CURRENT) else PREFIX


def by_prefix(files: Iterable[DataFile]) -> dict[str, list[DataFile]]:
    """Files by that."""
    grouped: dict[str, list[DataFile]] = {}
    for file in files:
        grouped.setdefault(prefix_of(file), []).append(file)
    return grouped


def may_be_current(files: Iterable[DataFile]) -> list[DataFile]:
    """The files that may have current versions."""
    return [file for file in files if prefix_of(file) != CLOSED]
