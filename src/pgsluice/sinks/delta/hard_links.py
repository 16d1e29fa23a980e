"""Hard links: they make a version's file only if no other writer has made it.

deltalake does the same on a disk, so a Delta table cannot be written without them.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from pathlib import Path

REFUSALS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of a file system without hard links."""

WHY = "its file system refuses hard links, by which the versions of a Delta table are made"


def are_refused(folder: Path) -> bool:
    """Whether the file system of a folder is known to refuse hard links.

    Args:
        folder: it need not exist yet.
    """
    existing = next(path for path in (folder, *folder.parents) if path.is_dir())
    try:
        made = Path(tempfile.mkdtemp(dir=existing, prefix=".pgsluice-"))
    except OSError:
        return False  # nothing can be written there, which is another check
    try:
        (made / "first").touch()
        (made / "second").hardlink_to(made / "first")
    except OSError as error:
        return error.errno in REFUSALS
    finally:
        shutil.rmtree(made)
    return False
