"""What a run of a subscription has read of its configuration: a small file, for other commands.

Nothing is decided by it, and it may be lost: who holds the subscription's lock is its writer.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

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
    temporary = path.with_suffix(".tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(asdict(settings), file)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)


def read_run_settings(spool_path: Path, name: str) -> RunSettings | None:
    """What the last run of a subscription had in force; None: it left nothing that can be read."""
    try:
        raw = json.loads((subscription_folder(spool_path, name) / RUN_SETTINGS).read_text())
        return RunSettings(
            int(raw["pid"]), str(raw["path"]), float(raw["read_at"]), dict(raw["digests"])
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None
