"""What tests read from a spool: typed rows, in the order of commits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pgsluice.columnar import decode_segment
from pgsluice.columnar.changes import DELETE, INSERT, TRUNCATE
from pgsluice.spool import SpoolReader

Row = tuple[str, dict[str, Any]]


def changes(path: Path) -> list[Row]:
    """(letter, the row's columns) of every change; a DELETE has its old tuple."""
    reader = SpoolReader(path)
    found: list[tuple[tuple[int, int], Row]] = []
    for info in reader.segments(reader.start()):
        for view in reader.views(info):
            for one in decode_segment(view):
                names = one.schema.names
                for i in range(len(one)):
                    action = int(one.actions[i])
                    tuples, at = (
                        (one.old, one.old_index) if action == DELETE else (one.new, one.new_index)
                    )
                    row = {}
                    if action != TRUNCATE:
                        values = [column[int(at[i])].as_py() for column in tuples.columns]
                        row = dict(zip(names, values, strict=True))
                    place = (int(one.positions[i]), int(one.ordinals[i]))
                    found.append((place, (chr(action), row)))
    return [row for _, row in sorted(found, key=lambda one: one[0])]


def inserted(path: Path, column: str = "id") -> list[Any]:
    """One column of all inserted rows."""
    return [row[column] for action, row in changes(path) if action == chr(INSERT)]
