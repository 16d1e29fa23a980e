"""What a look at the source makes of the tables that a subscription's record knows.

New ones come in, those that are not sent any more go or wait, and those whose rows changed
without the stream telling (:mod:`pgsluice.schema_rules`) are marked to be copied again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import psycopg

from pgsluice.schema_rules import (
    CopyAgain,
    Look,
    Park,
    SourceFingerprint,
    added_leaves,
    reconcile_source,
)
from pgsluice.spool import SpoolIdentity, TableRecord, TableState
from pgsluice.subscription.discovery import SourceTable, born_as_partitions

logger = logging.getLogger(__name__)

UNSENT = "unsent"
"""Fingerprint of a table that the publications do not send now: what changes meanwhile does not
come, so that it is copied again should they send it once more."""


def add(
    table: SourceTable,
    added: TableRecord,
    known: dict[int, TableRecord],
    left: dict[int, TableRecord],
    live: Collection[int],
) -> None:
    """Take a table into the record; one that was dropped under its name makes way for it.

    Args:
        table: as the source has it.
        added: its record, if its name is free.
        known: the record's tables by OID, which change.
        left: those that were published once, likewise.
        live: the OIDs that are published now.
    """
    if table.facts.oid in left:
        # What changed meanwhile has not come. A rename kept its target's name.
        back = left.pop(table.facts.oid)
        known[table.facts.oid] = replace(
            back, state=TableState.INITIALISE, error=None, deferred=False
        )
        return
    for oid, other in [*known.items(), *left.items()]:
        if (other.namespace, other.name) != (added.namespace, added.name):
            continue
        if oid in live:
            added = replace(
                added,
                state=TableState.PARKED,
                error=f"the target {added.namespace}.{added.name} belongs to a table that was "
                f"renamed since\n  → give this table another name, or drop the other one",
            )
        else:
            # A new table under an old name has another content: copied, whatever is set.
            known.pop(oid, None)
            left.pop(oid, None)
            added = replace(
                added,
                state=TableState.INITIALISE,
                copy_number=other.copy_number,
                predecessor_oids=(*other.predecessor_oids, oid),
            )
    known[table.facts.oid] = added


def remove(
    known: dict[int, TableRecord],
    left: dict[int, TableRecord],
    gone: Collection[int],
    *,
    has_own: bool,
) -> None:
    """What is not sent any more.

    The server's publications stop the stream, and what came before is applied; ours, and having
    none of ours any more, stop the table here and now. Its target stays as it is.

    Args:
        known: the record's tables by OID, which change.
        left: those that were published once, likewise.
        gone: those that are not published now.
        has_own: whether publications of ours choose.
    """
    for oid in gone:
        if has_own or known[oid].relations:
            table = left[oid] = known.pop(oid)
            logger.info("%s.%s is not published any more", table.namespace, table.name)
        elif known[oid].is_active:
            known[oid] = replace(known[oid], fingerprint=UNSENT)


def compared(
    connection: psycopg.Connection[Any], record: TableRecord, table: SourceTable
) -> TableRecord:
    """A table's record after a look at its source.

    Before the first copy there is nothing to compare; a harmless difference, such as a new file
    after VACUUM FULL, becomes the new baseline.
    """
    if not record.is_active:
        return record
    if record.fingerprint == UNSENT:
        return replace(record, state=TableState.INITIALISE)
    before = SourceFingerprint.parse(record.fingerprint)
    if before is None:
        return record
    title = f"{record.namespace}.{record.name}"
    look = Look(
        title,
        before,
        table.fingerprint,
        server_version=connection.info.server_version,
        created_empty=born_as_partitions(connection, added_leaves(before, table.fingerprint)),
        has_some_leaves=bool(record.relations),
    )
    match reconcile_source(look):
        case Park(why, hint):
            return replace(record, state=TableState.PARKED, error=f"{why}\n  → {hint}")
        case CopyAgain(why):
            logger.info("%s: it is copied again", why)
            return replace(record, state=TableState.INITIALISE)
        case _:
            return replace(
                record, fingerprint=table.fingerprint.to_text(), relations=table.relations
            )


def followed(record: TableRecord, identity: SpoolIdentity) -> TableRecord:
    """A table's record after a look at the timelines.

    A copy that was taken past the point where a standby was promoted has rows that the new
    primary never had, and its position hides what the new primary committed at such LSNs.
    """
    if record.is_active and not identity.has(record.copied_on, record.copied_at):
        return replace(record, state=TableState.INITIALISE)
    return record
