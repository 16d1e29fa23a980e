"""The progress of a subscription's copies, in a small file for ``status``.

The run replaces the file as a whole, and does not sync it, because no decision depends on it. After
a run was killed, the file has the last progress of its copies.
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
"""The age, in seconds, from which a file's rates are ignored: an active run writes the file every
second."""


@dataclass(frozen=True, slots=True)
class CopyStatus:
    """The copies of a subscription: the running ones, and those that ended since the first of them
    started.

    Attributes:
        tables: the uncommitted copies, by the table's OID (that of the partition root).
        waits_for: why tables wait, as text for the user, by OID.
        done, all_tables: how many tables are copied, and how many there are.
        amount: the amount of all of them.
    """

    tables: Mapping[int, CopyAmount] = field(default_factory=dict)
    waits_for: Mapping[int, str] = field(default_factory=dict)
    done: int = 0
    all_tables: int = 0
    amount: CopyAmount = field(default_factory=CopyAmount)


def write_copy_status(folder: Path, status: CopyStatus) -> None:
    """Replace the file in a subscription's folder; errors of the disk are ignored."""
    raw = {**asdict(status), "written_at": time.time()}
    replace_json_if_possible(folder / COPY_STATUS, raw)


def remove_copy_status(folder: Path) -> None:
    """Remove the file: no table is being copied any more."""
    (folder / COPY_STATUS).unlink(missing_ok=True)


def read_copy_status(
    spool_path: Path, record: SubscriptionRecord, fresh_s: float = _FRESH_S
) -> CopyStatus:
    """The progress of a subscription's copies, limited to the tables that are being copied
    according to its record.

    An old file has no rates and no reasons for waiting, because the run has ended.

    Args:
        fresh_s: the age from which the file is old.
    """
    copied = {oid for oid, table in record.tables.items() if table.state is TableState.DATA_COPY}
    path = subscription_folder(spool_path, record.name) / COPY_STATUS
    if not copied:
        return CopyStatus()
    try:
        raw = json.loads(path.read_text())
        is_fresh = abs(time.time() - raw.pop("written_at")) < fresh_s
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
    """An amount in the form of ``status --json``."""
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
