"""Why tables are not in the catalog as configured: a small file of a run, for ``status``.

Nothing is decided by it, and it may be lost: the next registration writes it again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pgsluice.small_files import replace_json_if_possible
from pgsluice.spool.layout import CATALOG_PROBLEMS, subscription_folder


def write_catalog_problems(spool_path: Path, name: str, problems: Mapping[str, str]) -> None:
    """Replace the file of a subscription; a disk that is full does not matter here.

    Args:
        problems: by the tables' ``schema.table``, for people.
    """
    path = subscription_folder(spool_path, name) / CATALOG_PROBLEMS
    replace_json_if_possible(path, dict(problems))


def read_catalog_problems(spool_path: Path, name: str) -> dict[str, str]:
    """What the last run of a subscription has found; empty without a file that can be read."""
    try:
        raw = json.loads((subscription_folder(spool_path, name) / CATALOG_PROBLEMS).read_text())
        return {str(title): str(why) for title, why in raw.items()}
    except (OSError, ValueError, AttributeError):
        return {}
