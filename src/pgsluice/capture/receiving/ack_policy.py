"""The rules for acknowledging: which LSN, and when a status update is due; without socket or disk.

- The store executes commands in numbered order. Only durable data is acknowledged.
- A keepalive outside a transaction means that the server has sent everything before its LSN. The
  LSN may be acknowledged once everything received before it is durable, and the LSN itself is
  durable as the received-through LSN (frontier). While a transaction is partly received, the
  frontier does not rise.
- A status update is sent at least every ``status_s``, at once when the server asks, and soon after
  new data became durable.
- An LSN that jumps ahead is compared with the server's flush LSN first (:class:`FlushLimit`).
- The frontier is written at most once in ``idle_s`` while nothing else happens, and at most
  once a second otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pgsluice.errors import ProtocolError
from pgsluice.lsn import Lsn

_SOON_S = 1.0
_NOWHERE = Lsn(0)


@dataclass(slots=True)
class AckPolicy:
    """The acknowledgement state of one connection. Times are those of the caller's monotonic clock.

    Attributes:
        flush: the LSN that the last status update acknowledged.
        status_s: the longest time between two status updates.
        ack_delay_s: how soon to send a status update after new data became durable.
        idle_s: how often an idle stream writes its received-through LSN.
        is_eager: write the received-through LSN whenever it can rise (``--once``).
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
            after_command: everything before the keepalive is durable once the command of this
                number is.
            is_held: a transaction is partly received, so the frontier cannot rise.
        """
        self.is_reply_due |= wants_reply
        if not is_held and end > self._candidate:
            self._candidate, self._candidate_command = end, after_command

    def wrote(self) -> None:
        """Note that a command was handed to the store, so the stream is not idle."""
        self._was_busy = True

    def frontier_due(self, now: float, *, done_command: int, durable: Lsn) -> Lsn | None:
        """The LSN to write as the received-through LSN now, if one is due. ``done_command``: the
        number of the last durable command."""
        if self._candidate <= durable or done_command < self._candidate_command:
            return None
        since = None if self.frontier_at is None else now - self.frontier_at
        pause = _SOON_S if self._was_busy else self.idle_s
        if since is not None and since < pause and not self.is_eager:
            return None
        self.frontier_at, self._was_busy = now, False
        return self._candidate

    def status_due(self, now: float, durable: Lsn) -> bool:
        """Whether a status update is due."""
        since = now - self.status_at
        return (
            self.is_reply_due
            or since >= self.status_s
            or (durable > self.flush and since >= self.ack_delay_s)
        )

    def sent(self, now: float, durable: Lsn) -> Lsn:
        """Note a status update that acknowledges ``durable``; returns the LSN to send."""
        self.flush = max(self.flush, durable)
        self.status_at, self.is_reply_due = now, False
        return self.flush

    def next_event_in(self, now: float) -> float:
        """Seconds until something may be due if nothing is received."""
        return max(0.0, self.status_at + self.status_s - now)


class FlushLimit:
    """Checks the LSNs of one connection that jump ahead of the server's flush LSN.

    The server does not resend acknowledged WAL. An LSN that is too high, from a faulty server or
    proxy, would become the spool's received-through LSN, and the server would then delete WAL that
    was never received. Smaller errors are not detected: that would cost a query for each commit.

    Args:
        known: an LSN that the server has flushed.
        ask: queries the server's flush LSN over SQL (on a standby: the replay LSN).
        unchecked_bytes: how far an LSN may be past the last known flush LSN without a query.
    """

    def __init__(self, known: Lsn, ask: Callable[[], Lsn], unchecked_bytes: int) -> None:
        self._known = known
        self._ask = ask
        self._unchecked_bytes = unchecked_bytes

    def check(self, lsn: int) -> None:
        """Check that the server has flushed its WAL up to ``lsn``.

        Raises:
            ProtocolError: it has not; facts ``lsn``, ``flush_lsn``.
            SourceUnreachable, SourceRefused: the server could not be queried.
        """
        if lsn <= self._known + self._unchecked_bytes:
            return
        self._known = max(self._known, self._ask())
        if lsn > self._known:
            raise ProtocolError(
                f"the server sent changes at LSN {Lsn(lsn)}, but says that its WAL is flushed up "
                f"to {self._known} only",
                hint="no change is lost: the server keeps these until pgsluice can read them. "
                "Look for errors in the server's log, and for a proxy between pgsluice and the "
                "server; then start pgsluice again",
                lsn=Lsn(lsn),
                flush_lsn=self._known,
            )
