"""Small files that are replaced as a whole: a reader sees the old one or the new one.

Nothing is synced. So they hold what may be lost, or what another process asks for at once.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Write a file that only this user may read, under a temporary name, and rename it.

    Raises:
        OSError: the file is as it was, and no temporary one is left.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def replace_json(path: Path, content: object) -> None:
    """The same with JSON."""
    replace_text(path, json.dumps(content, ensure_ascii=False))


def replace_json_if_possible(path: Path, content: object) -> None:
    """The same for a file that may be lost: a full disk does not matter."""
    with suppress(OSError):
        replace_json(path, content)
