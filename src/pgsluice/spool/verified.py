"""Which positions tables were verified at: a small file, written by what verifies them.

Only a process that holds the subscription's barrier writes it. It may be lost: then tables are due
for their next verification.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pgsluice.lsn import Lsn
from pgsluice.small_files import replace_json_if_possible
from pgsluice.spool.layout import VERIFIED, subscription_folder
from pgsluice.spool.records.record import TableRecord


@dataclass(frozen=True, slots=True)
class Verified:
    """The last verification of a table that found no difference.

    Attributes:
        position: the position at which both sides were equal.
        at: when, in seconds since 1970.
    """

    position: Lsn
    at: float


def keep_verified(spool_path: Path, name: str, verified: Mapping[int, Verified]) -> None:
    """Add tables of a subscription, by their OIDs; errors of the disk are ignored."""
    known = {**_read(spool_path, name), **verified}
    replace_json_if_possible(
        subscription_folder(spool_path, name) / VERIFIED,
        {oid: [str(each.position), each.at] for oid, each in known.items()},
    )


def read_verified(
    spool_path: Path, name: str, tables: Mapping[int, TableRecord]
) -> dict[int, Verified]:
    """The last verification of each of these tables, without tables that were copied since."""
    return {
        oid: each
        for oid, each in _read(spool_path, name).items()
        if (table := tables.get(oid)) is not None and each.position >= table.copied.position
    }


def _read(spool_path: Path, name: str) -> dict[int, Verified]:
    try:
        raw = json.loads((subscription_folder(spool_path, name) / VERIFIED).read_text())
        return {
            int(oid): Verified(Lsn.parse(position), float(at))
            for oid, (position, at) in raw.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
