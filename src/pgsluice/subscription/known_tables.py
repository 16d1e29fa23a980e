"""What a look at the source makes of the tables that a subscription's record knows.

New ones come in, those that are not sent any more go or wait, and those whose rows changed
without the stream telling (:mod:`.shape`) are marked to be copied again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import psycopg

from pgsluice.spool import SpoolIdentity, TableRecord, TableState
from pgsluice.subscription.discovery import SourceTable, born_as_partitions
from pgsluice.subscription.shape import (
    Shape,
    came,
    is_moved,
    is_renamed,
    is_rewritten,
    is_ruled_otherwise,
    is_sent_again,
    is_widened,
    went,
)

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
    """A table's record after a look at its shape.

    Before the first copy there is nothing to compare; a shape that is merely other (VACUUM
    FULL) is the one to compare with from now on. Server 10 sends no TRUNCATE, so there a new
    file may be one.
    """
    if not record.is_active:
        return record
    if record.fingerprint == UNSENT:
        return replace(record, state=TableState.INITIALISE)
    before = Shape.parse(record.fingerprint)
    if before is None:
        return record
    title = f"{record.namespace}.{record.name}"
    if is_rewritten(before, table.shape):
        return replace(
            record,
            state=TableState.PARKED,
            error=f"{title} was rewritten by an ALTER TABLE, and the stream does not carry what "
            f"became of its rows\n  → copy the table again: pgsluice copy CONFIG {title}",
        )
    has_truncate = connection.info.server_version >= 110000
    if (
        (is_moved(before, table.shape) and not has_truncate)
        or is_renamed(before, table.shape)
        or is_widened(before, table.shape)
        or is_ruled_otherwise(before, table.shape)
        or is_sent_again(before, table.shape)
        or went(before, table.shape)
    ):
        return replace(record, state=TableState.INITIALISE)
    new = came(before, table.shape)
    # Of a table that has only some partitions of its root, a new one's first rows are not known
    # to be its own.
    if new if record.relations else new - born_as_partitions(connection, new):
        return replace(record, state=TableState.INITIALISE)
    return replace(record, fingerprint=table.shape.to_text(), relations=table.relations)


def followed(record: TableRecord, identity: SpoolIdentity) -> TableRecord:
    """A table's record after a look at the timelines.

    A copy that was taken past the point where a standby was promoted has rows that the new
    primary never had, and its position hides what the new primary committed at such LSNs.
    """
    if record.is_active and not identity.has(record.copied_on, record.copied_at):
        return replace(record, state=TableState.INITIALISE)
    return record
