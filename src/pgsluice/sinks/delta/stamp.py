"""The position in a Delta table's own commits.

Every commit of ours carries transaction identifiers (Delta's ``txn`` actions), which survive
checkpoints, compaction and vacuum:

===================================  ====================================================
``pgsluice:<spool>:<oid>:<copy>``    version = LSN up to which the table is applied
``pgsluice.owner``                   version = a number made of spool id and relation OID
``pgsluice.copy``                    version = the copy number
``pgsluice.version``                 version = the table version that this commit makes
===================================  ====================================================

deltalake reads such a version only for a name that is known, so the last three have fixed
names: they tell whose table it is, and from which version on others may have written. Commits
also name the position in their metadata, for people who look at the table's history.
Source: the Delta protocol, "Transaction Identifiers".
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from deltalake import CommitProperties, DeltaTable, Transaction

from pgsluice.errors import TableError
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import Position

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
"""Operations of others that leave the data as it is."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What our newest commit in a table says.

    Attributes:
        owner: whose table it is, as :func:`owner_number` gives it.
        copy_number: of the newest copy.
        version: the table version of that commit.
    """

    owner: int
    copy_number: int
    version: int


def owner_number(position: Position) -> int:
    """Spool and relation as one number: what a transaction's version can hold."""
    name = f"{position.spool_id}:{position.relation_oid}".encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:8], "big") >> 1


def application_id(position: Position) -> str:
    """The name under which a table keeps the LSN of this spool, relation and copy."""
    return f"pgsluice:{position.spool_id}:{position.relation_oid}:{position.copy_number}"


def commit_properties(position: Position, version: int) -> CommitProperties:
    """What makes a commit ours: it brings the table to ``position`` as ``version``.

    The version is known before the commit, since a commit that does not become exactly this
    version fails: there is no retry inside deltalake.
    """
    return CommitProperties(
        app_transactions=[
            Transaction(application_id(position), int(position.lsn)),
            Transaction(OWNER, owner_number(position)),
            Transaction(COPY, position.copy_number),
            Transaction(VERSION, version),
        ],
        custom_metadata={
            "pgsluice.position": str(position.lsn),
            "pgsluice.spool": position.spool_id,
            "pgsluice.relation": str(position.relation_oid),
            "pgsluice.copy": str(position.copy_number),
        },
        max_commit_retries=0,
    )


def read_stamp(handle: DeltaTable) -> Stamp | None:
    """What our newest commit says; None for a table that pgsluice never wrote."""
    owner = handle.transaction_version(OWNER)
    copy_number = handle.transaction_version(COPY)
    version = handle.transaction_version(VERSION)
    if owner is None or copy_number is None or version is None:
        return None
    return Stamp(owner, copy_number, version)


def read_position(handle: DeltaTable, identity: Position, table: str) -> Position:
    """Where the table is.

    Args:
        identity: the spool and relation that it must belong to.
        table: its name, for messages.

    Raises:
        TableError: it is not ours.
    """
    stamp = read_stamp(handle)
    where: dict[str, Any] = {"table": table, "location": handle.table_uri}
    if stamp is None:
        raise TableError(
            f"there is a Delta table at {handle.table_uri} that pgsluice did not make",
            hint="choose another path for the sink; or have a copy replace what is there: "
            f"pgsluice copy CONFIG {table}",
            foreign=True,
            **where,
        )
    position = Position(Lsn(0), identity.spool_id, identity.relation_oid, stamp.copy_number)
    lsn = handle.transaction_version(application_id(position))
    if stamp.owner != owner_number(identity) or lsn is None:
        raise TableError(
            f"the Delta table at {handle.table_uri} carries the position of another source",
            hint="move it away, then copy the table: pgsluice copy CONFIG " + table + "; or choose "
            "another path for the sink",
            foreign=True,
            **where,
        )
    return Position(Lsn(lsn), identity.spool_id, identity.relation_oid, stamp.copy_number)


def check_foreign_writes(handle: DeltaTable, table: str) -> None:
    """Find changes of data that others made since our last commit.

    Raises:
        TableError: there are some, or the log does not tell any more.
    """
    stamp = read_stamp(handle)
    current = handle.version()
    if stamp is None or stamp.version == current:
        return
    if stamp.version > current:
        raise _changed(handle, table, "it was put back to an earlier version")
    since = [h for h in handle.history(current - stamp.version) if h["version"] > stamp.version]
    others = sorted({str(h.get("operation")) for h in since} - HARMLESS)
    if others:
        raise _changed(handle, table, f"since our last commit: {', '.join(others)}")
    if len(since) < current - stamp.version:
        raise _changed(handle, table, "its log does not reach back to our last commit")


def _changed(handle: DeltaTable, table: str, what: str) -> TableError:
    return TableError(
        f"the Delta table at {handle.table_uri} was changed by others: {what}",
        hint='copy the table again, or set foreign_writes = "allow" if those changes are wanted',
        table=table,
        location=handle.table_uri,
    )
