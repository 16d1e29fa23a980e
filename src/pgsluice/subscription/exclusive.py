"""One process at a time: a lock that goes with its holder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from pgsluice.errors import SpoolBusy
from pgsluice.spool.storage import make_folder


class Exclusive:
    """Holds ``<folder>/lock`` while it is entered; the kernel frees it when the process dies.

    Args:
        folder: made if it is not there.
        what: for the error.

    Raises:
        SpoolBusy: on entering: another process holds it.
    """

    def __init__(self, folder: Path, what: str) -> None:
        self._folder = folder
        self._what = what
        self._descriptor = -1

    def __enter__(self) -> Exclusive:
        make_folder(self._folder)
        descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise SpoolBusy(
                f"another process runs {self._what}",
                hint="stop the other one first, or leave the work to it",
                path=str(self._folder),
            ) from error
        self._descriptor = descriptor
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)
        self._descriptor = -1
