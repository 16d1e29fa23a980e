"""The times at which positions were committed at the source and in the target.

The source's times come from the spool, which has the commit timestamp of each transaction. The
target's times come from the Delta log: a commit is visible from the modification time of its file.
Both are times of the same machine's clock.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pgsluice.lsn import Lsn
from pgsluice.spool import SpoolReader

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_CHANGES = np.frombuffer(b"IUD", dtype=np.uint8)


def changes_received(reader: SpoolReader) -> int:
    """How many changes the spool holds."""
    return sum(info.header.counts.changes for info in reader.all_segments())


def commits_of(
    table: Path, known: dict[str, tuple[int, float]] | None = None
) -> list[tuple[int, float]]:
    """The commits of a Delta table that have a position, in order.

    Args:
        table: the table's folder.
        known: the commits that earlier calls read; this call adds the new ones.

    Returns:
        pairs of a position and the time at which it became visible, in seconds since 1970.
    """
    known = {} if known is None else known
    for path in (table / "_delta_log").glob("*.json"):
        if path.name not in known:
            known[path.name] = (_position(path), path.stat().st_mtime)
    return sorted(commit for commit in known.values() if commit[0] >= 0)


def _position(path: Path) -> int:
    for line in path.read_text().splitlines():
        transaction = json.loads(line).get("txn", {})
        if str(transaction.get("appId", "")).startswith("pgsluice:"):
            return int(transaction["version"])
    return -1  # compaction, a checkpoint's clean-up


@dataclass(frozen=True, slots=True)
class Committed:
    """Transactions at the source, one element each.

    Attributes:
        positions: where they ended.
        at: when, in seconds since 1970.
        oids: the table that they changed (the last one, had they changed several).
    """

    positions: Int64s
    at: Floats
    oids: Int64s


def committed(reader: SpoolReader, after: Lsn) -> Committed:
    """The transactions in the spool past a position."""
    positions, times, oids = [], [], []
    for info in reader.segments(after):
        for view in reader.views(info, after):
            rows = np.isin(view.block.tags, _CHANGES)
            positions.append(view.block.positions[rows])
            times.append(view.block.commit_timestamps[rows])
            oids.append(view.block.oids[rows])
    if not positions:
        nothing = np.zeros(0, dtype=np.int64)
        return Committed(nothing, nothing.astype(np.float64), nothing)
    all_positions, places = np.unique(np.concatenate(positions), return_index=True)
    return Committed(
        all_positions, np.concatenate(times)[places] / 1e6, np.concatenate(oids)[places]
    )


def latencies(source: Committed, oid: int, table: Path) -> Floats:
    """From each transaction's commit to the first Delta commit that has it, in seconds."""
    target = commits_of(table)
    mine = source.oids == oid
    reached = np.array([position for position, _ in target], dtype=np.int64)
    visible = np.array([when for _, when in target])
    places = np.searchsorted(reached, source.positions[mine], side="left")
    seen = places < len(target)
    found: Floats = visible[places[seen]] - source.at[mine][seen]
    return found
