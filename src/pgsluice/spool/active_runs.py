"""Which machine runs a subscription of a spool in an object store.

Locks and command files are files of one machine. So a run leaves a small object in the spool that
names its machine, and commands elsewhere are refused with that name. A run that was killed leaves
it, too: the next run, on whatever machine, replaces it.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress

from pgsluice.errors import SpoolBusy
from pgsluice.spool.layout import ACTIVE_RUNS, checked_name
from pgsluice.spool.object_storage import folder_of
from pgsluice.stores.contract import Changed, Folder, StoreError
from pgsluice.stores.spool_place import SpoolPlace


class ActiveRun:
    """The object that names the machine of a subscription's run; a context manager.

    Of a spool on a disk, there is none: its lock tells.
    """

    def __init__(self, place: SpoolPlace, name: str) -> None:
        self._place = place
        self._name = name
        self._object = f"{ACTIVE_RUNS}/{checked_name(name)}.json"

    def __enter__(self) -> ActiveRun:
        if self._place.is_remote:
            content = {**self._here(), "pid": os.getpid()}
            self._replace(folder_of(self._place), json.dumps(content).encode())
        return self

    def __exit__(self, *_: object) -> None:
        if not self._place.is_remote:
            return
        with suppress(StoreError):  # then commands elsewhere are refused until the next run
            if not self.is_elsewhere():
                folder_of(self._place).delete(self._object)

    def _replace(self, folder: Folder, data: bytes) -> None:
        while True:
            stored = folder.stat(self._object)
            with suppress(Changed):
                folder.replace(self._object, data, None if stored is None else stored.tag)
                return

    def _here(self) -> dict[str, str]:
        return {"host": socket.gethostname(), "state": str(self._place.folder)}

    def is_elsewhere(self) -> bool:
        """Whether the last run was on another machine, or has another state folder."""
        return self._elsewhere() is not None

    def _elsewhere(self) -> dict[str, object] | None:
        if not self._place.is_remote:
            return None
        try:
            raw = dict(json.loads(folder_of(self._place).read(self._object)))
        except (FileNotFoundError, ValueError, TypeError):
            return None
        here = self._here()
        return None if {key: raw.get(key) for key in here} == here else raw

    def refuse_elsewhere(self) -> None:
        """Refuse a command that needs the locks and command files of the run's machine.

        Raises:
            SpoolBusy: the last run was on another machine, and has not ended cleanly.
        """
        raw = self._elsewhere()
        if raw is not None:
            raise SpoolBusy(
                f"subscription {self._name} is in use by `pgsluice run` on host "
                f"{raw.get('host')}, with the state folder {raw.get('state')}",
                hint="run this command on that host; if that run no longer exists, start "
                "`pgsluice run CONFIG` here, which resumes its work",
                path=str(self._place),
            )
