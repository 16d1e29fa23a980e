"""The last commits of a spool, which tell a restored source from one that crashed.

A slot's acknowledged LSN moves back if its server crashes, and if the server is restored from a
backup. Only after a crash does the server resend the same commits
(:mod:`pgsluice.capture.source.comparison`).

The chain of segments has the commits until retention deletes them, and its writer has the last ones
in memory. So the file is not written with each segment, but only before segments are deleted, and
when the request to the server changes. The remembered commits are complete: there is no other
commit between ``since`` and the end of the chain.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pgsluice.errors import SpoolHole
from pgsluice.lsn import Lsn
from pgsluice.spool.layout import COMMITS
from pgsluice.spool.segments.block import BEGIN, COMMIT, COUNTED, MESSAGE, Int64s, MessageBlock
from pgsluice.spool.segments.header import Origin, ReferenceHeader
from pgsluice.spool.segments.reader import SegmentInfo, SpoolReader

REMEMBERED = 1000
"""How many commits to remember: a server does not resend more of them."""
_RESTORE = (
    "restore the file. Without it (delete it then) a server that was restored from a copy is "
    "recognised only by what the spool's segments still have"
)


class RecentCommit(NamedTuple):
    """A transaction, or a non-transactional message (xid and timestamp 0).

    Attributes:
        end: its position, which follows from the LSN of its commit record.
        xid: the top-level transaction's xid, 32 bits.
        timestamp: the commit time in microseconds since 1970-01-01 UTC.
        is_empty: whether it has no changes. Whether a server sends such a commit depends on its
            version, and on whether the transaction was streamed.
    """

    end: Lsn
    xid: int
    timestamp: int
    is_empty: bool


@dataclass(frozen=True, slots=True)
class Request:
    """The publications, and pgoutput's options, that decide which commits a server sends."""

    publications: tuple[str, ...]
    messages: bool
    origin: str

    @classmethod
    def of(cls, publications: Iterable[str], options: Mapping[str, str]) -> Request:
        """The request of START_REPLICATION, from a spool's identity or a file's header."""
        messages = options.get("messages", "false") == "true"
        return cls(tuple(sorted(publications)), messages, options.get("origin", "any"))


@dataclass(frozen=True, slots=True)
class Remembered:
    """A spool's last commits, in the order of their positions, and the request to which the server
    sent them. There are no other commits between the position ``since`` and the last one."""

    request: Request
    since: Lsn
    commits: tuple[RecentCommit, ...]


def _from_json(raw: Mapping[str, Any]) -> tuple[Remembered, Lsn]:
    """The commits in the file, and the position through which segments may be deleted."""
    request = Request(tuple(raw["publications"]), bool(raw["messages"]), str(raw["origin"]))
    commits = tuple(
        RecentCommit(Lsn(end), int(xid), int(timestamp), bool(is_empty))
        for end, xid, timestamp, is_empty in raw["commits"]
    )
    return Remembered(request, Lsn.parse(raw["since"]), commits), Lsn.parse(raw["through"])


def commits_of(block: MessageBlock) -> list[RecentCommit]:
    """The last commits of whole transactions, in order; one more than is remembered."""
    last = REMEMBERED + 1
    begins = np.flatnonzero(block.tags == BEGIN)[-last:]
    commits = np.flatnonzero(block.tags == COMMIT)[-last:]
    alone = np.flatnonzero((block.tags == MESSAGE) & (block.xids == 0))[-last:]
    found = [RecentCommit(Lsn(end), 0, 0, False) for end in block.positions[alone].tolist()]
    if len(begins):
        first = int(begins[0])
        counted: Int64s = COUNTED[block.tags[first:]].cumsum()
        is_empty = counted[commits - first] == counted[begins - first]
        columns = (block.positions, block.xids, block.commit_timestamps)
        rows = zip(
            *(column[commits].tolist() for column in columns), is_empty.tolist(), strict=True
        )
        found += [RecentCommit(Lsn(end), xid, time, empty) for end, xid, time, empty in rows]
    return sorted(found)[-last:] if len(alone) else found


def commit_of(reference: ReferenceHeader) -> RecentCommit:
    """The commit of a transaction in parts."""
    is_empty = reference.counts.changes == 0
    return RecentCommit(reference.end, reference.xid, reference.commit_timestamp, is_empty)


class RecentCommits:
    """The last commits of one spool, for its writer, by a reader of the spool, and the end of the
    chain. The chain and the file are read when first needed."""

    def __init__(self, reader: SpoolReader, position: Lsn) -> None:
        self._reader = reader
        self._spool = reader.spool
        self._began = self._since = position
        self._request: Request | None = None
        self._commits: deque[RecentCommit] = deque()
        self._is_loaded = False
        self._saved_through = Lsn(0)

    def add(self, origin: Origin, after: Lsn, commits: Sequence[RecentCommit]) -> None:
        """Note commits that were appended to the chain in a file of this origin, after this
        position."""
        self._expect(Request.of(origin.publications, origin.options), after)
        self._commits.extend(commits)
        self._shorten()

    def remembered(self) -> Remembered | None:
        """The last commits; None: the request to which the server sent them is unknown."""
        self._load()
        if self._request is None:
            return None
        return Remembered(self._request, self._since, tuple(self._commits))

    def begin(self, request: Request, frontier: Lsn) -> None:
        """Record durably what is requested from the received-through LSN on."""
        self._load()
        if request != self._request:
            self._expect(request, frontier)
            self._saved_through = Lsn(0)
            self.save(frontier)

    def save(self, through: Lsn) -> None:
        """Make the remembered commits durable before segments through a position are deleted."""
        self._load()
        if self._request is None or through <= self._saved_through:
            return
        last = self._commits[-1].end if self._commits else through
        self._saved_through = max(through, last)
        raw = {
            "through": str(self._saved_through),
            "since": str(self._since),
            "publications": self._request.publications,
            "messages": self._request.messages,
            "origin": self._request.origin,
            "commits": list(self._commits),
        }
        self._spool.write_state(COMMITS, raw)

    def lower(self, lsn: Lsn) -> None:
        """Note that the source has another history after a position; there is no commit after
        it."""
        self._load()
        self._since, self._saved_through = min(self._since, lsn), min(self._saved_through, lsn)

    def _expect(self, request: Request, after: Lsn) -> None:
        """Drop the commits that the server sent to another request."""
        if request == self._request:
            return
        if self._request is not None or self._is_loaded:
            self._commits.clear()
            self._since, self._is_loaded = after, True
        self._request = request

    def _shorten(self) -> None:
        while len(self._commits) > REMEMBERED:
            self._since = self._commits.popleft().end

    def _load(self) -> None:
        """Insert the commits of earlier writers at the front, if there is room."""
        if self._is_loaded:
            return
        self._is_loaded = True
        if self._since > self._began:
            return
        kept, through = self._spool.read_state(COMMITS, _from_json, _RESTORE) or (None, Lsn(0))
        if kept is not None and kept.since >= self._began:  # the request is newer than the chain
            self._join(kept, through)
            return
        latest_first = self._reader.all_segments()[::-1]
        self._spool.storage.will_open([info.name for info in latest_first])
        for info in latest_first:
            if info.end > self._began:
                continue
            if info.end < self._since or len(self._commits) > REMEMBERED:
                break  # before a hole it would not be complete
            try:
                request, commits = self._read(info)
            except SpoolHole:
                break
            if self._request not in (None, request):
                break
            self._request, self._since = request, info.start
            self._commits.extendleft(reversed(commits))
        if kept is not None and through >= self._since:
            self._join(
                kept, through
            )  # else an older version of pgsluice has deleted segments since then
        self._shorten()

    def _read(self, info: SegmentInfo) -> tuple[Request, list[RecentCommit]]:
        origin = info.header.origin
        request = Request.of(origin.publications, origin.options)
        if info.reference is not None:
            return request, [commit_of(info.reference)]
        return request, [one for view in self._reader.views(info) for one in commits_of(view.block)]

    def _join(self, kept: Remembered, through: Lsn) -> None:
        if self._request not in (None, kept.request):
            return
        self._request = kept.request
        self._saved_through = min(through, self._began)
        earlier = [one for one in kept.commits if one.end <= self._since]
        self._since = kept.since
        while self._commits and self._commits[0].end <= self._since:
            self._commits.popleft()
        self._commits.extendleft(reversed(earlier))
