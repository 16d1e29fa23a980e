"""The parts of copies that outlive a run: the held snapshot, and the journal of staged chunks.

A separate process holds the snapshot of a long copy, and a journal has the staged chunks. So the
next run can resume the copies of a killed one (ADR 0029). The journal has lines of JSON: the chunks
of each table, and each staged chunk. Each line is durable before the table is committed. A chunk
whose line is missing or incomplete after a crash is read again. If a table's copy would now read or
write something else, it restarts.

The snapshot holder (keeper) starts only after a while. The first tasks use the name under which the
snapshot was first exported; later tasks use the holder's name for it. The first connection is
closed when the holder has the snapshot and the first tasks have ended.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pgsluice.copy.job import CopyTables, CopyWork
from pgsluice.definitions.source_tables import LeafSize
from pgsluice.errors import SourceUnreachable
from pgsluice.failpoints import failpoint
from pgsluice.sinks.contract import StagedRows
from pgsluice.snapshots.keeper import SnapshotFile, StartedKeeper
from pgsluice.snapshots.ranges import PORTION_BYTES, Portion, Read
from pgsluice.snapshots.snapshot import Snapshot
from pgsluice.spool.layout import copy_files
from pgsluice.spool.storage import spool_error
from pgsluice.subscription.base.waits import WAITS
from pgsluice.subscription.copies.portion_queue import TableCopy
from pgsluice.subscription.copies.staging import Stage
from pgsluice.system.processes import Part, say_it_ended

logger = logging.getLogger(__name__)

KEPT_FROM_BYTES = 4 * PORTION_BYTES
_KEPT_FROM_S = 10.0
"""The size of copies, in bytes, from which a snapshot holder is worth its cost. Smaller ones are
quickly staged again, and their slot retains little WAL; with ``copy_rate``, small copies may take
long, too."""
_NEED_RENEWED_S = 5.0
"""How often the holder is told that its snapshot is needed, in seconds: see
:data:`pgsluice.snapshots.keeper.KEPT_S`."""


class CopyJournal:
    """The journal of the copies under one snapshot; a file of another snapshot is ignored."""

    def __init__(self, path: Path, snapshot: Snapshot) -> None:
        self._path = path
        self._snapshot = [snapshot.name, int(snapshot.position)]
        self._plans: dict[int, tuple[str, tuple[Portion, ...]]] = {}
        self._staged: dict[int, dict[int, StagedRows]] = {}

    def read(self) -> None:
        """Read what an earlier run has staged under this snapshot."""
        lines = self._lines()
        if next(lines, None) != {"snapshot": self._snapshot}:
            return
        plans, staged = self._plans, self._staged
        for line in lines:
            oid = int(line["table"])
            if "portions" in line:
                plans[oid] = str(line["copy"]), tuple(map(_portion, line["portions"]))
                staged[oid] = {}
            elif oid in staged:
                staged[oid][int(line["portion"])] = _staged(line)

    @property
    def tables(self) -> frozenset[int]:
        """The tables whose copies have started."""
        return frozenset(self._plans)

    def begin(self) -> None:
        """Start an empty journal."""
        self._path.unlink(missing_ok=True)
        self._write({"snapshot": self._snapshot})

    def plan(self, task: CopyTables, copy: TableCopy) -> None:
        """Record the chunks of a table's copy."""
        portions = [[asdict(read) for read in portion] for portion in copy.portions]
        identity = _identity(task, copy.work)
        self._write({"table": copy.work.facts.oid, "copy": identity, "portions": portions})

    def restore(self, task: CopyTables, work: CopyWork) -> TableCopy | None:
        """A table's copy with its staged chunks; None: the journal has none, or a different one."""
        oid = work.facts.oid
        identity, portions = self._plans.get(oid, ("", ()))
        if identity != _identity(task, work):
            return None
        return TableCopy(work, portions, self._staged[oid])

    def staged(self, copy: TableCopy, number: int) -> None:
        """Record that a chunk is staged, if the sink can stage."""
        part = copy.staged[number]
        if part.loaded is not None:
            return
        payload = base64.b64encode(part.payload).decode()
        self._write(
            {
                "table": copy.work.facts.oid,
                "portion": number,
                "rows": part.rows,
                "bytes": part.bytes_written,
                "payload": payload,
            }
        )

    def _lines(self) -> Iterator[dict[str, Any]]:
        with suppress(FileNotFoundError):
            for line in self._path.read_bytes().split(b"\n"):
                with suppress(ValueError):  # it was cut off
                    yield json.loads(line)

    def _write(self, line: dict[str, Any]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            descriptor = os.open(self._path, flags, 0o600)
            try:
                os.write(descriptor, b"\n" + json.dumps(line).encode())
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise spool_error(error, self._path) from error


def _identity(task: CopyTables, work: CopyWork) -> str:
    """What identifies a copy: what it reads, and where it writes."""
    text = repr((work, task.spool_id, task.sink, task.options))
    return hashlib.sha256(text.encode()).hexdigest()


def _portion(reads: list[dict[str, Any]]) -> Portion:
    return tuple(
        Read(**{**read, "leaf": None if read["leaf"] is None else LeafSize(**read["leaf"])})
        for read in reads
    )


def _staged(line: dict[str, Any]) -> StagedRows:
    payload = base64.b64decode(line["payload"])
    return StagedRows(int(line["rows"]), int(line["bytes"]), payload)


class KeptCopies:
    """The held snapshot and the journal of one copy run, as files that have its number."""

    def __init__(self, folder: Path, number: int, need_renewed_s: float = _NEED_RENEWED_S) -> None:
        self._need_renewed_s = need_renewed_s
        snapshot, journal = copy_files(number)
        self.file = SnapshotFile(folder / snapshot)
        self.journal_path = folder / journal
        self._ended_keeper: int | None = None
        """The process whose end was already logged."""
        self._releasing = threading.Lock()
        """Prevents a log line that a holder ended unexpectedly when it was just released."""

    def begun_before(self) -> tuple[Snapshot, CopyJournal] | None:
        """The snapshot that an earlier run's holder still has, under the holder's name, and the
        journal of its copies; None: there is none."""
        snapshot = self.file.snapshot()
        if snapshot is None:
            return None
        journal = CopyJournal(self.journal_path, snapshot)
        journal.read()
        return snapshot, journal

    @contextmanager
    def needed(self) -> Iterator[None]:
        """A context that needs the snapshot, if it is held.

        A thread renews the need: the block may wait longer than the holder does, for example for
        the tables' lock while a batch has it.
        """
        is_over = threading.Event()

        def say() -> None:
            self._still_needed()
            while not is_over.wait(self._need_renewed_s):
                self._still_needed()

        thread = threading.Thread(target=say, name="pgsluice needs a snapshot", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()

    def _still_needed(self) -> None:
        """Renew the need for the snapshot; log once if its holder has ended."""
        with self._releasing:
            self.file.still_needed()
            self._say_if_ended()

    def _say_if_ended(self) -> None:
        pid = self.file.ended_keeper()
        if pid is not None and pid != self._ended_keeper:
            self._ended_keeper = pid
            say_it_ended(Part.KEEPER, pid, None)

    def release(self) -> None:
        """End the holder and delete the journal; log if the holder had already ended."""
        with self._releasing:
            self._say_if_ended()
            self.file.release()
        self.journal_path.unlink(missing_ok=True)

    def end_keeper(self, keeper: StartedKeeper | None) -> None:
        """End a holder that has not answered, so that there is no journal; None: it has ended."""
        with self._releasing:
            if keeper is not None:
                keeper.end()
            self.file.release()


@dataclass(slots=True, eq=False)
class HeldSnapshot:
    """A snapshot with the connection that exported and holds it.

    Attributes:
        snapshot: the snapshot, under the name of its export.
        is_held: the connection is still needed.
    """

    snapshot: Snapshot
    _connection: ExitStack | None = None
    is_held: bool = True

    def let_go(self) -> None:
        """Close the connection, and so drop its slot, unless another owner still needs it."""
        self.is_held = False
        if self._connection is not None:
            self._connection.close()


@dataclass(slots=True, eq=False)
class ReadSnapshot:
    """The snapshot under which a copy run's tasks read.

    Attributes:
        task: what its tasks do, under the name that the snapshot has now.
    """

    _files: KeptCopies
    task: CopyTables
    copies: Sequence[TableCopy]
    _journal: CopyJournal | None = None
    _keeper: StartedKeeper | None = None
    _made: Snapshot | None = None
    _held: HeldSnapshot | None = None
    _starts_at: float = math.inf
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _readers: Counter[Snapshot] = field(default_factory=Counter)

    @property
    def is_kept(self) -> bool:
        """Whether a later run could resume with what is staged."""
        return self._journal is not None

    def keep(self, held: HeldSnapshot, after_s: float = WAITS.keeper_after_s) -> None:
        """Start a holder if the copies take longer than this; then close the first connection."""
        self._held = held
        self._starts_at = time.monotonic() + after_s

    @contextmanager
    def reading(self) -> Iterator[Stage]:
        """A context in which a task reads under the snapshot; any thread may enter it.

        Returns:
            the function that the task runs.
        """
        with self._lock:
            task = self.task
            self._readers[task.snapshot] += 1
        try:
            yield task.stage_all
        finally:
            with self._lock:
                self._readers[task.snapshot] -= 1

    def look(self) -> None:
        """Start the snapshot's holder when it is due, or take its answer."""
        if time.monotonic() >= self._starts_at:
            self._starts_at = math.inf
            try:
                self._keeper = self._files.file.start_keeper(self.task.dsn, self.task.snapshot)
            except SourceUnreachable as error:
                self._say_it_is_not_kept(error)
        if self._keeper is not None:
            self._ask(self._keeper)
        with self._lock:
            is_over = self._made is not None and not self._readers[self._made]
        if is_over and self._held is not None:
            self._made = None
            self._held.let_go()
            failpoint("copy.kept")

    def _say_it_is_not_kept(self, error: SourceUnreachable) -> None:
        logger.warning("%s: after an interruption, the copies restart", error.what)

    def _ask(self, keeper: StartedKeeper) -> None:
        try:
            kept = keeper.answer(0)
        except SourceUnreachable as error:
            self._say_it_is_not_kept(error)
            self._files.end_keeper(None)
            self._keeper = None
            return
        if kept is None:
            return
        self._keeper = None
        self._journal = CopyJournal(self._files.journal_path, kept)
        self._journal.begin()
        for copy in self.copies:
            if not copy.work.replaces_partitions:
                self._journal.plan(self.task, copy)
                for number in copy.staged:
                    self._journal.staged(copy, number)
        with self._lock:
            self._made = self.task.snapshot
            self.task = replace(self.task, snapshot=kept)

    def staged(self, copy: TableCopy, number: int) -> None:
        """Record that a chunk is staged."""
        if self._journal is not None:
            self._journal.staged(copy, number)

    def end(self) -> None:
        """End a holder that has not answered: no journal exists for its snapshot."""
        if self._keeper is not None:
            self._files.end_keeper(self._keeper)


def are_worth_keeping(copies: Sequence[TableCopy], copy_rate: float | None) -> bool:
    """Whether copies take long enough to hold their snapshot in a separate process.

    Args:
        copy_rate: the limit on the bytes read in a second.
    """
    size = sum(copy.size_bytes for copy in copies)
    return size >= KEPT_FROM_BYTES or (copy_rate is not None and size >= _KEPT_FROM_S * copy_rate)


class SnapshotAge:
    """Logs a warning for each hour that a snapshot of copies is held, including earlier runs.

    Args:
        taken_at: when the snapshot was first imported, in seconds since 1970; 0: not yet.
    """

    def __init__(
        self, subscription: str, taken_at: float, warn_every_s: float = WAITS.warn_every_s
    ) -> None:
        self._warn_every_s = warn_every_s
        self._subscription = subscription
        self._taken_at = taken_at or time.time()
        self._warned_after_s = 0.0

    def look(self) -> None:
        """Log a warning if another hour has passed."""
        held_s = time.time() - self._taken_at
        if held_s >= self._warned_after_s + self._warn_every_s:
            self._warned_after_s = held_s
            logger.warning(
                "the snapshot of the copies of %s has been held for more than %s: meanwhile VACUUM "
                "does not remove rows that are deleted or updated",
                self._subscription,
                "an hour" if held_s < 2 * 3600 else f"{held_s // 3600:.0f} hours",
            )
