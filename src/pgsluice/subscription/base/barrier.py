"""A barrier: a position at which a subscription's tables can be read while its run goes on.

``pgsluice verify`` sets a barrier at the position of a snapshot of the source. Planning ends a
batch exactly there, inside a segment if need be. The driver answers with the version that each
target has there, and batches go on at once. The rules:

- A barrier is valid while the process that set it holds ``barrier.lock``. The files of a process
  that died are removed by whoever looks next.
- Planning lists segments first and looks for the barrier then. So a batch that was planned before
  a barrier's file existed holds only what was committed before that.
- A barrier without a position holds: no batch begins. One that has a position holds there.
- Batches wait for :data:`HOLD_S` at most, then they pass the barrier. The driver answers that,
  and the verifying process tries again.
- The versions of an answer are kept from vacuum while the barrier is valid.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pgsluice.errors import PgsluiceError, SpoolBusy
from pgsluice.lsn import Lsn
from pgsluice.small_files import replace_json
from pgsluice.spool import SubscriptionRecord, TableRecord, TableState
from pgsluice.spool.layout import BARRIER, BARRIER_ANSWER
from pgsluice.spool.lock import barrier_lock

HOLD_S = 10.0
"""How long batches wait at one barrier, altogether."""
_POLL_S = 0.02
_ANSWER_POLL_S = 0.05
_OPENERS = 8
"""How many targets are opened at the same time."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """What the verifying process asks for.

    Attributes:
        barrier_id: of one attempt.
        position: where to end a batch; None: hold batches until it is known.
        titles: the tables to answer for; empty: all.
    """

    barrier_id: str
    position: Lsn | None
    titles: tuple[str, ...] = ()

    def concerns(self, title: str) -> bool:
        """Whether the answer has to have the table."""
        return not self.titles or title in self.titles


@dataclass(frozen=True, slots=True)
class StandingTable:
    """One table at the barrier.

    Attributes:
        title: ``schema.table`` at the target.
        version: the target's version that holds exactly the barrier's position; -1: none does.
        reason: why no version does; None otherwise.
        is_published: the publications send the table.
    """

    title: str
    target: str
    version: int = -1
    reason: str | None = None
    is_published: bool = True


@dataclass(frozen=True, slots=True)
class BarrierAnswer:
    """The driver's answer.

    Attributes:
        position: the subscription's position.
        is_passed: batches were past the barrier already; there are no tables then.
    """

    barrier_id: str
    position: Lsn
    is_passed: bool
    tables: Mapping[int, StandingTable]


def current_barrier(folder: Path) -> Barrier | None:
    """The valid barrier in a subscription's folder, answered or not.

    Raises:
        SpoolError: the folder cannot be used.
    """
    if not (folder / BARRIER).exists():
        return None
    try:
        with barrier_lock(folder):
            _remove_files(folder)
        return None
    except SpoolBusy:
        pass
    try:
        raw = json.loads((folder / BARRIER).read_text())
    except FileNotFoundError:
        return None
    position = raw["position"]
    return Barrier(
        raw["barrier_id"], None if position is None else Lsn(position), tuple(raw["titles"])
    )


def read_answer(folder: Path, barrier: Barrier) -> BarrierAnswer | None:
    """The driver's answer to a barrier; None while there is none."""
    try:
        raw = json.loads((folder / BARRIER_ANSWER).read_text())
    except FileNotFoundError:
        return None
    if raw["barrier_id"] != barrier.barrier_id:
        return None
    tables = {int(oid): StandingTable(**table) for oid, table in raw["tables"].items()}
    return BarrierAnswer(raw["barrier_id"], Lsn(raw["position"]), raw["is_passed"], tables)


def waiting_barrier(folder: Path) -> Barrier | None:
    """The valid barrier that has no answer yet."""
    barrier = current_barrier(folder)
    if barrier is None or read_answer(folder, barrier) is not None:
        return None
    return barrier


def write_answer(folder: Path, answer: BarrierAnswer) -> None:
    """Answer a barrier; batches go on."""
    replace_json(
        folder / BARRIER_ANSWER,
        {
            "barrier_id": answer.barrier_id,
            "position": int(answer.position),
            "is_passed": answer.is_passed,
            "tables": {
                oid: {name: getattr(table, name) for name in table.__slots__}
                for oid, table in answer.tables.items()
            },
        },
    )


def barrier_versions(folder: Path) -> dict[int, int]:
    """The target versions that the verifying process reads, by relation OID."""
    barrier = current_barrier(folder)
    answer = None if barrier is None else read_answer(folder, barrier)
    if answer is None:
        return {}
    return {oid: table.version for oid, table in answer.tables.items() if table.version >= 0}


def standing_tables(
    record: SubscriptionRecord, barrier: Barrier, version_of: Callable[[int, TableRecord], int]
) -> dict[int, StandingTable]:
    """The tables of a subscription that has applied what was committed up to a barrier.

    Args:
        barrier: it has a position.
        version_of: the newest version of a table's target, with what others wrote; -1: none.
    """
    tables = {
        oid: table
        for oid, table in {**record.unpublished, **record.tables}.items()
        if barrier.concerns(table.title)
    }
    reasons = {
        oid: _reason(table, record.position, barrier.position) for oid, table in tables.items()
    }
    standing = [oid for oid, reason in reasons.items() if reason is None]
    with ThreadPoolExecutor(_OPENERS) as threads:
        opened = threads.map(lambda oid: version_of(oid, tables[oid]), standing)
        versions = dict(zip(standing, opened, strict=True))
    reasons |= {oid: "its target is gone" for oid, version in versions.items() if version < 0}
    return {
        oid: StandingTable(
            table.title,
            table.target,
            versions.get(oid, -1),
            reasons[oid],
            oid in record.tables and table.is_published,
        )
        for oid, table in tables.items()
    }


def _reason(table: TableRecord, applied: Lsn, position: Lsn | None) -> str | None:
    """Why no version of the table's target holds exactly the position; None: the newest does."""
    if table.state is TableState.UNPUBLISHED or not table.is_published:
        return "not published; its target stays as it is"
    if table.is_parked:
        return f"parked: {table.error}"
    if table.is_to_copy:
        return "waits for a copy"
    if position is not None and table.committed > position:
        return f"copied at {table.committed}, after this position"
    if table.applied_through < applied:
        return f"behind, at {table.applied_through}" + (f": {table.error}" if table.error else "")
    return None


class BarrierOwner:
    """The barrier of a process that verifies; a context manager that removes it at its end.

    Args:
        titles: the tables to verify; empty: all.
        wait_s: how long to wait while another process verifies the subscription.
        is_stopping: asked meanwhile; gives up.
    """

    def __init__(
        self,
        folder: Path,
        titles: Collection[str],
        *,
        wait_s: float = 2.0,
        is_stopping: Callable[[], bool] = bool,
    ) -> None:
        self._titles = tuple(titles)
        self._wait_s = wait_s
        self._is_stopping = is_stopping
        self._folder = folder
        self._lock = barrier_lock(self._folder)
        self._barrier = Barrier("", None)
        self._held_since = 0.0

    def __enter__(self) -> BarrierOwner:
        """Take the lock; those who look for a barrier hold it for a moment, too.

        Raises:
            SpoolBusy: another process verifies the subscription, and has not ended in time.
        """
        deadline = time.monotonic() + self._wait_s
        while True:
            try:
                self._lock.acquire()
                self.clear()
                return self
            except SpoolBusy:
                if self._is_stopping() or time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)

    def __exit__(self, *_: object) -> None:
        self.clear()
        self._lock.release()

    def clear(self) -> None:
        """Remove the barrier: batches go on."""
        _remove_files(self._folder)

    def hold(self) -> None:
        """Let no batch begin for a while, until a position is known."""
        self._held_since = time.monotonic()
        self._set(Barrier(str(uuid.uuid4()), None, self._titles))

    def move(self, position: Lsn) -> None:
        """Let a batch end at the position; a hold that was set ends.

        The position has what is left of the hold's time. If that is over, batches went on, and wait
        at the position anew.
        """
        held = self._barrier.barrier_id if self._barrier.position is None else ""
        if time.monotonic() - self._held_since >= HOLD_S:
            held = ""
        self._set(Barrier(held or str(uuid.uuid4()), position, self._titles))

    def answer(self) -> BarrierAnswer | None:
        """The driver's answer; None while there is none."""
        return read_answer(self._folder, self._barrier)

    def await_answer(
        self,
        timeout_s: float,
        late: PgsluiceError,
        is_stopping: Callable[[], bool],
        meanwhile: Callable[[], None] = lambda: None,
    ) -> BarrierAnswer:
        """Wait for the driver's answer.

        Args:
            late: raised when there is none in time.
            is_stopping: asked meanwhile; gives up.
            meanwhile: called before each pause; it may wait, or raise.

        Raises:
            PgsluiceError: there was no answer in time, or none is waited for any more.
        """
        deadline = time.monotonic() + timeout_s
        while (answer := self.answer()) is None:
            if is_stopping():
                raise PgsluiceError("asked to stop before the position was reached")
            if time.monotonic() > deadline:
                raise late
            meanwhile()
            time.sleep(_ANSWER_POLL_S)
        return answer

    def _set(self, barrier: Barrier) -> None:
        self._barrier = barrier
        position = None if barrier.position is None else int(barrier.position)
        replace_json(
            self._folder / BARRIER,
            {
                "barrier_id": barrier.barrier_id,
                "position": position,
                "titles": barrier.titles,
            },
        )


class BarrierWait:
    """Planning's side: how far a batch may reach."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held_id = ""
        self._held_since = 0.0

    def limit(self, start: Lsn, end: Lsn, wait_s: float) -> Lsn:
        """Where a batch that begins at ``start`` ends: ``start`` itself while batches wait.

        Args:
            start: where the batch would begin.
            end: where it would end, past ``start``; found before this call.
            wait_s: how long to wait here until batches may go on.
        """
        deadline = time.monotonic() + wait_s
        while (barrier := waiting_barrier(self._folder)) is not None:
            if barrier.position is not None and barrier.position > start:
                return min(end, barrier.position)
            now = time.monotonic()
            if barrier.barrier_id != self._held_id:
                self._held_id, self._held_since = barrier.barrier_id, now
            if now - self._held_since >= HOLD_S:
                return end
            if now >= deadline:
                return start
            time.sleep(_POLL_S)
        return end


def _remove_files(folder: Path) -> None:
    for name in (BARRIER, BARRIER_ANSWER):
        (folder / name).unlink(missing_ok=True)
