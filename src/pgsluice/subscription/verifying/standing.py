"""Brings source and targets to one position, to compare them.

1. A temporary slot exports a snapshot of the source; its consistent point is the position. Sessions
   import the snapshot, and the slot is dropped.
2. A barrier at that position (:mod:`pgsluice.subscription.base.barrier`) makes the subscription's
   run report the target versions there.
3. :mod:`pgsluice.verification` compares a table in the snapshot with its target's version.

Creating the slot waits for open writing transactions, while the run continues. If the run passes
the position before it sees the barrier, the next attempt first stops its batches. If creating the
slot takes longer than batches wait, the run may pass again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from pgsluice.errors import PgsluiceError
from pgsluice.lsn import Lsn
from pgsluice.replication import connect_sql, source_errors
from pgsluice.snapshots.snapshot import import_snapshot, temporary_snapshot
from pgsluice.subscription.base.barrier import BarrierAnswer, BarrierOwner
from pgsluice.subscription.base.comparing import Session

ATTEMPTS = 5
"""How many positions to try if the run passes them before it sees the barrier."""
_SNAPSHOT_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Standing:
    """Source and targets of a subscription at one position.

    Attributes:
        sessions: connections to the source with the position's snapshot.
        position: the position of both sides.
        answer: the targets' versions at the position.
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
    """Choose a position that the subscription's run reaches and does not pass.

    Args:
        answer_at: waits for the barrier's answer at a position, or applies changes up to it.
        sessions: how many connections read the snapshot.

    Raises:
        SourceRefused: no free slot, or transactions at the source stay open.
        SourceUnreachable: no connection.
        PgsluiceError: the run passed each position; or an error of ``answer_at``.
    """
    for attempt in range(ATTEMPTS):
        with ExitStack() as stack:
            if attempt:
                barrier.hold()
            connections: list[Session] = []
            with (
                temporary_snapshot(dsn, _SNAPSHOT_TIMEOUT_S, is_stopping) as snapshot,
                source_errors("importing a snapshot"),
            ):
                barrier.move(snapshot.position)  # at once: the run may pass it
                for _ in range(sessions):
                    # Hashing a large table takes as long as it takes.
                    connection = connect_sql(dsn, application="verify", silence_s=None)
                    connections.append(stack.enter_context(connection))
                    import_snapshot(connections[-1], snapshot)
            answer = answer_at(snapshot.position)
            if not answer.is_passed:
                yield Standing(connections, snapshot.position, answer)
                return
    raise PgsluiceError(
        f"to compare the tables, `pgsluice run` has to end a batch exactly at the position of a "
        f"snapshot: in {ATTEMPTS} attempts it had already applied later changes",
        hint="the machine of the run may be overloaded: verify again later, or stop the run and "
        "then verify",
    )
