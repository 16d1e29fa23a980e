"""The settings that an active run of a subscription uses: a small file for other commands.

No decision depends on it, and it may be lost. The holder of the subscription's lock writes it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pgsluice.small_files import replace_json_if_possible
from pgsluice.spool.layout import RUN_SETTINGS, subscription_folder


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings that a run has in force.

    Attributes:
        pid: the run's process id.
        path: the path of its configuration file.
        read_at: when the run read the file at its start, in seconds since 1970.
        digests: a digest of each setting (:mod:`pgsluice.config.in_force`).
    """

    pid: int
    path: str
    read_at: float
    digests: dict[str, str] = field(default_factory=dict)


def write_run_settings(spool_path: Path, name: str, settings: RunSettings) -> None:
    """Replace the file of a subscription; errors of the disk are ignored."""
    path = subscription_folder(spool_path, name) / RUN_SETTINGS
    replace_json_if_possible(path, asdict(settings))


def read_run_settings(spool_path: Path, name: str) -> RunSettings | None:
    """The settings of the last run of a subscription; None if the file is missing or unreadable."""
    try:
        raw = json.loads((subscription_folder(spool_path, name) / RUN_SETTINGS).read_text())
        return RunSettings(
            int(raw["pid"]), str(raw["path"]), float(raw["read_at"]), dict(raw["digests"])
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None
