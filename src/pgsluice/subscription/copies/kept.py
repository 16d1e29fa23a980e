"""What outlives the run that began some copies: their snapshot, and the journal of what is staged.

A long copy has its snapshot kept by a process of its own, and what its tasks have staged is in a
journal. So a run that was killed is followed by one that goes on with it (ADR 0029).

A keeper starts when the copies have lasted for a while, so the first tasks read under the name that
the snapshot has from whoever made it. Later ones read under the keeper's name. Who made the
snapshot is let go when the keeper holds it and the first tasks have ended.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from pgsluice.copy import CopyTables
from pgsluice.errors import SourceUnreachable
from pgsluice.failpoints import failpoint
from pgsluice.processes import Part, say_it_ended
from pgsluice.snapshots import Snapshot, SnapshotFile, StartedKeeper
from pgsluice.snapshots.ranges import PORTION_BYTES
from pgsluice.spool.layout import copy_files
from pgsluice.subscription.copies.journal import CopyJournal
from pgsluice.subscription.copies.portion_queue import TableCopy
from pgsluice.subscription.copies.staging import Stage

logger = logging.getLogger(__name__)

KEPT_FROM_BYTES = 4 * PORTION_BYTES
KEPT_FROM_S = 10.0
"""Copies that are worth a keeper: what smaller ones have staged is soon staged again, and meanwhile
their slot keeps little WAL. With ``copy_rate``, small ones may last, too."""
KEEPER_AFTER_S = 3.0
"""So long copies have lasted when their keeper starts, which takes a quarter of a second of CPU:
most that are not large have ended by then."""

SAY_NEEDED_S = 5.0
"""How often a keeper is told that its snapshot is needed: see
:data:`pgsluice.snapshots.keeper.KEPT_S`."""

WARN_EVERY_S = 3600.0


class KeptCopies:
    """The kept snapshot and the journal of one copy run.

    Args:
        folder: the subscription's.
        number: of the copy run; it names the files.
    """

    def __init__(self, folder: Path, number: int) -> None:
        snapshot, journal = copy_files(number)
        self._file = SnapshotFile(folder / snapshot)
        self._journal_path = folder / journal
        self._ended_keeper: int | None = None
        """The process of which this was said."""
        self._releasing = threading.Lock()
        """Else a keeper that was just released could be said to have ended by itself."""

    def begun_before(self) -> tuple[Snapshot, CopyJournal] | None:
        """What an earlier run has kept: the snapshot, under the name that its keeper gave it, and
        the journal of its copies; None: nothing."""
        snapshot = self._file.snapshot()
        if snapshot is None:
            return None
        journal = CopyJournal(self._journal_path, snapshot)
        journal.read()
        return snapshot, journal

    def start_keeper(self, dsn: str, snapshot: Snapshot) -> StartedKeeper:
        """Have a snapshot kept by a process of its own.

        Args:
            snapshot: which somebody else still holds.
        """
        return self._file.start_keeper(dsn, snapshot)

    def begin_journal(self, kept: Snapshot) -> CopyJournal:
        """Begin an empty journal of the copies under a snapshot that its keeper holds."""
        journal = CopyJournal(self._journal_path, kept)
        journal.begin()
        return journal

    @contextmanager
    def needed(self) -> Iterator[None]:
        """A block that needs the snapshot, if it is kept.

        A thread says so: the block may wait for longer than the keeper does, such as for the
        tables' lock, which a batch holds.
        """
        is_over = threading.Event()

        def say() -> None:
            self._still_needed()
            while not is_over.wait(SAY_NEEDED_S):
                self._still_needed()

        thread = threading.Thread(target=say, name="pgsluice needs a snapshot", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()

    def _still_needed(self) -> None:
        """Have the snapshot kept for another while; say it once if its keeper has ended."""
        with self._releasing:
            self._file.still_needed()
            self._say_if_ended()

    def _say_if_ended(self) -> None:
        pid = self._file.ended_keeper()
        if pid is not None and pid != self._ended_keeper:
            self._ended_keeper = pid
            say_it_ended(Part.KEEPER, pid, None)

    def release(self) -> None:
        """Have the keeper end, and forget what is staged; say it if the keeper has ended before."""
        with self._releasing:
            self._say_if_ended()
            self._file.release()
        self._journal_path.unlink(missing_ok=True)

    def end_keeper(self, keeper: StartedKeeper | None) -> None:
        """End a keeper that has not answered, and forget what is staged.

        Args:
            keeper: None: it has ended.
        """
        with self._releasing:
            if keeper is not None:
                keeper.end()
            self._file.release()
        self._journal_path.unlink(missing_ok=True)


class HeldSnapshot:
    """A snapshot, and the connection that exported it, and so holds it.

    Attributes:
        snapshot: under the name that it was exported with.
        is_held: the connection is still needed.
    """

    def __init__(self, snapshot: Snapshot, connection: ExitStack | None = None) -> None:
        self.snapshot = snapshot
        self.is_held = True
        self._connection = connection

    def let_go(self) -> None:
        """Give up the connection, and so its slot; one that is somebody else's is left alone."""
        self.is_held = False
        if self._connection is not None:
            self._connection.close()


class ReadSnapshot:
    """The snapshot that the tasks of some copies read under.

    Args:
        files: of the copy run.
        task: what its tasks do, under the name that the snapshot has first.
        copies: of the copy run.
        journal: of an earlier run that has kept the snapshot; None: nobody keeps it yet.

    Attributes:
        task: what its tasks do, under the name that the snapshot has now.
        copies: of the copy run.
    """

    def __init__(
        self,
        files: KeptCopies,
        task: CopyTables,
        copies: Sequence[TableCopy],
        journal: CopyJournal | None = None,
    ) -> None:
        self.task = task
        self._files = files
        self.copies = copies
        self._journal = journal
        self._keeper: StartedKeeper | None = None
        self._made: Snapshot | None = None
        self._held: HeldSnapshot | None = None
        self._starts_at = math.inf
        self._lock = threading.Lock()
        self._readers = Counter[Snapshot]()

    @property
    def is_kept(self) -> bool:
        """Whether another run could go on with what is staged."""
        return self._journal is not None

    def keep(self, held: HeldSnapshot) -> None:
        """Have the snapshot kept if the copies last; then who made it is let go."""
        self._held = held
        self._starts_at = time.monotonic() + KEEPER_AFTER_S

    @contextmanager
    def reading(self) -> Iterator[Stage]:
        """A block in which a task reads under the snapshot; any thread may enter it.

        Returns:
            what the task does.
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
        """Start the keeper, or take its answer."""
        if time.monotonic() >= self._starts_at:
            self._starts_at = math.inf
            try:
                self._keeper = self._files.start_keeper(self.task.dsn, self.task.snapshot)
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
        logger.warning("%s: after an interruption, the copies begin again", error.what)

    def _ask(self, keeper: StartedKeeper) -> None:
        try:
            kept = keeper.answer(0)
        except SourceUnreachable as error:
            self._say_it_is_not_kept(error)
            self._keeper = None
            self._files.end_keeper(None)
            return
        if kept is None:
            return
        self._keeper = None
        self._journal = self._begun_journal(kept)
        with self._lock:
            self._made = self.task.snapshot
            self.task = replace(self.task, snapshot=kept)

    def _begun_journal(self, kept: Snapshot) -> CopyJournal:
        """A journal with what has been staged meanwhile."""
        journal = self._files.begin_journal(kept)
        for copy in self.copies:
            if not copy.work.replaces_partitions:
                journal.plan(self.task, copy)
                for number in copy.staged:
                    journal.staged(copy, number)
        return journal

    def staged(self, copy: TableCopy, number: int) -> None:
        """Write down that a portion is staged."""
        if self._journal is not None:
            self._journal.staged(copy, number)

    def end(self) -> None:
        """End a keeper that has not answered: nothing says what is staged under its snapshot."""
        if self._keeper is not None:
            self._files.end_keeper(self._keeper)


def are_worth_keeping(copies: Sequence[TableCopy], copy_rate: float | None) -> bool:
    """Whether copies are so long that their snapshot is kept.

    Args:
        copy_rate: how many bytes are read in a second, at most.
    """
    size = sum(copy.size_bytes for copy in copies)
    return size >= KEPT_FROM_BYTES or (copy_rate is not None and size >= KEPT_FROM_S * copy_rate)


class SnapshotAge:
    """Warns each hour that the snapshot of some copies is held, of runs before as well.

    Args:
        subscription: its name.
        taken_at: when the snapshot was first imported, in seconds since 1970; 0: it was not yet.
    """

    def __init__(self, subscription: str, taken_at: float) -> None:
        self._subscription = subscription
        self._taken_at = taken_at or time.time()
        self._warned_after_s = 0.0

    def look(self) -> None:
        """Warn if another hour is over."""
        held_s = time.time() - self._taken_at
        if held_s >= self._warned_after_s + WARN_EVERY_S:
            self._warned_after_s = held_s
            logger.warning(
                "the snapshot of the copies of %s has been held for more than %s: meanwhile VACUUM "
                "does not remove rows that are deleted or updated",
                self._subscription,
                "an hour" if held_s < 2 * 3600 else f"{held_s // 3600:.0f} hours",
            )
