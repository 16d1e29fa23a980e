"""How long the parts of a run wait."""

from __future__ import annotations

from dataclasses import dataclass

from pgsluice.spool.active_runs import BEAT_S


@dataclass(frozen=True, slots=True)
class Waits:
    """How long the parts of a run wait, in seconds.

    Attributes:
        source_retry_s: after the source could not be queried.
        capture_s: for capture to receive up to a current position, and for the server to end a
            connection of capture. After that, the work that needs it is retried.
        verification_retry_s: after a round of verification that left tables marked.
        cuts_apart_s: between two consistent checkpoints that are kept for readers of older
            versions.
        lock_poll_s: between two questions to the server whether a table is still locked.
        keeper_after_s: how long copies run before the snapshot holder starts. It costs a quarter of
            a second of CPU, and most small copies end earlier.
        warn_every_s: between two warnings that a snapshot is held.
        beat_s: between two writes of the object that says where the run is, in a store's spool.
    """

    source_retry_s: float = 5.0
    capture_s: float = 60.0
    verification_retry_s: float = 30.0
    cuts_apart_s: float = 60.0
    lock_poll_s: float = 5.0
    keeper_after_s: float = 3.0
    warn_every_s: float = 3600.0
    beat_s: float = BEAT_S


WAITS = Waits()
