"""What tests read from a spool: typed rows, in the order of commits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pgsluice.columnar import RelationChanges, decode_segment
from pgsluice.columnar.changes import DELETE, INSERT, TRUNCATE
from pgsluice.spool import SpoolReader

Change = tuple[str, str, dict[str, Any]]


def all_changes(path: Path) -> list[Change]:
    """(table, letter, the row's columns) of every change; a DELETE has its old tuple."""
    reader = SpoolReader(path)
    found: list[tuple[tuple[int, int], Change]] = []
    for info in reader.segments(reader.start()):
        for view in reader.views(info):
            for one in decode_segment(view):
                found += _changes(one)
    return [change for _, change in sorted(found, key=lambda one: one[0])]


def _changes(one: RelationChanges) -> Iterator[tuple[tuple[int, int], Change]]:
    names = one.schema.names
    for i in range(len(one)):
        action = int(one.actions[i])
        is_old = action == DELETE
        tuples, at = (one.old, one.old_index) if is_old else (one.new, one.new_index)
        row = {}
        if action != TRUNCATE:
            values = [column[int(at[i])].as_py() for column in tuples.columns]
            row = dict(zip(names, values, strict=True))
        place = (int(one.positions[i]), int(one.ordinals[i]))
        yield place, (one.relation.name, chr(action), row)


def changes(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """(letter, the row's columns) of every change."""
    return [(action, row) for _, action, row in all_changes(path)]


def inserted(path: Path, column: str = "id") -> list[Any]:
    """One column of all inserted rows."""
    return [row[column] for action, row in changes(path) if action == chr(INSERT)]
