"""Estimates the gain of another way of merging for a table, from the merges in its log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pgsluice.errors import PgsluiceError
from pgsluice.sinks.delta.log.reading import newest_version, read_commit
from pgsluice.stores.contract import Folder

_METRICS = {"execution_time_ms", "num_source_rows", "num_target_rows_copied"}
_COMMITS = 20
_WORTH = 5
"""Merging on read is worth it if a merge wrote this many times the changed rows."""


def advice_on_merges(title: str, folder: Folder, slow_s: float) -> str | None:
    """The gain of merging a table (``schema.table``) on read, with a hint how to enable it; None:
    there is none, or the log does not show it.

    Args:
        slow_s: ignore merges that take less time than this, in seconds.
    """
    merges = list(_merges(folder))
    if not merges:
        return None
    count = len(merges)
    seconds = sum(merge["execution_time_ms"] for merge in merges) / count / 1000
    changed = sum(merge["num_source_rows"] for merge in merges) // count
    copied = sum(merge["num_target_rows_copied"] for merge in merges) // count
    if seconds < slow_s or copied < _WORTH * changed:
        return None
    newest = f"the last {count} merges" if count > 1 else "the last merge"
    each = " each" if count > 1 else ""
    return (
        f"{newest} into the target took {seconds:.1f} s{each}, and rewrote {copied:,} unchanged"
        f" row(s) for {changed:,} changed row(s)"
        f'\n  → set merge_tables = {{ "{title}" = "on_read" }} in the sink to write only changed'
        " rows; docs/delta.md lists the readers that support deletion vectors"
    )


def _merges(folder: Folder) -> Iterator[Mapping[str, Any]]:
    """deltalake's metrics of the MERGEs among the newest commits."""
    try:
        newest = newest_version(folder)
        for version in range(max(0, newest - _COMMITS + 1), newest + 1):
            for action in read_commit(folder, version) or ():
                information = action.get("commitInfo") or {}
                metrics = information.get("operationMetrics") or {}
                if information.get("operation") == "MERGE" and metrics.keys() >= _METRICS:
                    yield metrics
    except (PgsluiceError, OSError):
        return
