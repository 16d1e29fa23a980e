"""Small files that are replaced as a whole: a reader sees the old content or the new one.

They are not synced to disk. So they hold only what may be lost, or requests to a running process.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".tmp"
"""The suffix of a file while it is written."""


@contextmanager
def replacing(path: Path, mode: int = 0o600) -> Iterator[BinaryIO]:
    """Open a temporary file for the block to write; it replaces the file of this path at the end.

    Raises:
        OSError: the old file is unchanged, and the temporary file is deleted.
    """
    temporary = path.with_name(f"{path.name}.{uuid.uuid4()}{TEMPORARY}")
    try:
        with os.fdopen(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode), "w+b") as file:
            yield file
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def replace_text(path: Path, text: str) -> None:
    """Replace a file that only this user may read by one with this text; raises as
    :func:`replacing`."""
    with replacing(path) as file:
        file.write(text.encode())


def replace_json(path: Path, content: object) -> None:
    """Replace a file that only this user may read by one with this value as JSON."""
    replace_text(path, json.dumps(content, ensure_ascii=False))


def replace_json_if_possible(path: Path, content: object) -> None:
    """As :func:`replace_json`, but ignore errors of the disk: the file may be lost."""
    with suppress(OSError):
        replace_json(path, content)
