"""Promotions: whether the server continues the spool's history, and where replication starts.

A spool and a server each have a history of timelines. Up to the LSN where the two histories fork,
both have the same WAL; after it they may have different records at the same LSNs. So:

* They do not fork: replication starts from the frontier.
* They fork, and the last commit or prepare in the spool is not past that point: the server has
  everything that the lake has. Replication starts there, or at the frontier if that is lower.
* They fork, and the spool has more: the lake has data that this server lacks. Refused.
* The server is on a timeline that the spool has left: the old primary. Refused; a capture
  that runs waits for the new one.

A timeline's number does not identify it: two standbys that are promoted independently both start
the next number. So the ends of the timelines are compared, too.

The received-through LSN (frontier) may be past the switch point although no commit is. It is
lowered before the new timeline is recorded: a crash in between leaves a frontier that is too low,
which is harmless, and the next start decides the same. Positions of readers are ends of
transactions in the spool, so none of them is past the switch point.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pgsluice.catalog.server import ServerInfo, SlotInfo
from pgsluice.errors import ForeignSource, SlotLost, SourceRefused, SourceUnreachable
from pgsluice.hints import COPY_ALL_AGAIN
from pgsluice.lsn import Lsn

_END_OF_WAL = Lsn(2**63 - 1)


@dataclass(frozen=True, slots=True)
class History:
    """A timeline with its ancestors.

    Attributes:
        ends: the earlier timelines, oldest first, each with the LSN where its successor started.
    """

    timeline: int
    ends: tuple[tuple[int, Lsn], ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether the earlier timelines are known; a spool that started later may lack them."""
        return self.timeline == 1 or bool(self.ends)

    def spans(self) -> Iterator[tuple[int, Lsn]]:
        """Each timeline with its end; the newest has no end."""
        yield from self.ends
        yield self.timeline, _END_OF_WAL

    def end_of(self, timeline: int) -> Lsn | None:
        """The end of a timeline in this history; None if it is not part of it."""
        return dict(self.spans()).get(timeline)

    def fork_point(self, other: History) -> Lsn:
        """The LSN up to which both histories have the same WAL; the largest LSN if they are
        equal."""
        common = Lsn(0)
        for (mine, my_end), (theirs, their_end) in zip(self.spans(), other.spans(), strict=False):
            if mine != theirs:
                break
            common = min(my_end, their_end)
            if my_end != their_end:
                break
        return common


@dataclass(frozen=True, slots=True)
class Received:
    """The extent of a spool.

    Attributes:
        last: the end of the last commit, or a position inside a later PREPARE record.
        frontier: everything up to this LSN was received.
    """

    history: History
    last: Lsn
    frontier: Lsn


def start_on(spool: Received, server: History) -> Lsn:
    """Where replication starts on the server: the frontier, or the switch point below it.

    Raises:
        ForeignSource: the spool has commits that the server lacks; facts: ``timeline``,
            ``switch_point``, ``position``.
        SourceRefused: the server is on a timeline that the spool has left.
    """
    known = spool.history
    if server.timeline < known.timeline and server.timeline in dict(known.ends):
        switch_point = known.end_of(server.timeline)
        raise SourceRefused(
            f"the server is the old primary: it is on timeline {server.timeline}, which the spool "
            f"left at LSN {switch_point} for timeline {known.timeline}",
            hint="connect to the server that was promoted: the dsn can name both hosts, "
            "host=a,b target_session_attrs=read-write",
            timeline=server.timeline,
        )
    if known.is_known:
        fork_lsn = known.fork_point(server)
    else:
        fork_lsn = server.end_of(known.timeline) or Lsn(0)
    if spool.last > fork_lsn:
        raise ForeignSource(
            f"the server lacks changes that pgsluice has replicated: the server is on timeline "
            f"{server.timeline}, which branched off at {fork_lsn}, but the spool has changes of "
            f"timeline {known.timeline} up to {spool.last}",
            hint=f"connect to the server with timeline {known.timeline}; if this server is the "
            f"source from now on, {COPY_ALL_AGAIN}. docs/failover.md tells how to keep a standby "
            "from falling behind",
            timeline=server.timeline,
            switch_point=fork_lsn,
            position=spool.last,
        )
    return min(spool.frontier, fork_lsn)


def check_slot_is_there(slot: SlotInfo | None, name: str, server: ServerInfo) -> SlotInfo:
    """The slot, if it can be read now.

    Raises:
        SlotLost: it does not exist and will not appear.
        SourceRefused: the server is a standby, where the slot may exist after a promotion.
        SourceUnreachable: it is being synchronised.
    """
    may_come = server.is_standby and server.version_num >= 170000
    if slot is None and may_come:
        raise SourceRefused(
            f"the server is a standby that does not have slot {name!r} (yet)",
            hint="connect to the primary; docs/failover.md tells how the standby gets the slot for "
            "a promotion",
            slot=name,
        )
    if slot is None:
        raise SlotLost(
            f"slot {name!r} no longer exists: it was dropped, or this server was promoted without "
            "it",
            hint="the changes that were committed since then are lost: "
            f"{COPY_ALL_AGAIN}. From PostgreSQL 17 on, a standby can have a copy of the slot "
            "(docs/failover.md)",
            slot=name,
        )
    if slot.is_synced and (server.is_standby or slot.is_temporary):
        raise SourceUnreachable(
            f"the server is a standby, and its slot {name!r} is a copy of the primary's slot, "
            "which pgsluice can read only after the standby is promoted",
            hint="connect to the primary: the dsn can name both hosts, "
            "host=a,b target_session_attrs=read-write",
            slot=name,
        )
    return slot
