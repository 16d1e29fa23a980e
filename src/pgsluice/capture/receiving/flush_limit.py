"""Compares LSNs of the stream that jump ahead with the server's flush LSN.

The server does not resend acknowledged WAL. An LSN that is too high, from a faulty server or proxy,
would become the spool's received-through LSN, and the server would then delete WAL that was never
received. So if an LSN is more than a segment's size past the last known flush LSN, pgsluice queries
the server's flush LSN over SQL (on a standby: the replay LSN). Smaller errors are not detected:
that would cost a query for each commit.
"""

from __future__ import annotations

from collections.abc import Callable

from pgsluice.errors import ProtocolError
from pgsluice.lsn import Lsn


class FlushLimit:
    """Checks the LSNs of one connection.

    Args:
        known: an LSN that the server has flushed.
        ask: queries the server's flush LSN.
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
                hint="pgsluice has not acknowledged these changes. Look for errors in the server's "
                "log, and for a proxy between pgsluice and the server; then start pgsluice again",
                lsn=Lsn(lsn),
                flush_lsn=self._known,
            )
