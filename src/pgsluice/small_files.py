"""Small files that are replaced as a whole: a reader sees the old one or the new one.

Nothing is synced. So they hold what may be lost, or what another process asks for at once.
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
"""The suffix of a file that is being written."""


@contextmanager
def replacing(path: Path, mode: int = 0o600) -> Iterator[BinaryIO]:
    """A new file, for the block to write; at its end, the file replaces the one of this path.

    Raises:
        OSError: the file is as it was, and no temporary one is left.
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
    """Replace a file that only this user may read.

    Raises:
        OSError: as :func:`replacing`.
    """
    with replacing(path) as file:
        file.write(text.encode())


def replace_json(path: Path, content: object) -> None:
    """The same with JSON."""
    replace_text(path, json.dumps(content, ensure_ascii=False))


def replace_json_if_possible(path: Path, content: object) -> None:
    """The same for a file that may be lost: a full disk does not matter."""
    with suppress(OSError):
        replace_json(path, content)
