"""``pgsluice verify``: compares the tables of a subscription with their targets, all at one
position.

:mod:`pgsluice.subscription.verifying.standing` finds that position. Without an active run, this
process applies the changes up to it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from pgsluice.config import Config, SubscriptionConfig
from pgsluice.config.values.table_names import nearest_table
from pgsluice.errors import ConfigError, PgsluiceError, SpoolBusy, TablesUnfinished
from pgsluice.events import MetricsEvent
from pgsluice.lsn import Lsn
from pgsluice.published.discovery import source_tables
from pgsluice.published.publication_rules import PublicationRules
from pgsluice.replication import source_errors
from pgsluice.sinks.target import target_table
from pgsluice.spool import Spool
from pgsluice.spool.active_runs import ActiveRun
from pgsluice.spool.layout import subscription_folder
from pgsluice.spool.lock import subscription_lock
from pgsluice.spool.notes import Verified, keep_verified
from pgsluice.subscription.base.barrier import BarrierAnswer, BarrierOwner, StandingTable
from pgsluice.subscription.base.comparing import (
    Session,
    compare_standing,
    failure_reason,
    standing_rows,
)
from pgsluice.subscription.base.options import begun_record, rejects_place, table_options
from pgsluice.subscription.running.run import run
from pgsluice.subscription.verifying.overlaps import overlapping_keys
from pgsluice.subscription.verifying.standing import standing
from pgsluice.verification import EVERYTHING, Comparison, Extent

_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class VerifiedTable:
    """The result for one table.

    Attributes:
        title: ``schema.table`` at the target.
        position: the position at which both sides were read.
        comparison: None if the table was not compared.
        reason: why it was not compared.
        is_published: an unpublished table is not compared, and that is no failure.
        oid: the source's table.
        repaired_at: the position at which the target's rows that differed were read again.
        is_copied: the repair has read all rows again.
        not_repaired: why they were not, although this was asked for.
        overlapping: the number of a history's keys with versions that overlap, which nothing mends;
            0 for a sample.
    """

    subscription: str
    title: str
    position: Lsn
    comparison: Comparison | None = None
    reason: str | None = None
    is_published: bool = True
    oid: int = 0
    repaired_at: Lsn | None = None
    is_copied: bool = False
    not_repaired: str | None = None
    overlapping: int = 0

    @property
    def is_failure(self) -> bool:
        """Whether rows differ, versions overlap, or a published table could not be compared."""
        if self.comparison is None:
            return self.is_published
        return bool(self.overlapping) or (not self.comparison.equal and self.repaired_at is None)


@dataclass(frozen=True, slots=True)
class Verification:
    """The options of a verification.

    Attributes:
        titles: ``schema.table`` of the tables to compare; empty: all.
        sessions: how many connections read the source; each table has one, and the last tables
            share idle ones. At a rate, it is one.
        max_keys: how many keys of each kind to list for a table.
        timeout_s: how long another verification may last, and how long the run may take to
            reach the position.
        report: receives the events of a run within this process.
        stop: ends the verification soon after it is set.
        extent: how much of each table is compared, and how fast.
    """

    titles: Collection[str] = ()
    sessions: int = 4
    max_keys: int = 10
    timeout_s: float = 3600.0
    report: Callable[[MetricsEvent], None] | None = None
    stop: threading.Event | None = None
    extent: Extent = EVERYTHING


def verify(
    config: Config, subscription: SubscriptionConfig, options: Verification
) -> list[VerifiedTable]:
    """Compare the tables of one subscription; the results are ordered by name.

    Raises:
        ConfigError: nothing was replicated yet, there is no such table, or the target's type
            cannot be read back.
        SpoolBusy: another process verified the subscription during the whole timeout.
        SourceRefused: no free slot, or transactions at the source stay open.
        SourceUnreachable: no connection.
        PgsluiceError: the run did not reach the position; or what a run raises.
    """
    _check(config, subscription, options.titles)
    ActiveRun(config.spool.place, subscription.name).refuse_elsewhere()
    is_stopping = bool if options.stop is None else options.stop.is_set
    with ExitStack() as stack:
        spool = Spool.open(config.spool.place)
        barrier = stack.enter_context(
            BarrierOwner(
                subscription_folder(spool.path, subscription.name),
                options.titles,
                wait_s=options.timeout_s,
                is_stopping=is_stopping,
            )
        )
        stand = stack.enter_context(
            standing(
                config.source.conninfo,
                barrier,
                lambda position: _await_answer(config, subscription, options, barrier, position),
                sessions=1 if options.extent.rate is not None else options.sessions,
                is_stopping=is_stopping,
            )
        )
        rules = PublicationRules.of(config, subscription)
        with source_errors("looking for the published tables"):
            published = source_tables(
                stand.sessions[0], spool.identity.publications, rules, only=stand.answer.tables
            )
        by_oid = {table.facts.oid: table for table in published}
        targets, reading = table_options(subscription), subscription.sink.reading_options()
        rejects = rejects_place(config, subscription, spool.identity.spool_id)
        is_whole = options.extent.sample >= 1
        idle = _IdleSessions(stand.sessions, len(stand.answer.tables))

        def one(item: tuple[int, StandingTable]) -> VerifiedTable:
            """Compare one table; a failure becomes its result."""
            oid, table = item
            comparison, reason, is_published = None, table.reason, table.is_published
            overlapping, history = 0, targets.mode.history
            source = by_oid.get(oid)
            with idle.share() as sessions:
                if reason is None and source is None:
                    reason, is_published = "not published; its target stays as it is", False
                elif reason is None and source is not None:
                    try:
                        rows = standing_rows(table, source, targets, reading)
                        comparison = compare_standing(
                            sessions[0],
                            source,
                            rows,
                            targets,
                            max_keys=options.max_keys,
                            helpers=sessions[1:],
                            rejects=rejects.table().open_at(oid, stand.position) if rejects else (),
                            extent=options.extent,
                        )
                        if history is not None and is_whole:
                            key = target_table(source.facts, targets, source.columns).key
                            overlapping = overlapping_keys(rows, key, history)
                    except Exception as error:  # one table's failure is no other's
                        reason = failure_reason(error)
            return VerifiedTable(
                subscription.name,
                table.title,
                stand.position,
                comparison,
                reason,
                is_published,
                oid,
                overlapping=overlapping,
            )

        with ThreadPoolExecutor(len(stand.sessions)) as threads:
            results = list(threads.map(one, stand.answer.tables.items()))
        at = time.time()
        equal = {
            result.oid: Verified(result.position, at)
            for result in results
            if result.comparison is not None and result.comparison.equal and is_whole
        }
        keep_verified(config.spool.folder, subscription.name, equal)
        return sorted(results, key=lambda result: result.title)


def _check(config: Config, subscription: SubscriptionConfig, titles: Collection[str]) -> None:
    record = begun_record(config, subscription)
    if subscription.sink.type != "delta":
        raise ConfigError(
            f'pgsluice cannot verify targets of the sink type "{subscription.sink.type}"',
            hint='pgsluice can verify targets of the sink type "delta" only',
        )
    known = {table.title for table in (*record.tables.values(), *record.unpublished.values())}
    if unknown := sorted(set(titles) - known):
        raise ConfigError(
            f'subscription "{subscription.name}" has no table {unknown[0]}',
            hint=nearest_table(unknown[0], known),
        )


# The position


def _await_answer(
    config: Config,
    subscription: SubscriptionConfig,
    options: Verification,
    barrier: BarrierOwner,
    position: Lsn,
) -> BarrierAnswer:
    """Wait for the answer of an active run; without one, apply the changes here."""
    name = subscription.name

    def be_the_run() -> None:
        if _has_run(config, name):
            return
        try:
            with suppress(TablesUnfinished):  # the answer says which
                run(config, once=True, names=[name], report=options.report, stop=options.stop)
        except SpoolBusy:
            time.sleep(_POLL_S)  # a run, or its capture, has just started
            if not _has_run(config, name):
                raise
            return
        if barrier.answer() is None:
            raise PgsluiceError(
                f'subscription "{name}" did not reach position {position}',
                hint="`pgsluice status CONFIG` shows why",
            )

    late = PgsluiceError(
        f'subscription "{name}" has not reached position {position} after {options.timeout_s:.0f} '
        "s",
        hint="`pgsluice status CONFIG` shows how far the subscription is",
    )
    is_stopping = bool if options.stop is None else options.stop.is_set
    return barrier.await_answer(options.timeout_s, late, is_stopping, be_the_run)


def _has_run(config: Config, name: str) -> bool:
    try:
        with subscription_lock(config.spool.folder, name):
            return False
    except SpoolBusy:
        return True


class _IdleSessions:
    """Sessions that no table uses; a table takes several of them if few tables are left."""

    def __init__(self, sessions: Sequence[Session], tables: int) -> None:
        self._idle = SimpleQueue[Session]()
        for session in sessions:
            self._idle.put(session)
        self._count = len(sessions)
        self._left = tables
        self._lock = threading.Lock()

    @contextmanager
    def share(self) -> Iterator[list[Session]]:
        """Take the sessions for one table; waits for the first one."""
        sessions = [self._idle.get()]
        with self._lock:
            share = max(1, self._count // self._left)
        with suppress(Empty):
            while len(sessions) < share:
                sessions.append(self._idle.get_nowait())
        try:
            yield sessions
        finally:
            with self._lock:
                self._left -= 1
            for session in sessions:
                self._idle.put(session)
