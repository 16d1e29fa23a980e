"""The error for a target whose disk is full, or cannot be written for another reason."""

from __future__ import annotations

from pgsluice.disk import DiskTrouble
from pgsluice.errors import TargetUnreachable


def target_trouble(trouble: DiskTrouble, table: str) -> TargetUnreachable:
    """The error, with the table that was being written."""
    return TargetUnreachable(
        f"table {table}: {trouble.what}",
        hint=f"{trouble.hint}; no data is lost, and pgsluice keeps retrying",
        table=table,
    )
