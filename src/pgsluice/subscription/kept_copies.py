"""What outlives the run that began some copies: their snapshot, and the journal of what is staged.

A long copy has its snapshot kept by a process of its own, and what its tasks have staged is in a
journal. So a run that was killed is followed by one that goes on with it (ADR 0029).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pgsluice.copy import CopyJournal, TableCopy
from pgsluice.errors import SourceUnreachable
from pgsluice.failpoints import failpoint
from pgsluice.snapshots import Snapshot, SnapshotFile
from pgsluice.snapshots.ranges import PORTION_BYTES
from pgsluice.spool.layout import copy_files

logger = logging.getLogger(__name__)

KEPT_FROM_BYTES = 4 * PORTION_BYTES
KEPT_FROM_S = 10.0
"""Copies that are worth a keeper: what smaller ones have staged is soon staged again, and meanwhile
their slot keeps little WAL. With ``copy_rate``, small ones may last, too."""

WARN_EVERY_S = 3600.0

Kept = tuple[Snapshot, CopyJournal]
"""A snapshot, under the name that its keeper gave it, and the journal of its copies."""


class KeptCopies:
    """The kept snapshot and the journal of one round of copies.

    Args:
        folder: the subscription's.
        number: of the round; it names the files.
    """

    def __init__(self, folder: Path, number: int) -> None:
        snapshot, journal = copy_files(number)
        self._file = SnapshotFile(folder / snapshot)
        self._journal_path = folder / journal

    def begun_before(self) -> Kept | None:
        """What an earlier run has kept; None: nothing."""
        snapshot = self._file.snapshot()
        if snapshot is None:
            return None
        journal = CopyJournal(self._journal_path, snapshot)
        journal.read()
        return snapshot, journal

    def keep(self, dsn: str, snapshot: Snapshot, let_go: Callable[[], None]) -> Kept | None:
        """Have a snapshot kept by a process of its own, and begin its journal.

        Args:
            snapshot: which somebody else still holds.
            let_go: ends what holds it.

        Returns:
            None: it cannot be kept.
        """
        try:
            kept = self._file.keep(dsn, snapshot)
        except SourceUnreachable as error:
            logger.warning("%s: after an interruption, the copies begin again", error.what)
            return None
        let_go()
        failpoint("copy.kept")
        journal = CopyJournal(self._journal_path, kept)
        journal.begin()
        return kept, journal

    def still_needed(self) -> None:
        """Have the snapshot kept for another while."""
        self._file.still_needed()

    def release(self) -> None:
        """Have the keeper end, and forget what is staged."""
        self._file.release()
        self._journal_path.unlink(missing_ok=True)


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
