"""Appends to the chain of segments: whole transactions and references."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from pgsluice.errors import ProtocolError
from pgsluice.failpoints import failpoint
from pgsluice.lsn import Lsn
from pgsluice.spool.segments.block import InForce, RawMessages
from pgsluice.spool.segments.header import ChainHeader, Origin
from pgsluice.spool.segments.reader import SegmentInfo
from pgsluice.spool.segments.recent_commits import RecentCommit, RecentCommits
from pgsluice.spool.segments.segment import Objects
from pgsluice.spool.spool import Spool


@dataclass(slots=True)
class Written:
    """What one writer has appended since it started.

    Attributes:
        rows: the number of inserts, updates and deletes.
        last_commit_at: when the newest transaction was committed, in seconds since 1970; None
            before the first.
    """

    transactions: int = 0
    rows: int = 0
    last_commit_at: float | None = None


class ChainEnd:
    """The end of the chain, where a single writer appends.

    Attributes:
        mutex: held while the spool is changed.
        position: the last durable position, where the chain ends.
        in_force: the relations as the connection has announced them.
    """

    def __init__(self, spool: Spool, epoch: int, recent: RecentCommits, position: Lsn) -> None:
        self.spool = spool
        self.objects = Objects(spool)
        self.epoch = epoch
        self.recent = recent
        self.mutex = threading.RLock()
        self.position = position
        self.in_force: InForce = {}
        self.written = Written()

    def origin(self) -> Origin:
        """The writer, and the options in force, for the headers of its files."""
        identity = self.spool.identity
        return Origin(identity.spool_id, self.epoch, identity.publications, dict(identity.options))

    def transaction_key(self, transaction: str) -> str:
        """The key of a transaction, unique among those of all writers."""
        return f"{self.epoch:08X}-{transaction}"

    def append(
        self,
        header: ChainHeader,
        commits: Sequence[RecentCommit],
        messages: RawMessages | None = None,
        transactions: int = 1,
    ) -> SegmentInfo:
        """Append a segment, or a reference of one transaction, durably; ``commits`` are its last
        commits. If it cannot be written, nothing has changed. Raises ProtocolError if its end is
        not after the end of the chain."""
        if header.end <= self.position:
            raise ProtocolError(f"a segment would end at {header.end}, not past {self.position}")
        name, size = self.objects.put(header, messages)
        failpoint("spool.after_segment")
        self.recent.add(header.origin, self.position, commits)
        self.position = header.end
        written, relations = self.written, header.counts.relations.values()
        written.transactions += transactions
        written.rows += sum(each.inserts + each.updates + each.deletes for each in relations)
        if last := max((commit.timestamp for commit in commits), default=0):
            written.last_commit_at = last / 1e6
        return SegmentInfo(
            name, header.start, header.end, self.epoch, header.is_reference, 0.0, size,
            self.objects, header,
        )  # fmt: skip
