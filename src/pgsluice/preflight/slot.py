"""Checks of the slot: whether it is ours, and whether the spool can continue from its position."""

from __future__ import annotations

import time
from collections.abc import Iterator

from pgsluice.capture.source.slot import other_slot
from pgsluice.capture.source.state import refuse_slot
from pgsluice.capture.source.timeline import History, start_on
from pgsluice.catalog.server import SlotInfo
from pgsluice.errors import SourceRefused
from pgsluice.hints import COPY_ALL_AGAIN
from pgsluice.monitor.lags import utc
from pgsluice.monitor.wording import format_bytes
from pgsluice.preflight.facts import SourceFacts, SpoolFacts
from pgsluice.preflight.findings import Finding, error, ok, warning
from pgsluice.replication import takes_failover

_OTHER_SLOT = "choose another slot name in [source]"
_INACTIVE_S = 3600.0
"""A stop for longer than this is more than an update or a restart."""


def check_slot(facts: SourceFacts) -> Iterator[Finding]:
    """Whether the slot exists, is ours, and still has the WAL that the spool needs."""
    slot, frontier = facts.slot, facts.spool.frontier
    if slot is not None:
        finding = _unusable(facts, slot) or _usable(facts.spool, slot)
    elif frontier is not None:
        finding = error(
            "slot",
            f"the slot no longer exists, but the spool ends at {frontier}: the changes after that "
            "position are lost",
            COPY_ALL_AGAIN,
        )
    else:
        kind = " as a failover slot (docs/failover.md)" if _makes_failover(facts) else ""
        finding = ok("slot", f"the slot does not exist yet: the first run creates it{kind}")
    yield finding


def check_failover(facts: SourceFacts) -> Iterator[Finding]:
    """Whether standbys can take over the slot, and whether one of them holds the stream up."""
    slot = facts.slot
    if slot is None:
        return
    if facts.standby_slots and not slot.failover and _makes_failover(facts):
        yield warning(
            "failover",
            f"the server has standbys, and slot {slot.name} is not a failover slot: after the "
            "promotion of a standby, all tables need a new copy",
            'stop `pgsluice run`, open a replication connection (psql "dbname=… '
            'replication=database"), and run: '
            f"ALTER_REPLICATION_SLOT {slot.name} (FAILOVER true)\n"
            "docs/failover.md has the settings of the standby",
        )
    absent = [name for name in facts.awaited_slots if not facts.standby_slots.get(name, False)]
    if slot.failover and absent:
        yield warning(
            "failover",
            f"the server sends nothing to slot {slot.name} until these slots of standbys, which "
            f"synchronized_standby_slots names, are in use: {', '.join(absent)}",
            "start each standby that uses one of them, or take the slot out of "
            "synchronized_standby_slots for as long as its standby is away",
        )


def _makes_failover(facts: SourceFacts) -> bool:
    return takes_failover(
        facts.server.version_num,
        is_standby=facts.server.is_standby,
        two_phase=facts.config.source.two_phase,
    )


def _unusable(facts: SourceFacts, slot: SlotInfo) -> Finding | None:
    """Why capture would refuse the slot; None if it would not."""
    try:
        refuse_slot(
            slot,
            facts.server.database,
            facts.spool.frontier,
            two_phase=facts.config.source.two_phase,
            has_frontier=facts.spool.has_frontier,
        )
    except SourceRefused as refusal:
        return error("slot", refusal.what, refusal.hint)
    return None


def _usable(spool: SpoolFacts, slot: SlotInfo) -> Finding:
    held = f"slot {slot.name} holds {format_bytes(slot.retained_bytes)} of WAL"
    if slot.wal_status == "unreserved":
        return warning(
            "slot",
            f"{held}, more than max_slot_wal_keep_size allows: the server may remove this WAL soon",
            "start `pgsluice run CONFIG` at once, so that it receives the changes before that",
        )
    since = slot.inactive_since
    if slot.active_pid is None and since is not None:
        held += f", not in use since {utc(since)}"
    if slot.active_pid is not None and (spool.frontier is not None or spool.unreadable):
        return ok("slot", f"{held}, in use by the server's process {slot.active_pid}")
    if spool.unreadable is not None:  # which is an error of its own
        return ok("slot", held)
    if spool.frontier is None:
        setting = other_slot(slot.name, "new")
        if slot.active_pid is not None:
            return warning(
                "slot",
                f"slot {slot.name} is in use by the server's process {slot.active_pid}, but this "
                "spool has never used the slot: another pgsluice uses it",
                f"{_OTHER_SLOT}: {setting}",
            )
        return warning(
            "slot",
            f"slot {slot.name} exists, but this spool has never used it: another program may use "
            "it",
            f"{_OTHER_SLOT}: {setting}\n"
            f"or drop the slot: SELECT pg_drop_replication_slot('{slot.name}');",
        )
    if since is not None and time.time() - since > _INACTIVE_S:
        return warning(
            "slot",
            f"{held}: the server keeps WAL until somebody reads from the slot",
            "start `pgsluice run CONFIG`, or remove the slot by `pgsluice drop CONFIG` if nobody "
            "needs it",
        )
    return ok("slot", held)


def check_timeline(facts: SourceFacts) -> Iterator[Finding]:
    """Whether capture would follow a promotion: the same decision, without its effects.

    No finding if the spool belongs to another system, or is already on the server's timeline.
    Prepared transactions in the spool are not considered, because only capture knows them.
    """
    identity, received = facts.spool.identity, facts.spool.received
    system = facts.replication.identity
    if identity is None or received is None or system is None:
        return
    history = History(system.timeline, facts.replication.switches)
    if identity.system_identifier != system.system_id or received.history == history:
        return
    try:
        start = start_on(received, history)
    except SourceRefused as refusal:
        yield error("timeline", refusal.what, refusal.hint)
    else:
        yield ok("timeline", f"{history.timeline}: the next run continues there from {start}")
