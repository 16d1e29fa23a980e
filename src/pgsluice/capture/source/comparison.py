"""Compares commits that a server resends with those that the spool remembers.

The acknowledged LSN of a slot is below the spool's received-through LSN (frontier) after a crash of
the server, and after the server was restored from a backup. After a crash, the server resends
exactly the same commits up to the frontier. Any other server has another history, even if its WAL
continues past the frontier.

The comparison uses a separate connection, before the one that receives, so that no message of
another history gets into the spool, and a server's decisions at the first changes of a connection
still happen past the frontier (ADR 0040). It acknowledges nothing: that would move the slot, and
the next start would have nothing to compare.

Ignored are transactions without changes, which a server sends or not by its version, PREPARE and
ROLLBACK PREPARED: only commits change a target.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

from pgsluice.errors import ForeignSource, SourceUnreachable
from pgsluice.hints import COPY_ALL_AGAIN
from pgsluice.lsn import Lsn
from pgsluice.replication import ReplicationConnection
from pgsluice.spool.segments.recent_commits import RecentCommit, Remembered
from pgsluice.wire import (
    POSTGRES_EPOCH_US,
    XLOG_DATA_HEADER,
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Keepalive,
    LogicalMessage,
    Prepare,
    StandbyStatusUpdate,
    XLogData,
    decode_message,
)

_HINT = (
    "if the dsn leads to another server than before, such as a clone, connect to the server that "
    f"the spool was filled from; if this server is the source from now on, {COPY_ALL_AGAIN}"
)
_ASK_S = 0.5
"""How often to ask the server for its position: an idle server reports it only once."""
_WAIT_S = 0.2
_NOT_ACKNOWLEDGED = Lsn(0)
_CHANGES = frozenset(b"IUDT")
_ENDS = frozenset(b"BCbPKM")


class Comparison:
    """The commits that the server has to resend.

    Args:
        start: where replication starts; nothing up to there is compared.

    Attributes:
        request: the request to which the server had sent these commits.
        matched: everything up to this LSN was compared.
    """

    def __init__(self, remembered: Remembered, start: Lsn, frontier: Lsn) -> None:
        self.request = remembered.request
        self.start = self.matched = start
        self._frontier = frontier
        self._expected = deque(one for one in remembered.commits if one.end > start)
        self.is_over = start >= frontier

    def commit(self, sent: RecentCommit, *, was_prepared: bool = False) -> None:
        """Compare a commit that the server resends.

        Args:
            was_prepared: it is a COMMIT PREPARED. With filtered origins, the server omits the
                PREPARE of another origin, but maybe not its commit; the spool has nothing of it
                then.

        Raises:
            ForeignSource: the spool does not have this commit, or has another one before it.
        """
        if self.is_over:
            return
        if sent.end > self._frontier:
            self.passed(sent.end)
            return
        self._skip(sent.end)
        expected = self._expected[0] if self._expected else None
        if expected is not None and expected[:3] == sent[:3]:
            self._expected.popleft()
        elif not sent.is_empty and not (was_prepared and self.request.origin == "none"):
            raise _refusal(f"the server has {_words(sent)}, which the spool does not have")
        self.matched = sent.end

    def passed(self, lsn: Lsn) -> None:
        """Note that the server has sent everything up to a position; raises ForeignSource if a
        commit of the spool is missing."""
        if self.is_over:
            return
        self._skip(Lsn(min(lsn, self._frontier) + 1))
        self.matched = max(self.matched, min(lsn, self._frontier))
        self.is_over = lsn >= self._frontier

    def _skip(self, end: Lsn) -> None:
        """Skip remembered commits without changes before a position."""
        while self._expected and self._expected[0].end < end:
            expected = self._expected.popleft()
            if not expected.is_empty:
                raise _refusal(f"the spool has {_words(expected)}, which the server does not have")


def _words(commit: RecentCommit) -> str:
    if not commit.xid:
        return f"a message at {commit.end}"
    at = datetime.fromtimestamp(commit.timestamp / 1_000_000, UTC)
    return f"a commit at {commit.end} (xid {commit.xid}, {at:%Y-%m-%d %H:%M:%S.%f} UTC)"


def _refusal(difference: str) -> ForeignSource:
    return ForeignSource(
        f"the server was restored from an older state, or is another server: {difference}",
        hint=_HINT,
    )


class ComparedStream:
    """Reads a stream and compares it; the server sends it with ``streaming`` off.

    Args:
        connection: a connection after START_REPLICATION at the comparison's start.
        status_s: the longest time between two status updates.
        silence_s: give up a server that sends nothing for this long; 0: never.
    """

    def __init__(
        self,
        connection: ReplicationConnection,
        comparison: Comparison,
        *,
        status_s: float,
        silence_s: float,
    ) -> None:
        self._connection = connection
        self._comparison = comparison
        self._status_s = status_s
        self._silence_s = silence_s
        self._is_inside = False
        self._is_empty = True
        self._xid = 0

    def run(self, is_stopping: Callable[[], bool]) -> None:
        """Compare until everything was compared, or until asked to stop.

        Raises:
            ForeignSource: the server has another history.
            SourceUnreachable, SlotLost, SourceRefused: the server ended the stream.
            ProtocolError: a message is malformed.
        """
        asked_at = heard_at = time.monotonic()
        self._ask()
        while not self._comparison.is_over and not is_stopping():
            frame, now = self._connection.receive(), time.monotonic()
            if now - asked_at >= min(_ASK_S, self._status_s):
                asked_at = now
                self._ask()
            if frame is not None:
                heard_at = now
                self._follow(frame)
                continue
            if self._silence_s and now - heard_at >= self._silence_s:
                raise SourceUnreachable(
                    f"the server has sent nothing for {self._silence_s:g} s, although it was "
                    "asked to reply"
                )
            self._connection.wait(_WAIT_S)

    def _ask(self) -> None:
        """Ask for the server's position without acknowledging anything."""
        nothing = _NOT_ACKNOWLEDGED
        timestamp = time.time_ns() // 1000 - POSTGRES_EPOCH_US
        self._connection.send_status(
            StandbyStatusUpdate(nothing, nothing, nothing, timestamp, reply_requested=True)
        )

    def _follow(self, frame: bytes) -> None:
        if frame[:1] != XLogData.tag.encode():
            message = Keepalive.decode(frame)
            if not self._is_inside:
                self._comparison.passed(message.end)
            return
        tag = frame[XLOG_DATA_HEADER.size : XLOG_DATA_HEADER.size + 1]
        if not tag or tag[0] in _CHANGES:
            self._is_empty = False
        elif tag[0] in _ENDS:
            self._follow_end(frame[XLOG_DATA_HEADER.size :])

    def _follow_end(self, data: bytes) -> None:
        match message := decode_message(data):
            case Begin(xid=xid):
                self._is_inside, self._is_empty, self._xid = True, True, xid
            case BeginPrepare():
                self._is_inside = True
            case Prepare():
                self._is_inside = False
            case LogicalMessage(is_transactional=False, lsn=lsn):
                self._comparison.commit(RecentCommit(Lsn(lsn + 1), 0, 0, is_empty=False))
            case LogicalMessage():
                self._is_empty = False
            case Commit() | CommitPrepared():
                was_prepared = isinstance(message, CommitPrepared)
                self._is_inside = False
                sent = RecentCommit(
                    message.end_lsn,
                    message.xid if isinstance(message, CommitPrepared) else self._xid,
                    message.commit_timestamp + POSTGRES_EPOCH_US,
                    is_empty=self._is_empty and not was_prepared,
                )
                self._comparison.commit(sent, was_prepared=was_prepared)
