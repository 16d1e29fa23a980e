"""Command files: how other commands ask an active subscription for something.

Only the driver of a run writes the subscription's record. While a run is active, ``pgsluice copy``
writes a command file; without a run, it changes the record itself.
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
    """A request to copy a table again.

    Attributes:
        has_other_settings: the run has to read its configuration again before the copy.
        repairs: only what differs from the source has to be read again.
    """

    path: Path
    oid: int
    has_other_settings: bool = False
    repairs: bool = False


def request_copy(
    subscription_folder: Path, oid: int, *, has_other_settings: bool = False, repairs: bool = False
) -> Path:
    """Request a new copy of a table, or its repair. The driver deletes the file once it has
    recorded the request."""
    folder = subscription_folder / _FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{uuid.uuid4()}.json"
    replace_json(path, {"copy": oid, "reload": has_other_settings, "repair": repairs})
    return path


def pending_requests(subscription_folder: Path) -> list[CopyRequest]:
    """The pending requests.

    A file that is not a valid request is renamed to ``*.invalid``, with a warning.
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
            reloads, repairs = bool(raw.get("reload")), bool(raw.get("repair"))
            requests.append(CopyRequest(path, int(raw["copy"]), reloads, repairs))
        except (ValueError, KeyError, TypeError, AttributeError):
            aside = path.replace(path.with_suffix(".invalid"))
            logger.warning(
                "%s is not a valid request for a copy: ask again: pgsluice copy CONFIG TABLE", aside
            )
    return requests
