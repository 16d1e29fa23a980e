"""How far a subscription's copies are, in a small file: for ``status`` and for Spark's progress.

The run that copies replaces the file as a whole, and does not sync it: nothing is decided by it.
After a run was killed, the file says how far its copies were.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pgsluice.events import CopyAmount
from pgsluice.small_files import replace_json_if_possible
from pgsluice.spool.layout import COPY_STATUS, subscription_folder
from pgsluice.spool.records.record import SubscriptionRecord, TableState

_FRESH_S = 15.0
"""A run that copies writes the file every second, so an older one has no rate."""


@dataclass(frozen=True, slots=True)
class CopyStatus:
    """The copies of a subscription: those that run, and those that ended since the first of them
    began.

    Attributes:
        tables: what is not committed yet, by the table's OID (a partitioned table's root).
        waits_for: what tables wait for, for people, by OID.
        done, all_tables: how many tables are copied, and in all.
        amount: of all of them.
    """

    tables: Mapping[int, CopyAmount] = field(default_factory=dict)
    waits_for: Mapping[int, str] = field(default_factory=dict)
    done: int = 0
    all_tables: int = 0
    amount: CopyAmount = field(default_factory=CopyAmount)


def write_copy_status(folder: Path, status: CopyStatus) -> None:
    """Replace the file in a subscription's folder; a disk that is full does not matter here."""
    raw = {**asdict(status), "written_at": time.time()}
    replace_json_if_possible(folder / COPY_STATUS, raw)


def remove_copy_status(folder: Path) -> None:
    """Say that no table is copied any more."""
    (folder / COPY_STATUS).unlink(missing_ok=True)


def read_copy_status(spool_path: Path, record: SubscriptionRecord) -> CopyStatus:
    """How far the copies of a subscription are, as far as its record says that tables are copied.

    What was said long ago has no rates, and waits for nothing: the run has ended.
    """
    copied = {oid for oid, table in record.tables.items() if table.state is TableState.DATA_COPY}
    path = subscription_folder(spool_path, record.name) / COPY_STATUS
    if not copied:
        return CopyStatus()
    try:
        raw = json.loads(path.read_text())
        is_fresh = abs(time.time() - raw.pop("written_at")) < _FRESH_S
        tables = {int(oid): CopyAmount(**amount) for oid, amount in raw.pop("tables").items()}
        waits_for = {int(oid): str(words) for oid, words in raw.pop("waits_for").items()}
        status = CopyStatus(
            {oid: amount for oid, amount in tables.items() if oid in copied},
            {oid: words for oid, words in waits_for.items() if oid in copied},
            amount=CopyAmount(**raw.pop("amount")),
            **raw,
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return CopyStatus()
    return status if is_fresh else _at_rest(status)


def _at_rest(status: CopyStatus) -> CopyStatus:
    return replace(
        status,
        tables={oid: _without_rate(amount) for oid, amount in status.tables.items()},
        waits_for={},
        amount=_without_rate(status.amount),
    )


def _without_rate(amount: CopyAmount) -> CopyAmount:
    return replace(amount, rows_per_s=0.0, bytes_per_s=0.0)


def amount_json(amount: CopyAmount) -> dict[str, Any]:
    """An amount as ``status --json`` and Spark's progress print it."""
    left_s = amount.left_s
    return {
        "ranges": amount.ranges,
        "all_ranges": amount.all_ranges,
        "rows": amount.rows,
        "bytes": amount.bytes,
        "all_bytes": amount.all_bytes,
        "rows_per_s": round(amount.rows_per_s),
        "bytes_per_s": round(amount.bytes_per_s),
        "left_s": None if left_s is None else round(left_s, 1),
    }
