"""What every target owes the rest: the sink contract.

A sink keeps tables. For each it can say up to which position it is applied, take a copy,
and apply changes up to a position: all or nothing, and once. The position lies in the same
commit as the data, so that a repeat after any crash is a no-op.

A method that finds something only this table suffers from raises TableError (the table is
parked); SinkError says that the target as a whole cannot be used.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from pgsluice.changes.net import NetChanges
from pgsluice.lsn import Lsn


@dataclass(frozen=True, slots=True)
class Position:
    """What a target's own commit carries.

    Attributes:
        lsn: up to which the table is applied.
        spool_id: of which spool the LSN is.
        relation_oid: of the table (a partitioned table's root) at the source.
        copy_number: how often the table has been copied; rises with each copy.
    """

    lsn: Lsn
    spool_id: str
    relation_oid: int
    copy_number: int


@dataclass(frozen=True, slots=True)
class TargetTable:
    """One table at the target, as the subscription wants it.

    Attributes:
        namespace: the source's schema name.
        name: the source's table name.
        schema: the target's columns, key columns not nullable.
        key: names of the key columns; empty for a table that only takes inserts.
        replaces: relations of the same spool whose target a copy may take over: the table was
            dropped and made again under another OID.
        adopts: a copy may take over a target of any other source that pgsluice wrote.
    """

    namespace: str
    name: str
    schema: pa.Schema
    key: tuple[str, ...]
    replaces: tuple[int, ...] = ()
    adopts: bool = False


@dataclass(frozen=True, slots=True)
class Applied:
    """What one call did.

    Attributes:
        version: the target's version after it (Delta's table version).
        rows_inserted: rows new to the target.
        rows_updated: rows rewritten.
        rows_deleted: rows removed.
        bytes_written: bytes of new files.
        skipped: true when the target was already at or past the position: nothing was done.
        copy_number: of the target's copy, where a load was skipped.
    """

    version: int
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    bytes_written: int = 0
    skipped: bool = False
    copy_number: int = 0


@runtime_checkable
class TableWriter(Protocol):
    """One target table, opened once, used by one task, never shared."""

    def position(self) -> Position | None:
        """Where the target is; None for a table that does not exist yet.

        Raises:
            TableError: the target carries another source's position, or was changed by
                others since our last commit.
        """

    def version(self) -> int:
        """The target's version as this writer has it open; -1 for a table that does not
        exist yet."""

    def schema(self) -> pa.Schema | None:
        """The target's columns as they are; None for a table that does not exist yet."""

    def load(self, rows: Iterable[pa.RecordBatch], position: Position) -> Applied:
        """Replace the whole content by a copy, in one commit with its position."""

    def apply(self, changes: NetChanges, position: Position) -> Applied:
        """Apply net changes that start at the target's position, in one commit."""

    def maintain(self, keep_versions: Iterable[int]) -> None:
        """Compact, vacuum and clean the log when enough has been written since the last
        time, keeping what readers of the named versions need."""


class Sink(Protocol):
    """A target: it opens tables. Instances pickle; connections are opened lazily."""

    def location(self, namespace: str, name: str) -> str:
        """Where a table lies, as a user would write it."""

    def open(self, table: TargetTable, position: Position) -> TableWriter:
        """Open a table; ``position`` says which spool, relation and copy it must belong to
        (its ``lsn`` is not looked at)."""
