"""What is wrong now: the one rule for ``status --check``, ``/readyz`` and the metric of problems.

The thresholds are those of ``[monitor]``. Nothing is wrong with a table that is being copied, until
changes have waited for the copy for too long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version
from typing import Any

from pgsluice.config import Config, MonitorConfig
from pgsluice.events import CapturePhase
from pgsluice.monitor.source_status import SourceStatus
from pgsluice.monitor.status import Status, SubscriptionStatus
from pgsluice.monitor.wording import counted, format_bytes, format_seconds
from pgsluice.shown import first_names

_NAMED = 3


class ProblemKind(StrEnum):
    """What a problem of ``status --check`` is about."""

    SPOOL = "spool"
    SOURCE = "source"
    SLOT_MISSING = "slot_missing"
    SLOT_LOST = "slot_lost"
    SLOT_SIZE = "slot_size"
    CAPTURE = "capture"
    RUN = "run"
    LAG = "lag"
    PARKED = "parked"
    FAILING = "failing"


_READY_IN_SPITE = frozenset(
    {ProblemKind.SOURCE, ProblemKind.SLOT_SIZE, ProblemKind.PARKED, ProblemKind.FAILING}
)
"""Changes still arrive, and soon enough."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that a person has to look at, as a sentence with its subject.

    It concerns one subscription, or all (None).
    """

    kind: ProblemKind
    what: str
    subscription: str | None = None

    @property
    def prevents_ready(self) -> bool:
        """Whether ``/readyz`` says no because of this problem."""
        return self.kind not in _READY_IN_SPITE

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind.value,
            "what": self.what,
            "prevents_ready": self.prevents_ready,
        }


def find_problems(status: Status, config: Config) -> list[Problem]:
    """All that is wrong by the thresholds of ``[monitor]``, the source's problems first."""
    return [
        *_of_source(status.source, config.monitor),
        *_of_capture(status),
        *(
            problem
            for subscription in status.subscriptions
            if subscription.is_configured and subscription.is_enabled
            for problem in _of_subscription(subscription, config.monitor)
        ),
    ]


def report_json(status: Status, config: Config) -> dict[str, Any]:
    """What ``pgsluice status --json`` prints: the status, what is wrong, and the thresholds."""
    return {
        **status.to_json(),
        "problems": [problem.to_json() for problem in find_problems(status, config)],
        "limits": {
            "max_lag_s": config.monitor.max_lag_s,
            "max_slot_bytes": config.monitor.max_slot_bytes,
        },
        "version": version("pgsluice"),
    }


def _of_source(source: SourceStatus, limits: MonitorConfig) -> Iterator[Problem]:
    if source.error is not None:
        yield Problem(ProblemKind.SOURCE, f"source: {source.error}")
    slot, name = source.slot, f"slot {source.slot_name}"
    if slot is None:
        if source.is_known:
            yield Problem(ProblemKind.SLOT_MISSING, f"{name} does not exist")
        return
    if slot.is_lost or slot.wal_status == "unreserved":
        why = slot.invalidation_reason or f"its wal_status is {slot.wal_status}"
        is_lost = "has lost WAL that it needs" if slot.is_lost else "may lose WAL that it needs"
        yield Problem(ProblemKind.SLOT_LOST, f"{name} {is_lost}: {why}")
    if (kept := slot.retained_bytes or 0) > limits.max_slot_bytes:
        limit = format_bytes(limits.max_slot_bytes)
        what = f"{name} keeps {format_bytes(kept)} of WAL, more than {limit}"
        yield Problem(ProblemKind.SLOT_SIZE, what)


def _of_capture(status: Status) -> Iterator[Problem]:
    capture = status.capture
    if status.spool.error is not None:
        yield Problem(ProblemKind.SPOOL, f"spool: {status.spool.error}")
    if not capture.is_streaming and not capture.is_elsewhere:
        is_silent = capture.phase == CapturePhase.STREAMING
        phase = f"is {'silent' if is_silent else capture.phase}"
        reason = f": {capture.message}" if capture.message else ""
        what = f"capture {phase if capture.is_running else 'does not run'}{reason}"
        yield Problem(ProblemKind.CAPTURE, what)


def _of_subscription(subscription: SubscriptionStatus, limits: MonitorConfig) -> Iterator[Problem]:
    name, lag_s = subscription.name, subscription.lag_s
    if subscription.position is None:
        yield Problem(ProblemKind.RUN, f"{name}: not started yet", name)
    elif subscription.is_running is False:
        yield Problem(ProblemKind.RUN, f"{name}: no run is active", name)
    if lag_s is not None and lag_s > limits.max_lag_s:
        limit = format_seconds(limits.max_lag_s)
        what = f"{name}: {format_seconds(lag_s)} behind, more than {limit}"
        yield Problem(ProblemKind.LAG, what, name)
    parked = [table for table in subscription.tables if table.is_parked]
    failing = [table for table in subscription.tables if table.is_active and table.error]
    for kind, tables, words in (
        (ProblemKind.PARKED, parked, "parked"),
        (ProblemKind.FAILING, failing, "failing"),
    ):
        if tables:
            names = first_names([table.title for table in tables], _NAMED)
            what = f"{name}: {counted(len(tables), 'table')} {words} ({names})"
            yield Problem(kind, what, name)
