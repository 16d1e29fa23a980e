"""What a run tells other commands: small files of a subscription, which may be lost.

The holder of the subscription's lock, or of its barrier, replaces each file as a whole, and does
not sync it. After a loss, the next run or verification writes it again. Errors of the disk are
ignored; a file that is missing or unreadable counts as empty.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pgsluice.events import CopyAmount
from pgsluice.lsn import Lsn
from pgsluice.small_files import replace_json_if_possible
from pgsluice.spool.layout import (
    CATALOG_PROBLEMS,
    COPY_STATUS,
    RUN_SETTINGS,
    VERIFIED,
    subscription_folder,
)
from pgsluice.spool.records.record import SubscriptionRecord, TableRecord, TableState

_FRESH_S = 15.0
"""The age, in seconds, from which a file's rates are ignored: an active run writes the file every
second."""
_UNREADABLE = (OSError, ValueError, TypeError, KeyError, AttributeError)


def _write(machine_folder: Path, name: str, file: str, content: object) -> None:
    replace_json_if_possible(subscription_folder(machine_folder, name) / file, content)


def _read(machine_folder: Path, name: str, file: str) -> Any:
    return json.loads((subscription_folder(machine_folder, name) / file).read_text())


def write_catalog_problems(machine_folder: Path, name: str, problems: Mapping[str, str]) -> None:
    """Note why targets are not in the catalog as configured, as text for the user, by
    ``schema.table``."""
    _write(machine_folder, name, CATALOG_PROBLEMS, dict(problems))


def read_catalog_problems(machine_folder: Path, name: str) -> dict[str, str]:
    """The problems of targets in the catalog that the last run of a subscription found, by
    ``schema.table``; empty if unknown."""
    try:
        raw = _read(machine_folder, name, CATALOG_PROBLEMS)
        return {str(title): str(why) for title, why in raw.items()}
    except _UNREADABLE:
        return {}


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings that a run has in force, with its process id and the path of its configuration.

    Attributes:
        read_at: when the run read the file at its start, in seconds since 1970.
        digests: a digest of each setting (:mod:`pgsluice.config.in_force`).
    """

    pid: int
    path: str
    read_at: float
    digests: dict[str, str] = field(default_factory=dict)


def write_run_settings(machine_folder: Path, name: str, settings: RunSettings) -> None:
    """Note the settings that a run has in force, for other commands."""
    _write(machine_folder, name, RUN_SETTINGS, asdict(settings))


def read_run_settings(machine_folder: Path, name: str) -> RunSettings | None:
    """The settings of the last run of a subscription; None: unknown."""
    try:
        raw = _read(machine_folder, name, RUN_SETTINGS)
        return RunSettings(
            int(raw["pid"]), str(raw["path"]), float(raw["read_at"]), dict(raw["digests"])
        )
    except _UNREADABLE:
        return None


@dataclass(frozen=True, slots=True)
class Verified:
    """The position and time, in seconds since 1970, of a table's last verification that found no
    difference."""

    position: Lsn
    at: float


def keep_verified(machine_folder: Path, name: str, verified: Mapping[int, Verified]) -> None:
    """Note that tables were verified, by their OIDs; notes of other tables stay."""
    known = {**_read_verified(machine_folder, name), **verified}
    raw = {oid: [str(each.position), each.at] for oid, each in known.items()}
    _write(machine_folder, name, VERIFIED, raw)


def read_verified(
    machine_folder: Path, name: str, tables: Mapping[int, TableRecord]
) -> dict[int, Verified]:
    """The last verification of each of these tables, without tables that were copied since."""
    return {
        oid: each
        for oid, each in _read_verified(machine_folder, name).items()
        if (table := tables.get(oid)) is not None and each.position >= table.copied.position
    }


def _read_verified(machine_folder: Path, name: str) -> dict[int, Verified]:
    try:
        raw = _read(machine_folder, name, VERIFIED)
        return {int(oid): Verified(Lsn.parse(at[0]), float(at[1])) for oid, at in raw.items()}
    except (*_UNREADABLE, IndexError):
        return {}


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


def write_copy_status(folder: Path, status: CopyStatus | None) -> None:
    """Note the progress of copies in a subscription's folder; None: no table is being copied."""
    if status is None:
        (folder / COPY_STATUS).unlink(missing_ok=True)
    else:
        raw = {**asdict(status), "written_at": time.time()}
        replace_json_if_possible(folder / COPY_STATUS, raw)


def read_copy_status(
    machine_folder: Path, record: SubscriptionRecord, fresh_s: float = _FRESH_S
) -> CopyStatus:
    """The progress of a subscription's copies, limited to the tables that are being copied
    according to its record.

    After a run was killed, the file has the last progress of its copies. A file that is older than
    ``fresh_s`` seconds has no rates and no reasons for waiting, because the run has ended.
    """
    copied = {oid for oid, table in record.tables.items() if table.state is TableState.DATA_COPY}
    if not copied:
        return CopyStatus()
    try:
        raw = _read(machine_folder, record.name, COPY_STATUS)
        is_fresh = abs(time.time() - raw.pop("written_at")) < fresh_s
        tables = {int(oid): CopyAmount(**amount) for oid, amount in raw.pop("tables").items()}
        waits_for = {int(oid): str(words) for oid, words in raw.pop("waits_for").items()}
        status = CopyStatus(
            {oid: amount for oid, amount in tables.items() if oid in copied},
            {oid: words for oid, words in waits_for.items() if oid in copied},
            amount=CopyAmount(**raw.pop("amount")),
            **raw,
        )
    except _UNREADABLE:
        return CopyStatus()
    if is_fresh:
        return status

    def at_rest(amount: CopyAmount) -> CopyAmount:
        return replace(amount, rows_per_s=0.0, bytes_per_s=0.0)

    resting = {oid: at_rest(amount) for oid, amount in status.tables.items()}
    return replace(status, tables=resting, waits_for={}, amount=at_rest(status.amount))


def amount_json(amount: CopyAmount) -> dict[str, Any]:
    """How much of a table is copied, in the form of ``status --json``."""
    return {
        **asdict(amount),
        "rows_per_s": round(amount.rows_per_s),
        "bytes_per_s": round(amount.bytes_per_s),
        "left_s": None if amount.left_s is None else round(amount.left_s, 1),
    }
