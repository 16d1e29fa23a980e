"""What may be acknowledged, and when status is due: the rules, without socket or disk.

- Commands are handed to the store in numbered order. Only what is durable is acknowledged.
- A keepalive outside a transaction says that everything before its LSN was sent. Once all
  that was received before it is durable, and the LSN itself is written as the frontier, it
  may be acknowledged. A transaction that is being received keeps the frontier where it is.
- Status goes out at least each ``status_s``, at once when the server asks, and soon after
  something new became durable.
- The frontier is written at most once in ``idle_s`` while nothing else happens, and at most
  once a second otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from pgsluice.lsn import Lsn

_SOON_S = 1.0
_NOWHERE = Lsn(0)


@dataclass(slots=True)
class AckPolicy:
    """State of one connection's acknowledging. Times are the caller's monotonic clock.

    Attributes:
        flush: what the last status acknowledged.
        status_s: the longest time between two status updates.
        ack_delay_s: how soon after new durability status goes out.
        idle_s: how often an idle stream writes its frontier.
        is_eager: write the frontier whenever it can rise (``--once``).
    """

    flush: Lsn
    status_s: float = 10.0
    ack_delay_s: float = _SOON_S
    idle_s: float = 10.0
    is_eager: bool = False
    status_at: float = 0.0
    frontier_at: float | None = None
    is_reply_due: bool = False
    _candidate: Lsn = _NOWHERE
    _candidate_command: int = 0
    _was_busy: bool = True

    def keepalive(self, end: Lsn, *, after_command: int, is_held: bool, wants_reply: bool) -> None:
        """Note a keepalive.

        Args:
            after_command: the command that will have made durable all that came before it.
            is_held: a transaction is half received, which keeps the frontier where it is.
        """
        self.is_reply_due |= wants_reply
        if not is_held and end > self._candidate:
            self._candidate, self._candidate_command = end, after_command

    def wrote(self) -> None:
        """Note that a command was handed to the store: the stream is not idle."""
        self._was_busy = True

    def frontier_due(self, now: float, *, done_command: int, durable: Lsn) -> Lsn | None:
        """The LSN to write as the frontier now, if one is due.

        Args:
            done_command: the last command that is durable.
        """
        if self._candidate <= durable or done_command < self._candidate_command:
            return None
        since = None if self.frontier_at is None else now - self.frontier_at
        pause = _SOON_S if self._was_busy else self.idle_s
        if since is not None and since < pause and not self.is_eager:
            return None
        self.frontier_at, self._was_busy = now, False
        return self._candidate

    def status_due(self, now: float, durable: Lsn) -> bool:
        """Whether it is time for a status update."""
        since = now - self.status_at
        return (
            self.is_reply_due
            or since >= self.status_s
            or (durable > self.flush and since >= self.ack_delay_s)
        )

    def sent(self, now: float, durable: Lsn) -> Lsn:
        """Note a status update that acknowledges ``durable``; the LSN to put into it."""
        self.flush = max(self.flush, durable)
        self.status_at, self.is_reply_due = now, False
        return self.flush

    def next_event_in(self, now: float) -> float:
        """Seconds until something may be due without anything coming in."""
        return max(0.0, self.status_at + self.status_s - now)
