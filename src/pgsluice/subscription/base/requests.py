"""What other commands ask of a subscription that runs: small files that its driver takes up.

Only the driver writes a subscription's record. ``pgsluice copy`` beside a live ``run`` leaves
its request here; without a run it changes the record itself.
"""

from __future__ import annotations

import json
import logging
import uuid
from dataclasses import dataclass
from pathlib import Path

from pgsluice.small_files import replace_json

logger = logging.getLogger(__name__)

_FOLDER = "requests"


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """A table to copy again.

    Attributes:
        path: the request's file.
        has_other_settings: the run has to read its configuration again before that.
    """

    path: Path
    oid: int
    has_other_settings: bool = False


def request_copy(subscription_folder: Path, oid: int, *, has_other_settings: bool = False) -> Path:
    """Ask for a table to be copied again; the file is gone once the driver has noted it."""
    folder = subscription_folder / _FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{uuid.uuid4()}.json"
    replace_json(path, {"copy": oid, "reload": has_other_settings})
    return path


def pending_requests(subscription_folder: Path) -> list[CopyRequest]:
    """The requests that wait.

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
            raw = json.loads(path.read_bytes())
            requests.append(CopyRequest(path, int(raw["copy"]), bool(raw.get("reload"))))
        except (ValueError, KeyError, TypeError, AttributeError):
            aside = path.replace(path.with_suffix(".invalid"))
            logger.warning(
                "%s is not a request for a copy: ask again: pgsluice copy CONFIG TABLE", aside
            )
    return requests
