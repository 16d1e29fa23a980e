"""What other commands ask of a subscription that runs: small files that its driver takes up.

Only the driver writes a subscription's record. ``pgsluice copy`` beside a live ``run`` leaves
its wish here; without one it takes the driver's place.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path

_FOLDER = "requests"


def request_copy(subscription_folder: Path, namespace: str, name: str) -> Path:
    """Ask for a table to be copied again; the file is gone once the driver has noted it."""
    folder = subscription_folder / _FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{uuid.uuid4()}.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"copy": [namespace, name]}))
    temporary.replace(path)
    return path


def pending_requests(subscription_folder: Path) -> list[tuple[Path, str, str]]:
    """The requests that wait: file, schema, table."""
    found = []
    for path in sorted((subscription_folder / _FOLDER).glob("*.json")):
        namespace, name = json.loads(path.read_text())["copy"]
        found.append((path, namespace, name))
    return found
