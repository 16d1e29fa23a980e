"""Which machine runs a subscription of a spool in an object store.

Locks and command files are files of one machine. So a run leaves a small object in the spool that
names its machine, and commands elsewhere are refused with that name. The run writes it again every
minute. If it did not for some minutes, by the store's own clock, the run was killed: commands
elsewhere do the run's work themselves, and status says that no run is active. If that run was only
suspended, it ends at its next save: the record in the store belongs to whoever opened it last.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import uuid
from collections.abc import Hashable
from contextlib import suppress

from pgsluice.errors import SpoolBusy
from pgsluice.spool.layout import ACTIVE_RUNS, checked_name
from pgsluice.spool.object_storage import folder_of
from pgsluice.stores.contract import Changed, Folder, StoreError
from pgsluice.stores.spool_place import SpoolPlace

BEAT_S = 60.0
"""How often a run writes its object again, in seconds: 1,440 requests a day."""
_LOST_BEATS = 4
"""A run that missed as many counts as killed."""


class ActiveRun:
    """The object that names the machine of a subscription's run; a context manager. The run writes
    it again every ``beat_s`` seconds. A spool on a disk has none: its lock tells."""

    def __init__(self, place: SpoolPlace, name: str, beat_s: float = BEAT_S) -> None:
        self._beat_s = beat_s
        self._place = place
        self._name = name
        self._object = f"{ACTIVE_RUNS}/{checked_name(name)}.json"
        self._has_ended = threading.Event()
        self._beating = threading.Thread(target=self._beat, name="pgsluice active run", daemon=True)

    def __enter__(self) -> ActiveRun:
        if self._place.is_remote:
            folder, is_taken = folder_of(self._place), False
            while not is_taken:
                stored = folder.stat(self._object)
                with suppress(Changed):
                    self._replace(folder, 0, None if stored is None else stored.tag)
                    is_taken = True
            self._beating.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._place.is_remote:
            return
        self._has_ended.set()
        self._beating.join()
        with suppress(StoreError):  # then commands elsewhere are refused for some minutes
            if not self.is_elsewhere():
                folder_of(self._place).delete(self._object)

    def _replace(self, folder: Folder, beats: int, tag: Hashable | None) -> None:
        content = {**self._here(), "pid": os.getpid(), "beat_s": self._beat_s, "beats": beats}
        folder.replace(self._object, json.dumps(content).encode(), tag)

    def _beat(self) -> None:
        """Write the object again until the run ends, or another machine's run has taken it."""
        beats = 0
        while not self._has_ended.wait(self._beat_s):
            beats += 1
            with suppress(StoreError, FileNotFoundError, Changed):
                folder = folder_of(self._place)
                stored = folder.stat(self._object)
                if stored is None or self.is_elsewhere():
                    return
                self._replace(folder, beats, stored.tag)

    def _here(self) -> dict[str, str]:
        return {"host": socket.gethostname(), "state": str(self._place.folder)}

    def is_elsewhere(self) -> bool:
        """Whether the last run was on another machine, or has another state folder."""
        return self._elsewhere() is not None

    def was_killed_elsewhere(self) -> bool:
        """Whether the last run was elsewhere, and has missed its beats; raises StoreError if the
        store cannot be written, which tells its time."""
        raw = self._elsewhere()
        return raw is not None and self._was_killed(raw)

    def _elsewhere(self) -> dict[str, object] | None:
        if not self._place.is_remote:
            return None
        try:
            raw = dict(json.loads(folder_of(self._place).read(self._object)))
        except (FileNotFoundError, ValueError, TypeError):
            return None
        here = self._here()
        return None if {key: raw.get(key) for key in here} == here else raw

    def _was_killed(self, raw: dict[str, object]) -> bool:
        """Whether the run that wrote this missed its beats; earlier versions have none."""
        beat_s = raw.get("beat_s")
        if not isinstance(beat_s, int | float):
            return False
        folder, probe = folder_of(self._place), f"{self._object}.{uuid.uuid4()}"
        folder.create(probe, b"")  # its time is of the same clock
        try:
            now, written = folder.stat(probe), folder.stat(self._object)
        finally:
            folder.delete(probe)
        if now is None or written is None:
            return written is None
        return now.written_at - written.written_at > _LOST_BEATS * beat_s

    def refuse_elsewhere(self) -> None:
        """Raise SpoolBusy for a command that needs the locks and command files of the run's
        machine, if a run is active on another one, or was killed there a few minutes ago."""
        raw = self._elsewhere()
        if raw is not None and not self._was_killed(raw):
            raise SpoolBusy(
                f"subscription {self._name} is in use by `pgsluice run` on host "
                f"{raw.get('host')}, with the state folder {raw.get('state')}",
                hint="run this command on that host. If that run no longer exists, do one of two "
                "things: start `pgsluice run CONFIG` here, which resumes its work; or try this "
                f"command again in {_LOST_BEATS} minutes",
                path=str(self._place),
            )
