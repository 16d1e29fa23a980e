"""Source and targets at one position, to compare them.

1. A temporary slot exports a snapshot of the source; its consistent point is the position.
   Sessions import the snapshot, and the slot goes.
2. A barrier at that position (:mod:`pgsluice.subscription.base.barrier`) makes the subscription's
   run name the target versions there.
3. :mod:`pgsluice.verification` compares a table in the snapshot with its target's version.

Creating the slot waits for open writing transactions, and the run goes on meanwhile. If the run
was past the position before it saw the barrier, the next attempt holds its batches first. A slot
may take longer than they wait: then the attempt is as good as the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import sql

from pgsluice.catalog import has_name, leaf_filenodes, lock_for_reading
from pgsluice.errors import Failure, PgsluiceError, SourceRefused
from pgsluice.lsn import Lsn
from pgsluice.published.discovery import ReplicatedTable
from pgsluice.replication import connect_sql, server_message, source_errors
from pgsluice.sinks.target import TableOptions, target_table
from pgsluice.snapshots import import_snapshot, temporary_snapshot
from pgsluice.subscription.base.barrier import BarrierAnswer, BarrierOwner
from pgsluice.verification import ComparedTable, Comparison, TargetRows, compare

ATTEMPTS = 5
"""How often a position is tried that the run has passed already."""
SNAPSHOT_TIMEOUT_S = 300.0
LOCK_TIMEOUT_S = 30

Session = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class Standing:
    """Both sides of a subscription at one position.

    Attributes:
        sessions: connections to the source, in the position's snapshot.
        position: of both.
        answer: the targets' versions there.
    """

    sessions: Sequence[Session]
    position: Lsn
    answer: BarrierAnswer


@contextmanager
def standing(
    dsn: str,
    barrier: BarrierOwner,
    answer_at: Callable[[Lsn], BarrierAnswer],
    *,
    sessions: int,
    is_stopping: Callable[[], bool],
) -> Iterator[Standing]:
    """Take a position that the subscription's run reaches and does not pass.

    Args:
        dsn: of the source.
        barrier: the caller's.
        answer_at: waits for the barrier's answer at a position, or brings the run there.
        sessions: how many connections read the snapshot.
        is_stopping: asked while waiting; gives up.

    Raises:
        SourceRefused: no free slot, or transactions at the source stay open.
        SourceUnreachable: no connection.
        PgsluiceError: the run passes each position; or what ``answer_at`` raises.
    """
    for attempt in range(ATTEMPTS):
        with ExitStack() as stack:
            if attempt:
                barrier.hold()
            connections, position = _snapshot(dsn, sessions, barrier, is_stopping, stack)
            answer = answer_at(position)
            if not answer.is_passed:
                yield Standing(connections, position, answer)
                return
    raise PgsluiceError(
        f"the run passed {ATTEMPTS} positions before it saw them",
        hint="its machine may be overloaded; try again, or stop the run and verify without it",
    )


def _snapshot(
    dsn: str,
    sessions: int,
    barrier: BarrierOwner,
    is_stopping: Callable[[], bool],
    stack: ExitStack,
) -> tuple[list[Session], Lsn]:
    """Sessions in a new snapshot, and its position, at which the barrier is."""
    with (
        temporary_snapshot(dsn, SNAPSHOT_TIMEOUT_S, is_stopping) as snapshot,
        source_errors("importing a snapshot"),
    ):
        barrier.move(snapshot.position)  # at once: the run may pass it
        connections: list[Session] = []
        for _ in range(sessions):
            # Hashing a large table takes as long as it takes.
            session = stack.enter_context(connect_sql(dsn, application="verify", silence_s=None))
            connections.append(session)
            import_snapshot(session, snapshot)
        return connections, snapshot.position


def compare_standing(
    session: Session,
    source: ReplicatedTable,
    rows: TargetRows,
    options: TableOptions,
    *,
    max_keys: int,
    helpers: Sequence[Session] = (),
) -> Comparison:
    """Compare a table with its target, both at the session's position.

    Args:
        session: of :class:`Standing`.
        source: the table, as the snapshot shows it.
        rows: the target's.
        options: of the subscription's tables.
        max_keys: how many differing keys of each kind are listed; 0: none are looked for.
        helpers: more sessions of the position, which share the reading.

    Raises:
        SourceRefused: the table was rewritten after the snapshot, which does not see its rows, or
            was renamed.
        PgsluiceError: a column cannot be compared.
        psycopg.Error: the source failed.
    """
    facts = source.facts
    target = target_table(facts, options, source.columns)
    # Rolled back, which gives the table's lock back.
    with session.transaction(force_rollback=True):
        _lock(session, source)
        table = ComparedTable.named(session, facts.namespace, facts.name, with_generated=True)
        return compare(
            session,
            replace(table, row_filter=source.row_filter, unlisted=source.unlisted),
            rows,
            key=target.key,
            columns=target.schema.names,
            max_keys=max_keys,
            helpers=helpers,
        )


def failure_reason(error: Exception) -> str:
    """Why a table could not be compared, for people."""
    if isinstance(error, psycopg.Error):
        return f"the source cannot be read: {server_message(error)}"
    return Failure.of(error).message


def _lock(session: Session, source: ReplicatedTable) -> None:
    """Keep the table from being rewritten, and check that the snapshot still sees its rows.

    Raises:
        SourceRefused: it was rewritten since, or another table may have its name.
    """
    facts = source.facts
    session.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s'")
    name = sql.Identifier(facts.namespace, facts.name)
    lock_for_reading(session, name, with_partitions=facts.kind == "p")
    if not has_name(session, facts.oid, facts.namespace, facts.name):
        raise SourceRefused("renamed at the source after the snapshot: verify it again")
    leaves = leaf_filenodes(session, [facts.oid])[facts.oid]
    if any(leaf.now != leaf.in_snapshot for leaf in leaves.values()):
        raise SourceRefused(
            "rewritten at the source after the snapshot (TRUNCATE, ALTER TABLE, CLUSTER …): "
            "verify it again"
        )
