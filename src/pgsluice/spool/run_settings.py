"""What a run of a subscription has read of its configuration: a small file, for other commands.

Nothing is decided by it, and it may be lost: who holds the subscription's lock is its writer.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pgsluice.small_files import replace_json_if_possible
from pgsluice.spool.layout import RUN_SETTINGS, subscription_folder


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What a run has in force.

    Attributes:
        pid: its process.
        path: its configuration's file.
        read_at: when it read the file at its start, in seconds since 1970.
        digests: of each setting (:mod:`pgsluice.config.in_force`).
    """

    pid: int
    path: str
    read_at: float
    digests: dict[str, str] = field(default_factory=dict)


def write_run_settings(spool_path: Path, name: str, settings: RunSettings) -> None:
    """Replace the file of a subscription; a disk that is full does not matter here."""
    path = subscription_folder(spool_path, name) / RUN_SETTINGS
    replace_json_if_possible(path, asdict(settings))


def read_run_settings(spool_path: Path, name: str) -> RunSettings | None:
    """What the last run of a subscription had in force; None: it left nothing that can be read."""
    try:
        raw = json.loads((subscription_folder(spool_path, name) / RUN_SETTINGS).read_text())
        return RunSettings(
            int(raw["pid"]), str(raw["path"]), float(raw["read_at"]), dict(raw["digests"])
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None
