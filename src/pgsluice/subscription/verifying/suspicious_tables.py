"""Verifies the tables that a catalog refresh marked as suspicious, and those that are due by the
schedule, and requests copies of those that differ.

A difference in the catalog that may have changed rows without changes in the stream marks the table
in its record. The run then compares the table with its target at one position, while everything
else continues:

- It compares one table at a time, with one session and one read of the source. One snapshot is used
  for :data:`ROUND_S`; tables that were not started by then wait for the next round.
- Equal rows clear the mark, unless a later refresh marked the table again. If rows differ, or if
  the table cannot be compared, it is copied.
- Only a comparison or a copy clears a mark, so after a crash the comparison is repeated.
- While ``pgsluice verify`` has the barrier, marked tables wait.
- Some servers do not notice in a connection that publications change (ADR 0056). There, capture
  connects again before marked tables are compared: then a table that is equal stays equal.
- A scheduled verification reads at its rate. If rows differ, they are repaired, where that is
  possible; else the table is copied. A table that cannot be compared is left as it is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psycopg

from pgsluice.config import Config
from pgsluice.config.model import VerifyConfig
from pgsluice.errors import PgsluiceError, SourceRefused, SourceUnreachable
from pgsluice.failpoints import failpoint
from pgsluice.lsn import Lsn
from pgsluice.published.discovery import ReplicatedTable, source_tables
from pgsluice.published.publication_rules import PublicationRules
from pgsluice.rejects.fold import Reject
from pgsluice.replication import source_errors
from pgsluice.spool import Spool, SubscriptionRecord, TableRecord
from pgsluice.spool.layout import subscription_folder
from pgsluice.spool.notes import Verified, keep_verified, read_verified
from pgsluice.subscription.base.barrier import BarrierAnswer, BarrierOwner, StandingTable
from pgsluice.subscription.base.comparing import (
    InterruptibleRows,
    Session,
    can_replace_rows,
    compare_standing,
    failure_reason,
    standing_rows,
)
from pgsluice.subscription.base.options import rejects_place, table_options
from pgsluice.subscription.base.received import Received, connect_behind_publications
from pgsluice.subscription.base.waits import WAITS
from pgsluice.subscription.lifecycle.look_events import VerifiedEqual
from pgsluice.subscription.lifecycle.table_events import CopyNeeded, RepairNeeded
from pgsluice.subscription.lifecycle.tables import SubscriptionTables
from pgsluice.subscription.verifying.standing import Standing, standing
from pgsluice.system.threads import WorkThread
from pgsluice.verification import Comparison, Extent

logger = logging.getLogger(__name__)

ROUND_S = 600.0
"""How long comparisons may start in one snapshot, in seconds: a held snapshot delays vacuum."""
_WHY_COPIED = "its target differs from the source, or could not be compared"
_WHY_COPIED_ON_SCHEDULE = "a scheduled verification found that its target differs"
_ANSWER_S = 600.0
_MOST_POLL_S = 30.0


@dataclass(slots=True, eq=False)
class VerificationSchedule:
    """Which tables of one subscription are due for a verification.

    A table is due when its last verification is older than the interval, and soon after its copy. A
    table that differed or could not be compared is not due again before the interval, so that what
    no copy mends costs no more than the schedule.
    """

    _spool_path: Path
    _name: str
    _not_before: dict[int, float] = field(default_factory=dict)
    _poll_at: float = 0.0

    def due(self, setting: VerifyConfig | None, record: SubscriptionRecord) -> list[int]:
        """The tables to verify now, the oldest verification first; empty between two polls."""
        now = time.monotonic()
        if setting is None or now < self._poll_at:
            return []
        self._poll_at = now + min(_MOST_POLL_S, setting.every / 10)
        verified = read_verified(self._spool_path, self._name, record.tables)
        before = time.time() - setting.every
        ages = {
            oid: verified[oid].at if oid in verified else 0.0
            for oid, table in record.tables.items()
            if _is_whole(table) and now >= self._not_before.get(oid, 0.0)
        }
        # A clock that was set back must not stop the schedule.
        due = [oid for oid, at in ages.items() if not before < at <= time.time()]
        return sorted(due, key=lambda oid: ages[oid])

    def put_off(self, oid: int, setting: VerifyConfig) -> None:
        """Do not verify a table again before the interval has passed."""
        self._not_before[oid] = time.monotonic() + setting.every

    def equal(self, oid: int, position: Lsn) -> None:
        """A table equals its source at a position; the caller holds the barrier."""
        keep_verified(self._spool_path, self._name, {oid: Verified(position, time.time())})


def _is_whole(table: TableRecord) -> bool:
    """Whether a target is meant to equal its source."""
    is_copied = table.is_active and table.copied.position > 0
    return is_copied and table.is_published and not table.incomplete


class SuspiciousTables:
    """Compares a subscription's suspicious tables with the source, beside the batches.

    A table is suspicious if its rows may have changed without changes in the stream. A table that
    is equal is no longer marked; a table that differs is repaired or copied.

    Args:
        rules: the rules of pgsluice's own publications; None: the subscription applies everything
            that the server sends.
        log: called with the reason why tables cannot be compared at the moment, and with None as
            soon as they can; logs each reason once.
        retry_s: the pause after a round that left tables marked.
    """

    def __init__(
        self,
        config: Config,
        tables: SubscriptionTables,
        rules: PublicationRules | None,
        received: Received,
        log: Callable[[str | None], None],
        retry_s: float = WAITS.verification_retry_s,
    ) -> None:
        self._config = config
        self._received = received
        self.subscription = config.subscription(tables.record.name)
        self._retry_s = retry_s
        self._tables = tables
        self._rules = rules
        self._log = log
        self._is_put_off = False
        self._round: _Round | None = None
        self._thread: WorkThread | None = None
        self._retry_at = 0.0
        self._schedule = VerificationSchedule(config.spool.folder, self.subscription.name)

    def marked(self) -> dict[int, TableRecord]:
        """The tables to verify now; a parked table is copied first anyway."""
        return {
            oid: table
            for oid, table in self._tables.unfinished.items()
            if table.pending.verification and table.is_active and table.is_published
        }

    def tend(self) -> None:
        """Verify marked tables in a separate thread, if there are any; returns at once.

        Raises:
            BaseException: the error that ended the thread, unless it may be temporary.
        """
        if self._thread is not None and self._thread.is_alive():
            return
        ended, self._thread = self._thread, None
        if ended is not None:
            ended.raise_error()
        if time.monotonic() < self._retry_at:
            return
        due = self._schedule.due(self.subscription.verify, self._tables.durable)
        if not due and not self.marked():
            return
        self._round = _Round(tuple(due))
        self._thread = WorkThread("pgsluice verification", partial(self._run, self._round))
        self._thread.start()

    def _run(self, round_: _Round) -> None:
        try:
            dsn = self._config.source.conninfo
            prepare = partial(connect_behind_publications, dsn, self._received)
            self._try_round(round_, self._await_answer, prepare)
        finally:
            if self.marked():
                self._retry_at = time.monotonic() + self._retry_s

    def verify_now(self, reach: Callable[[Lsn], None]) -> None:
        """Compare the marked (suspicious) tables with their targets, and return when all are
        compared; the caller applies no batch meanwhile.

        Args:
            reach: applies the changes up to a position, at which the tables are then compared.
        """
        if not self.marked():
            return

        def answer_at(position: Lsn, barrier: BarrierOwner) -> BarrierAnswer:
            reach(position)
            answer = barrier.answer()
            if answer is None:
                raise PgsluiceError(f"{self.subscription.name} did not reach {position}")
            return answer

        self._round = _Round()
        self._try_round(self._round, answer_at)

    def stop(self) -> None:
        """Stop the verification; the tables stay marked, so that a later one compares them."""
        if self._round is not None:
            self._round.stop()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _try_round(
        self,
        round_: _Round,
        answer_at: Callable[[Lsn, BarrierOwner], BarrierAnswer],
        prepare: Callable[[Callable[[], bool]], object] = lambda _: None,
    ) -> None:
        """Verify, after ``prepare`` if tables are marked; logs an error that may be temporary."""
        self._is_put_off = False
        try:
            if self.marked():
                prepare(round_.is_stopped)
            if self.subscription.sink.type == "delta":
                self._verify(round_, answer_at)
            else:
                for oid in self.marked():
                    self._tables.apply(oid, CopyNeeded(_WHY_COPIED))
        except PgsluiceError as error:
            if not round_.is_stopped():
                self._log(f"tables are verified later: {error}")
        else:
            if not self._is_put_off:
                self._log(None)

    def _verify(
        self, round_: _Round, answer_at: Callable[[Lsn, BarrierOwner], BarrierAnswer]
    ) -> None:
        due = {
            oid: table
            for oid in round_.due
            if (table := self._tables.durable.tables.get(oid)) is not None and table.is_active
        }
        marked = self.marked()
        compared = {**marked, **due}
        if not compared:
            return
        spool = Spool.open(self._config.spool.place)
        titles = [table.title for table in compared.values()]
        folder = subscription_folder(spool.path, self.subscription.name)
        with (
            BarrierOwner(folder, titles) as barrier,
            standing(
                self._config.source.conninfo,
                barrier,
                lambda position: answer_at(position, barrier),
                sessions=1,
                is_stopping=round_.is_stopped,
            ) as stand,
        ):
            with source_errors("looking for the published tables"):
                published = source_tables(
                    stand.sessions[0], spool.identity.publications, self._rules, only=compared
                )
            by_oid = {table.facts.oid: table for table in published}
            self._compare_all(round_, stand, compared, by_oid)

    def _compare_all(
        self,
        round_: _Round,
        stand: Standing,
        compared: Mapping[int, TableRecord],
        published: Mapping[int, ReplicatedTable],
    ) -> None:
        ends_by = time.monotonic() + ROUND_S
        for oid, record in compared.items():
            if round_.is_stopped() or time.monotonic() > ends_by:
                return
            source, table = published.get(oid), stand.answer.tables.get(oid)
            if source is None or table is None or table.reason is not None:
                continue
            with round_.reading(stand.sessions[0]) as session:
                outcome = self._compare(round_, session, source, table, stand.position)
            if outcome is not None:
                failpoint("verification.compared")
                self._conclude(oid, record, outcome, stand.position)

    def _compare(
        self,
        round_: _Round,
        session: Session,
        source: ReplicatedTable,
        table: StandingTable,
        position: Lsn,
    ) -> Comparison | Exception | None:
        """Compare a table; None: a later round does. The error, if it cannot be compared."""
        oid, setting = source.facts.oid, self.subscription.verify
        is_scheduled = oid in round_.due and oid not in self.marked()
        rate = setting.rate if setting is not None and is_scheduled else None

        def is_stopping() -> bool:  # a marked table does not wait for a slow comparison
            return round_.is_stopped() or (is_scheduled and bool(self.marked()))

        try:
            reading = self.subscription.sink.reading_options()
            options = table_options(self.subscription)
            rows = standing_rows(table, source, options, reading)
            return compare_standing(
                session,
                source,
                InterruptibleRows(rows.schema, rows.batches, round_.is_stopped),
                options,
                max_keys=0,
                rejects=self._rejects(oid, position),
                extent=Extent(rate=rate, is_stopping=is_stopping),
            )
        except (SourceRefused, SourceUnreachable, psycopg.OperationalError) as error:
            # Rewritten since (the next look marks it again), locked, or the server went away.
            self._put_off(f"{table.title} is verified later: {failure_reason(error)}")
            return None
        except Exception as error:
            if is_stopping():
                return None
            self._put_off(f"{table.title} cannot be compared: {failure_reason(error)}")
            return error

    def _put_off(self, why: str) -> None:
        self._is_put_off = True
        self._log(why)

    def _rejects(self, oid: int, position: Lsn) -> Sequence[Reject]:
        known, config = self._tables.get(oid), self._config
        if known is None or not known.rejects:
            return ()
        spool_id = Spool.open(config.spool.place).identity.spool_id
        place = rejects_place(config, self.subscription, spool_id)
        return () if place is None else place.table().open_at(oid, position)

    def _conclude(
        self, oid: int, known: TableRecord, outcome: Comparison | Exception, position: Lsn
    ) -> None:
        """Record a comparison's outcome; ``known`` is the record before its position was taken."""
        is_marked, setting = bool(known.pending.verification), self.subscription.verify
        comparison = outcome if isinstance(outcome, Comparison) else None
        with self._tables.changing():
            table = self._tables.get(oid)
            if table is None or table.copy_number != known.copy_number:
                return  # copied meanwhile
            if comparison is not None and comparison.equal:
                self._schedule.equal(oid, position)
                if is_marked:
                    self._tables.apply(oid, VerifiedEqual(known.verification_number))
                return
            if setting is not None:
                self._schedule.put_off(oid, setting)
            if is_marked:
                self._request(known, oid, CopyNeeded(_WHY_COPIED))
            elif comparison is not None and can_replace_rows(self.subscription, table, comparison):
                self._request(known, oid, RepairNeeded())
            elif comparison is not None:
                self._request(known, oid, CopyNeeded(_WHY_COPIED_ON_SCHEDULE))

    def _request(self, table: TableRecord, oid: int, event: CopyNeeded | RepairNeeded) -> None:
        what = "is repaired" if isinstance(event, RepairNeeded) else "is copied again"
        logger.warning(
            "%s: %s differs from the source and %s", self.subscription.name, table.title, what
        )
        self._tables.apply(oid, event)

    def _await_answer(self, position: Lsn, barrier: BarrierOwner) -> BarrierAnswer:
        """Wait for the answer of the run's own loop."""
        assert self._round is not None
        late = PgsluiceError(f"{position} was not reached in {_ANSWER_S:.0f} s")
        return barrier.await_answer(_ANSWER_S, late, self._round.is_stopped)


@dataclass(slots=True)
class _Round:
    """One round, which another thread can stop; ``due``: tables that the schedule names."""

    due: tuple[int, ...] = ()
    _stopped: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _session: Session | None = None

    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        self._stopped.set()
        with self._lock, suppress(psycopg.Error):
            if self._session is not None:
                self._session.cancel_safe()

    @contextmanager
    def reading(self, session: Session) -> Iterator[Session]:
        """A context whose statements a stop cancels."""
        with self._lock:
            self._session = session
        try:
            yield session
        finally:
            with self._lock:
                self._session = None
