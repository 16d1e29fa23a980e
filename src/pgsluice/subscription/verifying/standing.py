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
from dataclasses import dataclass

from pgsluice.errors import PgsluiceError
from pgsluice.lsn import Lsn
from pgsluice.replication import connect_sql, source_errors
from pgsluice.snapshots import import_snapshot, temporary_snapshot
from pgsluice.subscription.base.barrier import BarrierAnswer, BarrierOwner
from pgsluice.subscription.base.comparing import Session

ATTEMPTS = 5
"""How often a position is tried that the run has passed already."""
SNAPSHOT_TIMEOUT_S = 300.0


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
