"""Checks of the slot: whether it is ours, and whether the spool can continue from its position."""

from __future__ import annotations

from collections.abc import Iterator

from pgsluice.capture.source.slot import other_slot
from pgsluice.capture.source.state import refuse_slot
from pgsluice.capture.source.timeline import History, start_on
from pgsluice.catalog import SlotInfo
from pgsluice.errors import SourceRefused
from pgsluice.hints import COPY_ALL_AGAIN
from pgsluice.monitor.wording import format_bytes
from pgsluice.preflight.facts import SourceFacts, SpoolFacts
from pgsluice.preflight.findings import Finding, error, ok, warning

_OTHER_SLOT = "choose another slot name in [source]"


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
        finding = ok("slot", "the slot does not exist yet: the first run creates it")
    yield finding


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
    history = History.of_server(system.timeline, facts.replication.switches)
    if identity.system_identifier != system.system_id or received.history == history:
        return
    try:
        start = start_on(received, history)
    except SourceRefused as refusal:
        yield error("timeline", refusal.what, refusal.hint)
    else:
        yield ok("timeline", f"{history.timeline}: the next run continues there from {start}")
