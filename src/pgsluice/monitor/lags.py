"""How far each subscription and table is behind, since when, and why.

:mod:`pgsluice.subscription.batches.lacking` finds the changes that a target lacks. This module
turns them into bytes and seconds, including changes that capture has not received yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from pgsluice.lsn import Lsn
from pgsluice.monitor.spool_status import SpoolStatus
from pgsluice.spool import SubscriptionRecord, TableRecord, TableState
from pgsluice.subscription.batches.lacking import Lacking, LackingChanges

MOST_SEGMENTS = 10_000
"""How many headers of segments to read, at most: they take about two seconds, and a spool may have
more."""


@dataclass(frozen=True, slots=True)
class TableLag:
    """How far a table's target is behind.

    Attributes:
        bytes: the server's flush LSN minus the target's position; None: unknown, for example while
            the server does not answer.
        seconds: the age of the oldest change that the target lacks; 0: it has everything that was
            received; None: unknown, as for a table that waits for a copy and has no changes in the
            spool, or after 10,000 segments without any.
        since: when that change was committed, in seconds since 1970; None: no waiting change is
            known.
        waits_for: why it waits, as text for the user; empty: it does not wait.
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
    """How far a subscription is behind: the maximum of its tables.

    Attributes:
        bytes: see :class:`TableLag`; None: the server's position is unknown.
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
        flushed: the server's flush LSN; None: unknown.
        lacking: by a subscription's name, what finds the changes that its targets lack.
        server_end: the LSN up to which the server has sent everything, as capture knows; None: it
            does not stream.
    """

    def __init__(
        self,
        flushed: Lsn | None,
        spool: SpoolStatus,
        lacking: Callable[[str], LackingChanges],
        server_end: Lsn | None,
    ) -> None:
        self._flushed = flushed
        self._spool = spool
        self._lacking = lacking
        self._server_end = server_end
        self._now = time.time()
        self._without_lag: dict[tuple[Lsn, str | None], TableLag] = {}
        """Most of 5,000 tables have the same; a scrape (docs/benchmarks.md) needs 5 ms less so."""

    def of(self, record: SubscriptionRecord, stopped: str) -> SubscriptionLag:
        """The lag of a subscription and of each of its tables.

        Args:
            stopped: why no table is applied now, as text for the user; empty: a run is active.
        """
        changes = self._lacking(record.name)
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
            every = changes.reader.all_segments()
            segments = (each for each in every if each.end > record.position)
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
            known = received, table.error
            if known not in self._without_lag:
                lag = TableLag(self._in_bytes(received), 0.0, waits_for=table.error or "")
                self._without_lag[known] = lag
            return self._without_lag[known]
        return TableLag(
            self._in_bytes(lacking.after, lacks=True),
            self._age(lacking.since),
            lacking.since,
            _reason(table, stopped),
        )

    def _in_bytes(self, position: Lsn, *, lacks: bool = False) -> int | None:
        """The server's flush LSN minus the position, or minus the received-through LSN if
        everything is applied.

        While capture streams, it knows the LSN up to which the server has sent all of our changes.
        Earlier WAL of other databases does not count as lag.

        Args:
            lacks: whether the spool has a change after the position.
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
    """Why a table waits; the most direct cause first."""
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
    """A time in UTC as text, such as ``2026-11-28 04:00:00 UTC``, from seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
