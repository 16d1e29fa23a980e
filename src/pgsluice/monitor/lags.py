"""How far each subscription and table is behind, since when, and what it waits for.

What a target lacks is found in one place (:mod:`pgsluice.subscription.batches.lacking`). Here it
becomes bytes and seconds, with what the server and capture say of changes that were not received.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from pgsluice.lsn import Lsn
from pgsluice.monitor.spool_status import SpoolStatus
from pgsluice.spool import SpoolReader, SubscriptionRecord, TableRecord, TableState
from pgsluice.subscription.batches.lacking import Lacking, LackingChanges

_MOST_SEGMENTS = 10_000
"""Reading so many headers takes about two seconds; a spool that nobody reads may have more."""


@dataclass(frozen=True, slots=True)
class TableLag:
    """How far a table's target is behind.

    Attributes:
        bytes: the server's flush LSN minus the position that the target equals; None: not known,
            as while the server does not answer.
        seconds: the age of the oldest change that the target lacks; 0: it has all that was
            received; None: not known, as of a table that waits for a copy and has no changes in
            the spool, or after 10,000 segments without any.
        since: when that change was committed, in seconds since 1970; None: nothing is known to
            wait.
        waits_for: what keeps it back, for people; empty: nothing.
    """

    bytes: int | None = None
    seconds: float | None = None
    since: float | None = None
    waits_for: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "lag_bytes": self.bytes,
            "lag_s": self.seconds,
            "waits_since": self.since,
            "waits_for": self.waits_for or None,
        }


@dataclass(frozen=True, slots=True)
class SubscriptionLag:
    """How far a subscription is behind: as far as the last of its tables.

    Attributes:
        bytes: see :class:`TableLag`; None: the server did not say where it is.
        seconds: see :class:`TableLag`.
        tables: by relation OID.
        behind: the tables that lack changes from before the subscription's position.
    """

    bytes: int | None
    seconds: float
    tables: Mapping[int, TableLag]
    behind: frozenset[int]


class Lags:
    """Measures lags.

    Args:
        flushed: the server's flush LSN; None: not known.
        spool: its state.
        reader: of the spool.
        server_end: up to where capture knows the server to have sent everything; None: it does not
            stream.
    """

    def __init__(
        self, flushed: Lsn | None, spool: SpoolStatus, reader: SpoolReader, server_end: Lsn | None
    ) -> None:
        self._flushed = flushed
        self._spool = spool
        self._reader = reader
        self._server_end = server_end
        self._now = time.time()

    def of(self, record: SubscriptionRecord, stopped: str) -> SubscriptionLag:
        """The lag of a subscription and of each of its tables.

        Args:
            stopped: why no table is applied now, for people; empty: a run is active.
        """
        changes = LackingChanges(self._reader, _MOST_SEGMENTS)
        lacking = changes.of(record)
        tables = {
            oid: TableLag(waits_for=_reason(table, stopped))
            if oid in changes.unknown
            else self._of_table(table, lacking.get(oid), stopped)
            for oid, table in record.tables.items()
        }
        reached = min([record.position, *(each.after for each in lacking.values())])
        sinces = [each.since for each in lacking.values()]
        if self._is_unapplied(record.position):
            # None is left if a run has applied them since the record was read.
            segments = (each for each in self._reader.all_segments() if each.end > record.position)
            sinces += [each.committed_from for each in islice(segments, 1)]
        return SubscriptionLag(
            self._in_bytes(reached, lacks=bool(lacking)),
            self._age(min(sinces)) if sinces else 0.0,
            tables,
            frozenset(oid for oid, each in lacking.items() if each.after < record.position),
        )

    def _of_table(self, table: TableRecord, lacking: Lacking | None, stopped: str) -> TableLag:
        if table.state is TableState.UNPUBLISHED:
            return TableLag()
        if lacking is None:
            if table.is_to_copy:
                return TableLag(waits_for=_reason(table, stopped))
            received = max(table.applied_through, self._spool.frontier or Lsn(0))
            return TableLag(self._in_bytes(received), 0.0, waits_for=table.error or "")
        return TableLag(
            self._in_bytes(lacking.after, lacks=True),
            self._age(lacking.since),
            lacking.since,
            _reason(table, stopped),
        )

    def _in_bytes(self, position: Lsn, *, lacks: bool = False) -> int | None:
        """The server's flush LSN minus the position, or minus the frontier if all is applied.

        While capture streams, it knows up to where the server has sent everything of ours. WAL
        of other databases before that is not our lag.

        Args:
            lacks: a change past the position is in the spool.
        """
        flushed, received = self._flushed, self._spool.position
        if flushed is None:
            return None
        is_behind = received is not None and (lacks or self._is_unapplied(position))
        ours = max(received - position, 0) if received is not None and is_behind else 0
        frontier = self._spool.frontier or Lsn(0)
        if self._server_end is not None:
            return ours + max(flushed - max(self._server_end, frontier), 0)
        return max(flushed - (position if ours else max(position, frontier)), 0)

    def _is_unapplied(self, position: Lsn) -> bool:
        return self._spool.position is not None and position < self._spool.position

    def _age(self, since: float) -> float:
        return max(self._now - since, 0.0)


def _reason(table: TableRecord, stopped: str) -> str:
    """What keeps a table back, the nearest cause first."""
    if table.error:
        return table.error
    if stopped:
        return stopped
    if table.is_to_copy:
        return "its copy"
    if table.pending.due is not None:
        return f"its next merge, due at {utc(table.pending.due)}"
    return ""


def utc(seconds: float) -> str:
    """A time for people; seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
