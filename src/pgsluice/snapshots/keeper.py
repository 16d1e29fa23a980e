"""A process that holds a copy's snapshot while its readers come and go.

A slot's snapshot ends with the connection that made the slot, and the slot keeps WAL and old rows
of the catalog as long as it lasts. So a long copy has its snapshot imported, and exported again, by
a process of its own: the slot goes at once, and the snapshot outlives Spark and the driver. A run
that is started again goes on under it (:mod:`pgsluice.copy.journal`).

The process ends when its file is gone or is another keeper's, when the server ended its session,
and when for :data:`KEPT_S` nobody has said that the snapshot is still needed: a snapshot keeps
VACUUM from removing rows.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pgsluice.errors import PgsluiceError, SourceUnreachable
from pgsluice.lsn import Lsn
from pgsluice.replication import connect_sql, source_errors
from pgsluice.snapshots.snapshot import Snapshot, import_snapshot

KEPT_S = 600.0
"""How long the snapshot of a copy is kept that nobody goes on with."""
_START_S = 60.0
_POLL_S = 1.0
_PING_S = 30.0


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """The file that names the snapshot of a keeper, and makes the keeper hold it.

    Attributes:
        path: as :data:`pgsluice.spool.layout.COPY_SNAPSHOT` in a subscription's folder.
    """

    path: Path

    def snapshot(self) -> Snapshot | None:
        """The snapshot, which its keeper holds or has lost meanwhile; None: there is none."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            raw = json.loads(self.path.read_text())
            return _snapshot(raw)
        return None

    def still_needed(self) -> None:
        """Have the keeper hold the snapshot for another while."""
        with suppress(FileNotFoundError):
            os.utime(self.path)

    def release(self) -> None:
        """Have the keeper end."""
        self.path.unlink(missing_ok=True)

    def keep(self, dsn: str, snapshot: Snapshot) -> Snapshot:
        """Start a keeper, which imports the snapshot.

        Args:
            snapshot: which somebody still holds.

        Returns:
            the same snapshot under the name that the keeper gives it.

        Raises:
            SourceUnreachable: the keeper could not connect or import it.
        """
        self.release()
        process = subprocess.Popen(
            [sys.executable, "-m", "pgsluice.snapshots.keeper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is for the run
        )
        assert process.stdin is not None
        assert process.stdout is not None
        asked = {
            "dsn": dsn,
            "path": str(self.path),
            "snapshot": asdict(snapshot),
            "kept_s": KEPT_S,
        }
        with process.stdout as answers:
            with suppress(BrokenPipeError), process.stdin as pipe:
                pipe.write(json.dumps(asked).encode() + b"\n")
            ready, _, _ = select.select([answers], [], [], _START_S)
            answer = answers.readline() if ready else b""
        process.wait()  # the keeper is a child of this one
        kept = self.snapshot()
        if answer.strip() != b"kept" or kept is None:
            self.release()
            reason = answer.decode(errors="replace").strip() or "it did not answer"
            raise SourceUnreachable(f"the snapshot of a copy cannot be kept: {reason}")
        return kept


def hold(asked: dict[str, Any], say: int) -> None:
    """The keeper's whole life.

    Args:
        asked: what :meth:`SnapshotFile.keep` wrote.
        say: a file descriptor; it gets a line, and is closed.
    """
    file = SnapshotFile(Path(asked["path"]))
    try:
        with source_errors("keeping the snapshot of a copy"):
            connection = connect_sql(asked["dsn"], application="snapshot of a copy")
            snapshot = import_snapshot(connection, _snapshot(asked["snapshot"]))
            ((name,),) = connection.execute("SELECT pg_catalog.pg_export_snapshot()").fetchall()
    except PgsluiceError as error:
        os.write(say, error.what.encode() + b"\n")
        return
    text = json.dumps({**asdict(snapshot), "name": name, "pid": os.getpid()})
    temporary = file.path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(text)
    temporary.replace(file.path)
    os.write(say, b"kept\n")
    os.close(say)
    needed, ping_at = _Needed(file.path, text, asked["kept_s"]), time.monotonic() + _PING_S
    with connection, suppress(PgsluiceError), source_errors("keeping the snapshot of a copy"):
        while needed.is_so():
            time.sleep(_POLL_S)
            if time.monotonic() >= ping_at:  # the server may have ended the session
                connection.execute("SELECT 1")
                ping_at = time.monotonic() + _PING_S
    if needed.is_ours():
        file.release()


def _snapshot(raw: dict[str, Any]) -> Snapshot:
    position, timeline = Lsn(int(raw["position"])), int(raw["timeline"])
    return Snapshot(str(raw["name"]), position, timeline, str(raw["sees"]))


class _Needed:
    """Whether the snapshot is still needed, as its file says."""

    def __init__(self, path: Path, text: str, kept_s: float) -> None:
        self._path = path
        self._text = text
        self._kept_s = kept_s
        self._said_at = 0
        self._seen_at = time.monotonic()

    def is_ours(self) -> bool:
        """Whether the file is there, and is this keeper's."""
        with suppress(OSError):
            return self._path.read_text() == self._text
        return False

    def is_so(self) -> bool:
        """Whether somebody has said so lately, by a clock that nobody sets."""
        with suppress(FileNotFoundError):
            said_at = self._path.stat().st_mtime_ns
            if said_at != self._said_at:
                self._said_at, self._seen_at = said_at, time.monotonic()
        return self.is_ours() and time.monotonic() - self._seen_at < self._kept_s


if __name__ == "__main__" and os.fork() == 0:  # the run need not wait for the keeper's end
    answers = os.dup(sys.stdout.fileno())
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    hold(json.loads(sys.stdin.readline()), answers)
