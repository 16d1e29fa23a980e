"""Stores the position in a Delta table's own commits.

Every commit of ours carries transaction identifiers (Delta's ``txn`` actions), which survive
checkpoints, compaction and vacuum:

===================================  ====================================================
``pgsluice:<spool>:<oid>:<copy>``    version = LSN up to which the table is applied
``pgsluice.owner``                   version = a number made of spool id and relation OID
``pgsluice.copy``                    version = the copy number
``pgsluice.version``                 version = the table version that this commit makes
===================================  ====================================================

deltalake reads a transaction version only by its name and cannot list the names. So the last three
names are fixed: they identify the owner of the table, and the version after which others may have
written. A commit's metadata also has the position, for readers of the table's history. Source: the
Delta protocol, "Transaction Identifiers".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pgsluice.errors import Remedy, TableError
from pgsluice.hints import copy_again
from pgsluice.lsn import Lsn
from pgsluice.sinks.identity import CommitMarker, TargetIdentity
from pgsluice.stores.contract import Folder

if TYPE_CHECKING:
    from pgsluice.sinks.delta.log.snapshot import DeltaSnapshot

OWNER, COPY, VERSION = "pgsluice.owner", "pgsluice.copy", "pgsluice.version"

HARMLESS = frozenset(
    {
        "OPTIMIZE",
        "VACUUM START",
        "VACUUM END",
        "SET TBLPROPERTIES",
        "UNSET TBLPROPERTIES",
        "SET TABLE PROPERTIES",
        "UPDATE COLUMN METADATA",
        "UPDATE FIELD METADATA",
        "UPDATE TABLE METADATA",
        "ADD COLUMN",
        "ADD COLUMNS",
        "ADD CONSTRAINT",
        "ADD FEATURE",
        "COMPUTE STATS",
        "FSCK",
        "REORG",
    }
)
"""Operations that do not change the data, regardless of who runs them."""


def application_id(identity: TargetIdentity) -> str:
    """The name under which a table keeps the LSN of this spool, relation and copy."""
    return f"pgsluice:{identity.spool_id}:{identity.relation_oid}:{identity.copy_number}"


def transactions(identity: TargetIdentity, position: Lsn, version: int) -> dict[str, int]:
    """The transaction identifiers that mark a commit as ours, with their versions.

    Args:
        identity: the origin of the table's rows after it.
        position: the position up to which the table is applied after it.
        version: the table version that it creates. It is known before the commit, which becomes
            this version or fails.
    """
    return {
        application_id(identity): int(position),
        OWNER: identity.owner,
        COPY: identity.copy_number,
        VERSION: version,
    }


def information(identity: TargetIdentity, position: Lsn) -> dict[str, str]:
    """The information about a commit of ours in the table's history."""
    return {
        "pgsluice.position": str(position),
        "pgsluice.spool": identity.spool_id,
        "pgsluice.relation": str(identity.relation_oid),
        "pgsluice.copy": str(identity.copy_number),
    }


def read_marker(
    version_of: Callable[[str], int | None], identity: TargetIdentity
) -> CommitMarker | None:
    """The marker of our newest commit; None if pgsluice never wrote the table.

    Args:
        version_of: the version of a transaction identifier; None if no commit had it.
        identity: the identity with the position's name; its copy number is not used.
    """
    owner = version_of(OWNER)
    copy_number = version_of(COPY)
    if owner is None or copy_number is None:
        return None
    lsn = version_of(application_id(replace(identity, copy_number=copy_number)))
    return CommitMarker(owner, copy_number, None if lsn is None else Lsn(lsn))


def refuse_foreign_changes(
    snapshot: DeltaSnapshot, table: str, operations: Callable[[Folder, int, int], Sequence[str]]
) -> None:
    """Refuse a table whose data others changed since our last commit (``operations``:
    :func:`.reading.operations`).

    Raises:
        TableError: others changed it, or the log no longer shows whether they did.
    """
    location, current = snapshot.folder.uri, snapshot.version
    ours = snapshot.transaction_version(VERSION)
    if ours is None or ours == current:
        return
    if ours > current:
        raise _changed(table, location, "the table was restored to an earlier version")
    since = operations(snapshot.folder, ours, current)
    others = sorted({*since} - HARMLESS)
    if others:
        raise _changed(table, location, f"{', '.join(others)} since pgsluice's last commit")
    if len(since) < current - ours:
        raise _changed(table, location, "the log no longer has pgsluice's last commit")


def refuse_lost_commit(table: str, location: str, version: int) -> None:
    """Refuse a table that lacks changes before its position: only a copy has them.

    The version tells one such loss from the next one.
    """
    raise TableError(
        f"table {table}: another program has overwritten a commit of pgsluice in the log of the "
        f"Delta table at {location}, and later commits up to version {version} followed",
        hint="pgsluice copies the table again, which restores its rows. Let another program write "
        "to this table only if its documentation says that several programs can write to a table "
        "of this store at the same time",
        remedy=Remedy.COPY,
        table=table,
        location=location,
    )


def _changed(table: str, location: str, change: str) -> TableError:
    return TableError(
        f"another program has changed the Delta table at {location}: {change}",
        hint=f"to replace the table's rows by a new copy: {copy_again(table)}\n"
        'to keep the changes of other programs: set foreign_writes = "allow" in the subscription',
        table=table,
        location=location,
    )
