"""The snapshot holder: a process that holds a snapshot while its readers come and go.

A slot's snapshot ends with the connection that created the slot, and the slot retains WAL and old
catalog rows as long as it exists. So for a long copy, a separate process (keeper) imports the
snapshot and exports it again. Then the slot can be dropped, and the snapshot outlives Spark and the
driver.

A snapshot keeps VACUUM from removing rows, so the process ends as soon as possible: when the server
ends its session, and

- for a copy: when its file is deleted or replaced by another keeper's, or when nothing has reported
  for :data:`KEPT_S` that the snapshot is still needed. A restarted run resumes under it
  (:mod:`pgsluice.subscription.copies.kept`).
- for a Spark read: when no task has read for :data:`IDLE_S`, or when Spark has ended. Spark does
  not report the end of a job.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pgsluice.catalog import Connection
from pgsluice.errors import PgsluiceError, SourceUnreachable
from pgsluice.lsn import Lsn
from pgsluice.replication.refusals import source_errors
from pgsluice.replication.session import connect_sql
from pgsluice.small_files import replace_text
from pgsluice.snapshots.snapshot import Snapshot, export_again
from pgsluice.system.processes import Part, is_running, start, why_not_started

KEPT_S = 600.0
"""How long to hold the snapshot of a copy that no run resumes, in seconds."""
FIRST_READER_S = 600.0
"""How long to hold a snapshot for a job whose first task has not started, in seconds."""
IDLE_S = 60.0
"""How long to hold a snapshot without readers, in seconds: Spark may retry a task."""
_START_S = 60.0
_POLL_S = 1.0
_FIRST_READER_POLL_S = 0.1
"""How long the first reader waits at most, in seconds
(:func:`pgsluice.snapshots.snapshot.import_snapshot`)."""
_PING_S = 30.0
_IS_FREE = """
SELECT CASE WHEN pg_catalog.pg_try_advisory_lock(%s) THEN pg_catalog.pg_advisory_unlock(%s)
       ELSE false END
"""


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """The file with the name of a keeper's snapshot; while it exists, the keeper holds the
    snapshot.

    Attributes:
        path: :data:`pgsluice.spool.layout.COPY_SNAPSHOT` in a subscription's folder.
        kept_s: how long to hold the snapshot when nothing reports that it is needed.
        start_s: how long the keeper may take to answer.
    """

    path: Path
    kept_s: float = KEPT_S
    start_s: float = _START_S

    def snapshot(self) -> Snapshot | None:
        """The snapshot, which its keeper holds or has lost meanwhile; None: there is none."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            raw = json.loads(self.path.read_text())
            return _snapshot(raw)
        return None

    def still_needed(self) -> None:
        """Report that the snapshot is still needed, by touching the file."""
        with suppress(OSError):
            os.utime(self.path)

    def ended_keeper(self) -> int | None:
        """The keeper's process, if it has ended although the file exists; else None."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            pid = int(json.loads(self.path.read_text())["pid"])
            return None if is_running(pid) else pid
        return None

    def release(self) -> None:
        """Let the keeper end."""
        self.path.unlink(missing_ok=True)

    def start_keeper(self, dsn: str, snapshot: Snapshot) -> StartedKeeper:
        """Start a keeper, which imports the snapshot.

        Args:
            snapshot: a snapshot that another session holds until the keeper has answered.
        """
        self.release()
        until = {"path": str(self.path), "kept_s": self.kept_s}
        return StartedKeeper(dsn, snapshot, until, self.start_s)


def keep_for_readers(dsn: str, snapshot: Snapshot, idle_s: float = IDLE_S) -> Snapshot:
    """Start a keeper. It ends with the process that started the caller, or after a while without
    readers.

    Args:
        snapshot: a snapshot that another session still holds.
        idle_s: how long to hold the snapshot without readers.

    Returns:
        the same snapshot under the keeper's name for it; its readers share a lock.

    Raises:
        SourceUnreachable: the keeper could not connect, or could not import it.
    """
    readers = secrets.randbits(62) + 1
    asked = {"driver": os.getppid(), "first_s": FIRST_READER_S, "idle_s": idle_s}
    kept = StartedKeeper(dsn, snapshot, {"readers": readers, **asked}).answer(math.inf)
    assert kept is not None
    return replace(kept, readers=readers)


class StartedKeeper:
    """A keeper that may not have answered yet: its start takes about a second.

    Args:
        snapshot: a snapshot that another session holds until the keeper has answered.
        until: when the keeper ends, for :func:`hold`.

    Raises:
        SourceUnreachable: the system cannot start a process now.
    """

    def __init__(
        self, dsn: str, snapshot: Snapshot, until: dict[str, Any], start_s: float = _START_S
    ) -> None:
        try:
            self._process = start(
                Part.KEEPER,
                lambda: subprocess.Popen(
                    [sys.executable, "-m", "pgsluice.snapshots.keeper"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # a Ctrl-C is for the run
                ),
            )
        except OSError as error:
            what, hint = why_not_started(Part.KEEPER, error)
            raise SourceUnreachable(what, hint=hint) from error
        self._gives_up_at = time.monotonic() + start_s
        assert self._process.stdin is not None
        asked = {"dsn": dsn, "snapshot": asdict(snapshot), **until}
        with suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(json.dumps(asked).encode() + b"\n")

    def answer(self, timeout_s: float) -> Snapshot | None:
        """The same snapshot under the keeper's name for it; None: the keeper has not answered yet.

        Args:
            timeout_s: how long to wait for its answer, in seconds.

        Raises:
            SourceUnreachable: the keeper could not connect or import the snapshot, or has not
                answered in time; it has ended.
        """
        assert self._process.stdout is not None
        left_s = max(0.0, self._gives_up_at - time.monotonic())
        readable = select.poll()  # select() takes no descriptor from 1024 on
        readable.register(self._process.stdout, select.POLLIN)
        ready = readable.poll(min(timeout_s, left_s) * 1000)
        if not ready and timeout_s < left_s:
            return None
        answer = self._process.stdout.readline() if ready else b""
        with suppress(ValueError, KeyError, TypeError):
            kept = _snapshot(json.loads(answer))
            self._forget()
            return kept
        self.end()
        reason = answer.decode(errors="replace").strip() or "it did not answer"
        raise SourceUnreachable(f"the snapshot cannot be kept: {reason}")

    def end(self) -> None:
        """End a keeper whose snapshot is not needed; otherwise it might hold the snapshot later."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._forget()

    def _forget(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.wait()  # the keeper is a child of this one


def hold(asked: dict[str, Any], say: int) -> None:
    """Run the keeper until its end.

    Args:
        asked: the request that :class:`StartedKeeper` wrote.
        say: a file descriptor for the answer: one line; it is closed then.
    """
    try:
        with source_errors("keeping a snapshot"):
            connection = connect_sql(asked["dsn"], application="snapshot of a copy")
            snapshot = export_again(connection, _snapshot(asked["snapshot"]))
    except PgsluiceError as error:
        os.write(say, error.what.encode() + b"\n")
        return
    text = json.dumps({**asdict(snapshot), "pid": os.getpid()})
    needed: _Needed | _Readers
    if "path" in asked:
        path = Path(asked["path"])
        try:
            needed = _Needed(path, text, asked["kept_s"])
        except OSError as error:
            os.write(say, f"{path} cannot be written: {error.strerror or error}\n".encode())
            return
    else:
        needed = _Readers(connection, asked)
    os.write(say, text.encode() + b"\n")
    os.close(say)
    ping_at = time.monotonic() + _PING_S
    with connection, suppress(PgsluiceError), source_errors("keeping a snapshot"):
        while needed.is_so():
            time.sleep(needed.poll_s)
            if time.monotonic() >= ping_at:  # the server may have ended the session
                connection.execute("SELECT 1")
                ping_at = time.monotonic() + _PING_S
    needed.end()


def _snapshot(raw: dict[str, Any]) -> Snapshot:
    position, timeline = Lsn(int(raw["position"])), int(raw["timeline"])
    taken_at = float(raw["taken_at"])
    return Snapshot(str(raw["name"]), position, timeline, str(raw["sees"]), taken_at)


class _Needed:
    """Whether a copy still needs the snapshot, according to its file, which this class writes."""

    poll_s = _POLL_S

    def __init__(self, path: Path, text: str, kept_s: float) -> None:
        replace_text(path, text)
        self._path = path
        self._text = text
        self._kept_s = kept_s
        self._said_at = 0
        self._seen_at = time.monotonic()

    def end(self) -> None:
        """Delete the file, if it belongs to this keeper."""
        if self._is_ours():
            self._path.unlink(missing_ok=True)

    def _is_ours(self) -> bool:
        """Whether the file exists and belongs to this keeper."""
        with suppress(OSError):
            return self._path.read_text() == self._text
        return False

    def is_so(self) -> bool:
        """Whether the need was reported lately, by a clock that is never set back."""
        with suppress(FileNotFoundError):
            said_at = self._path.stat().st_mtime_ns
            if said_at != self._said_at:
                self._said_at, self._seen_at = said_at, time.monotonic()
        return self._is_ours() and time.monotonic() - self._seen_at < self._kept_s


class _Readers:
    """Whether sessions read under the snapshot, or may still start to."""

    def __init__(self, connection: Connection, asked: dict[str, Any]) -> None:
        self._connection = connection
        self._lock = int(asked["readers"])
        self._driver = int(asked["driver"])
        self._idle_s = float(asked["idle_s"])
        self._ends_at = time.monotonic() + float(asked["first_s"])
        self.poll_s = _FIRST_READER_POLL_S
        self._connection.execute("SELECT pg_catalog.pg_advisory_lock(%s)", [-self._lock])

    def is_so(self) -> bool:
        """Whether a session shares the readers' lock, or did lately."""
        ((is_free,),) = self._connection.execute(_IS_FREE, [self._lock, self._lock]).fetchall()
        if not is_free:
            self._ends_at = time.monotonic() + self._idle_s
            if self.poll_s == _FIRST_READER_POLL_S:
                self.poll_s = _POLL_S
                self._connection.execute("SELECT pg_catalog.pg_advisory_unlock(%s)", [-self._lock])
        return is_running(self._driver) and time.monotonic() < self._ends_at

    def end(self) -> None:
        """Do nothing: the snapshot ends with the session."""


if __name__ == "__main__" and os.fork() == 0:  # the run need not wait for the keeper's end
    answers = os.dup(sys.stdout.fileno())
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    hold(json.loads(sys.stdin.readline()), answers)
