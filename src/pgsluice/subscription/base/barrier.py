"""A barrier: a position at which ``verify`` can read all tables of a subscription while it runs.

``pgsluice verify`` sets a barrier at the position of a snapshot of the source. Planning ends a
batch exactly there, inside a segment if necessary. The driver answers with each target's version at
that position, and batches continue at once. The rules:

- A barrier is valid while the process that set it holds ``barrier.lock``. The next process that
  looks for a barrier removes the files of a dead one.
- Planning lists the segments first, and then looks for a barrier. So a batch that was planned
  before the barrier's file existed has only transactions that were committed earlier.
- While a barrier has no position, no batch starts. When it has one, batches stop there.
- Batches wait for a while at most, then they pass the barrier. The driver reports this, and
  the verifying process tries again.
- Vacuum keeps the versions of an answer while the barrier is valid.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from pgsluice.errors import PgsluiceError, SpoolBusy
from pgsluice.lsn import Lsn
from pgsluice.small_files import replace_json
from pgsluice.spool import SubscriptionRecord, TableRecord, TableState
from pgsluice.spool.layout import BARRIER, BARRIER_ANSWER
from pgsluice.spool.lock import barrier_lock

_HOLD_S = 10.0
"""How long batches wait at one barrier, in all, in seconds."""
_POLL_S = 0.02
_ANSWER_POLL_S = 0.05
_OPENERS = 8
"""How many targets are opened at the same time."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """A barrier, as the verifying process requests it.

    Attributes:
        position: where to end a batch; None: start no batch until the position is known.
        titles: the tables that the answer needs; empty: all.
    """

    barrier_id: str
    position: Lsn | None
    titles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StandingTable:
    """One table at the barrier.

    Attributes:
        title: ``schema.table`` at the target.
        version: the target's version that has exactly the changes up to the barrier; -1: none does.
        reason: why there is no such version; None if there is one.
    """

    title: str
    target: str
    version: int = -1
    reason: str | None = None
    is_published: bool = True


@dataclass(frozen=True, slots=True)
class BarrierAnswer:
    """The driver's answer to a barrier.

    Attributes:
        is_passed: batches had already passed the barrier; then there are no tables.
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
    """The valid barrier that the driver has not answered yet."""
    barrier = current_barrier(folder)
    if barrier is None or read_answer(folder, barrier) is not None:
        return None
    return barrier


def write_answer(folder: Path, answer: BarrierAnswer) -> None:
    """Answer a barrier; batches continue."""
    replace_json(folder / BARRIER_ANSWER, asdict(answer))


def barrier_versions(folder: Path) -> dict[int, int]:
    """The target versions that the verifying process is reading, by relation OID."""
    barrier = current_barrier(folder)
    answer = None if barrier is None else read_answer(folder, barrier)
    if answer is None:
        return {}
    return {oid: table.version for oid, table in answer.tables.items() if table.version >= 0}


def standing_tables(
    record: SubscriptionRecord, barrier: Barrier, version_of: Callable[[int, TableRecord], int]
) -> dict[int, StandingTable]:
    """The tables of a subscription that has applied everything up to a barrier.

    Args:
        version_of: returns the newest version of a table's target, including commits of other
            writers; -1: none.
    """
    tables = {
        oid: table
        for oid, table in {**record.unpublished, **record.tables}.items()
        if not barrier.titles or table.title in barrier.titles
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
    """Why no version of the table's target is at this position; None: the newest one is."""
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
    """The barrier that a verifying process sets; a context manager that removes it at the end.

    Args:
        titles: the tables to verify; empty: all.
        wait_s: how long to wait while another process verifies the subscription.
        is_stopping: polled while waiting; true: give up.
    """

    def __init__(
        self,
        folder: Path,
        titles: Collection[str],
        *,
        wait_s: float = 2.0,
        is_stopping: Callable[[], bool] = bool,
        hold_s: float = _HOLD_S,
    ) -> None:
        self._hold_s = hold_s
        self._titles = tuple(titles)
        self._wait_s = wait_s
        self._is_stopping = is_stopping
        self._folder = folder
        self._lock = barrier_lock(self._folder)
        self._barrier = Barrier("", None)
        self._held_since = 0.0

    def __enter__(self) -> BarrierOwner:
        """Take the barrier's lock. Processes that look for a barrier hold it for a moment, too.

        Raises:
            SpoolBusy: another process verifies the subscription and did not finish in time.
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
        """Remove the barrier: batches continue."""
        _remove_files(self._folder)

    def hold(self) -> None:
        """Let no batch start for a while, until a position is known."""
        self._held_since = time.monotonic()
        self._set(Barrier(str(uuid.uuid4()), None, self._titles))

    def move(self, position: Lsn) -> None:
        """Let a batch end at this position, which replaces a hold without a position.

        Batches wait at the position for the rest of the hold's time. If the hold has expired,
        batches have continued, and the full time starts again.
        """
        held = self._barrier.barrier_id if self._barrier.position is None else ""
        if time.monotonic() - self._held_since >= self._hold_s:
            held = ""
        self._set(Barrier(held or str(uuid.uuid4()), position, self._titles))

    def answer(self) -> BarrierAnswer | None:
        """The driver's answer; None until there is one."""
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
            late: the error to raise if there is no answer in time.
            meanwhile: called before each pause; it may wait or raise.

        Raises:
            PgsluiceError: there was no answer in time, or the process is stopping.
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
        replace_json(self._folder / BARRIER, asdict(barrier))


@dataclass(slots=True, eq=False)
class BarrierWait:
    """The limit that a barrier sets to batches; used by planning."""

    _folder: Path
    hold_s: float = _HOLD_S
    _held_id: str = ""
    _held_since: float = 0.0

    def limit(self, start: Lsn, end: Lsn, wait_s: float) -> Lsn:
        """The end of a batch that starts at ``start``; ``start`` itself while batches have to wait.

        Args:
            end: where the batch would end without a barrier, past ``start``; determined before this
                call.
            wait_s: how long to wait here until batches can continue.
        """
        deadline = time.monotonic() + wait_s
        while (barrier := waiting_barrier(self._folder)) is not None:
            if barrier.position is not None and barrier.position > start:
                return min(end, barrier.position)
            now = time.monotonic()
            if barrier.barrier_id != self._held_id:
                self._held_id, self._held_since = barrier.barrier_id, now
            if now - self._held_since >= self.hold_s:
                return end
            if now >= deadline:
                return start
            time.sleep(_POLL_S)
        return end


def _remove_files(folder: Path) -> None:
    for name in (BARRIER, BARRIER_ANSWER):
        (folder / name).unlink(missing_ok=True)
