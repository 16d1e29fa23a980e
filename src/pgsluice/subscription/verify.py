"""Compare the tables of a subscription with their targets, all at one position.

1. A temporary slot exports a snapshot of the source; its consistent point is the position.
   Sessions import the snapshot, and the slot goes.
2. A barrier at that position (:mod:`pgsluice.subscription.barrier`) makes the subscription's run
   name the target versions there. Without a run, this process applies up to the position itself.
3. :mod:`pgsluice.verification` compares each table in the snapshot with its target's version.

Creating the slot waits for open writing transactions, and the run goes on meanwhile. If the run
was past the position before it saw the barrier, the next attempt holds its batches first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import psycopg
from psycopg import sql

from pgsluice.catalog import leaf_filenodes
from pgsluice.config import Config, SubscriptionConfig
from pgsluice.copy import import_snapshot, temporary_snapshot
from pgsluice.errors import ConfigError, Failure, PgsluiceError, SourceRefused, SpoolBusy
from pgsluice.events import MetricsEvent
from pgsluice.lsn import Lsn
from pgsluice.replication import connect_sql, source_errors
from pgsluice.sinks.target import TableOptions, target_table
from pgsluice.spool import Spool, find_record
from pgsluice.spool.lock import subscription_lock
from pgsluice.subscription.barrier import HOLD_S, BarrierAnswer, BarrierOwner, StandingTable
from pgsluice.subscription.discovery import ReplicatedTable, source_tables
from pgsluice.subscription.options import table_options
from pgsluice.subscription.publication_rules import PublicationRules
from pgsluice.subscription.run import run
from pgsluice.verification import ComparedTable, Comparison, DeltaRows, compare

ATTEMPTS = 5
"""How often a position is tried that the run has passed already."""
SNAPSHOT_TIMEOUT_S = 300.0
LOCK_TIMEOUT_S = 30
_POLL_S = 0.05
_SLOT_TIMEOUT_HELD_S = HOLD_S - 2
"""A slot that takes longer while batches are held would outlast the hold."""

Session = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class VerifiedTable:
    """The result for one table.

    Attributes:
        subscription: its name.
        title: ``schema.table`` at the target.
        position: both sides were read there.
        comparison: None if the table was not compared.
        reason: why not.
        is_published: a table that is not published is not compared, and that is no failure.
    """

    subscription: str
    title: str
    position: Lsn
    comparison: Comparison | None = None
    reason: str | None = None
    is_published: bool = True

    @property
    def is_failure(self) -> bool:
        """Rows differ, or a published table could not be compared."""
        if self.comparison is None:
            return self.is_published
        return not self.comparison.equal


@dataclass(frozen=True, slots=True)
class Verification:
    """How to verify.

    Attributes:
        titles: ``schema.table`` of the tables to compare; empty: all.
        sessions: how many tables are compared at the same time, each with its own connection.
        max_keys: how many keys of each kind are listed for a table.
        timeout_s: how long the run may take to reach the position.
        report: takes the events of a run that this process does itself.
        stop: gives up.
    """

    titles: Collection[str] = ()
    sessions: int = 4
    max_keys: int = 10
    timeout_s: float = 3600.0
    report: Callable[[MetricsEvent], None] | None = None
    stop: threading.Event | None = None


def verify(
    config: Config, subscription: SubscriptionConfig, options: Verification
) -> list[VerifiedTable]:
    """Compare the tables of one subscription, ordered by name.

    Raises:
        ConfigError: nothing was replicated yet, there is no such table, or the target's type
            cannot be read back.
        SpoolBusy: another process verifies the subscription.
        SourceRefused: no free slot, or transactions at the source stay open.
        SourceUnreachable: no connection.
        PgsluiceError: the run did not reach the position; or what a run raises.
    """
    _check(config, subscription, options.titles)
    with ExitStack() as stack:
        spool = Spool.open(config.spool.path)
        barrier = stack.enter_context(
            BarrierOwner(spool.subscription_folder(subscription.name), options.titles)
        )
        sessions, position, answer = _stand(config, subscription, options, barrier, stack)
        rules = PublicationRules.of(config, subscription)
        with source_errors("looking for the published tables"):
            published = source_tables(sessions[0], spool.identity.publications, rules)
        comparer = _Comparer(
            subscription.name,
            position,
            {table.facts.oid: table for table in published},
            table_options(subscription),
            options.max_keys,
        )
        idle: SimpleQueue[Session] = SimpleQueue()
        for session in sessions:
            idle.put(session)

        def one(item: tuple[int, StandingTable]) -> VerifiedTable:
            session = idle.get()
            try:
                return comparer.verify(session, *item)
            finally:
                idle.put(session)

        with ThreadPoolExecutor(len(sessions)) as threads:
            results = list(threads.map(one, answer.tables.items()))
        return sorted(results, key=lambda result: result.title)


def _check(config: Config, subscription: SubscriptionConfig, titles: Collection[str]) -> None:
    record = find_record(config.spool.path, subscription.name)
    if record is None:
        raise ConfigError(
            f"nothing was replicated for the subscription {subscription.name} yet",
            hint="start `pgsluice run` first",
        )
    if subscription.sink.type != "delta":
        raise ConfigError(
            f'targets of the type "{subscription.sink.type}" cannot be verified',
            hint="only Delta tables can be read back at a position",
        )
    known = {table.title for table in (*record.tables.values(), *record.unpublished.values())}
    if unknown := sorted(set(titles) - known):
        raise ConfigError(
            f"the subscription {subscription.name} has no table {unknown[0]}",
            hint=f"it has: {', '.join(sorted(known)) or 'none yet'}",
        )


# The position


def _stand(
    config: Config,
    subscription: SubscriptionConfig,
    options: Verification,
    barrier: BarrierOwner,
    stack: ExitStack,
) -> tuple[Sequence[Session], Lsn, BarrierAnswer]:
    """Sessions in a snapshot, its position, and the targets' versions there."""
    for attempt in range(ATTEMPTS):
        with ExitStack() as attempt_stack:
            if attempt:
                barrier.hold()
            timeout_s = _SLOT_TIMEOUT_HELD_S if attempt else SNAPSHOT_TIMEOUT_S
            sessions, position = _snapshot(config, options, timeout_s, attempt_stack)
            barrier.move(position)
            answer = _await_answer(config, subscription, options, barrier, position)
            if not answer.is_passed:
                stack.push(attempt_stack.pop_all())
                return sessions, position, answer
    raise PgsluiceError(
        f"the run of {subscription.name} passed {ATTEMPTS} positions before it saw them",
        hint="its machine may be overloaded; try again, or stop the run and verify without it",
    )


def _snapshot(
    config: Config, options: Verification, timeout_s: float, stack: ExitStack
) -> tuple[list[Session], Lsn]:
    is_stopping = bool if options.stop is None else options.stop.is_set
    with (
        temporary_snapshot(config.source.dsn, timeout_s, is_stopping) as snapshot,
        source_errors("importing a snapshot"),
    ):
        sessions = []
        for _ in range(options.sessions):
            sessions.append(session := stack.enter_context(_session(config)))
            import_snapshot(session, snapshot.name)
        return sessions, snapshot.position


@contextmanager
def _session(config: Config) -> Iterator[Session]:
    with connect_sql(config.source.dsn, application="verify") as session:
        yield session


def _await_answer(
    config: Config,
    subscription: SubscriptionConfig,
    options: Verification,
    barrier: BarrierOwner,
    position: Lsn,
) -> BarrierAnswer:
    """Wait for the answer of a run, or be the run if there is none.

    Raises:
        PgsluiceError: the position was not reached; or what a run raises.
    """
    name = subscription.name
    deadline = time.monotonic() + options.timeout_s
    while (answer := barrier.answer()) is None:
        if options.stop is not None and options.stop.is_set():
            raise PgsluiceError("asked to stop before the position was reached")
        if time.monotonic() > deadline:
            raise PgsluiceError(
                f"{name} has not reached {position} after {options.timeout_s:.0f} s",
                hint="pgsluice status says how far it is",
            )
        if _has_run(config, name):
            time.sleep(_POLL_S)
            continue
        try:
            run(config, once=True, names=[name], report=options.report, stop=options.stop)
        except SpoolBusy:
            time.sleep(_POLL_S)  # a run, or its capture, has just started
            if not _has_run(config, name):
                raise
            continue
        if (answer := barrier.answer()) is None:
            raise PgsluiceError(
                f"{name} did not reach {position}",
                hint="pgsluice status says why",
            )
    return answer


def _has_run(config: Config, name: str) -> bool:
    try:
        with subscription_lock(config.spool.path, name):
            return False
    except SpoolBusy:
        return True


# One table


@dataclass(frozen=True, slots=True)
class _Comparer:
    """Compares tables that stand at one position."""

    subscription: str
    position: Lsn
    published: Mapping[int, ReplicatedTable]
    options: TableOptions
    max_keys: int

    def verify(self, session: Session, oid: int, table: StandingTable) -> VerifiedTable:
        """Compare one table; a failure is its result."""
        comparison, reason, is_published = None, table.reason, table.is_published
        source = self.published.get(oid)
        if reason is None and source is None:
            reason, is_published = "not published; its target stays as it is", False
        elif reason is None and source is not None:
            try:
                comparison = self._compare(session, source, table)
            except Exception as error:  # one table's failure is no other's
                reason = _reason(error)
        return VerifiedTable(
            self.subscription, table.title, self.position, comparison, reason, is_published
        )

    def _compare(
        self, session: Session, source: ReplicatedTable, table: StandingTable
    ) -> Comparison:
        facts = source.facts
        target = target_table(facts, self.options, source.columns)
        # Rolled back, which gives the table's lock back.
        with session.transaction(force_rollback=True):
            _lock(session, source)
            return compare(
                session,
                ComparedTable.named(session, facts.namespace, facts.name, with_generated=True),
                DeltaRows(table.target, table.version),
                key=target.key,
                columns=target.schema.names,
                row_filter=source.row_filter,
                max_keys=self.max_keys,
            )


def _lock(session: Session, source: ReplicatedTable) -> None:
    """Keep the table from being rewritten, and check that the snapshot still sees its rows.

    Raises:
        PgsluiceError: it was rewritten since.
    """
    facts = source.facts
    session.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s'")
    name = sql.Identifier(facts.namespace, facts.name)
    session.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(name))
    leaves = leaf_filenodes(session, [facts.oid])[facts.oid]
    if any(leaf.now != leaf.in_snapshot for leaf in leaves.values()):
        raise SourceRefused(
            "rewritten at the source after the snapshot (TRUNCATE, ALTER TABLE, CLUSTER …): "
            "verify it again"
        )


def _reason(error: Exception) -> str:
    if isinstance(error, psycopg.Error):
        return f"the source cannot be read: {error.diag.message_primary or error}"
    return Failure.of(error).message
