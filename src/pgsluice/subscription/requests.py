"""What other commands ask of a subscription that runs: small files that its driver takes up.

Only the driver writes a subscription's record. ``pgsluice copy`` beside a live ``run`` leaves
its request here; without a run it changes the record itself.
"""

from __future__ import annotations

import json
import logging
import uuid
from pathlib import Path

logger = logging.getLogger(__name__)

_FOLDER = "requests"


def request_copy(subscription_folder: Path, oid: int) -> Path:
    """Ask for a table to be copied again; the file is gone once the driver has noted it."""
    folder = subscription_folder / _FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{uuid.uuid4()}.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"copy": oid}))
    temporary.replace(path)
    return path


def pending_requests(subscription_folder: Path) -> list[tuple[Path, int]]:
    """The requests that wait: file, and the table's OID.

    A file that is not a request is renamed to ``*.invalid``, with a warning that names it.
    """
    folder = subscription_folder / _FOLDER
    try:
        paths = sorted(folder.iterdir())
    except FileNotFoundError:  # nobody has ever asked
        return []
    requests = []
    for path in paths:
        if path.suffix != ".json":
            continue
        try:
            requests.append((path, int(json.loads(path.read_bytes())["copy"])))
        except (ValueError, KeyError, TypeError):
            aside = path.replace(path.with_suffix(".invalid"))
            logger.warning(
                "%s is not a request for a copy: ask again: pgsluice copy CONFIG TABLE", aside
            )
    return requests
