"""Why targets are not in the catalog as configured: a small file that a run writes for ``status``.

No decision depends on it, and it may be lost: the next registration writes it again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pgsluice.small_files import replace_json_if_possible
from pgsluice.spool.layout import CATALOG_PROBLEMS, subscription_folder


def write_catalog_problems(spool_path: Path, name: str, problems: Mapping[str, str]) -> None:
    """Replace the file of a subscription; errors of the disk are ignored.

    Args:
        problems: problems as text for the user, by ``schema.table``.
    """
    path = subscription_folder(spool_path, name) / CATALOG_PROBLEMS
    replace_json_if_possible(path, dict(problems))


def read_catalog_problems(spool_path: Path, name: str) -> dict[str, str]:
    """The problems that the last run of a subscription found; empty if the file is missing or
    unreadable."""
    try:
        raw = json.loads((subscription_folder(spool_path, name) / CATALOG_PROBLEMS).read_text())
        return {str(title): str(why) for title, why in raw.items()}
    except (OSError, ValueError, AttributeError):
        return {}
