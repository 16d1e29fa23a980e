"""What a target owes the rest of pgsluice: the sink contract.

A new sink implements :class:`Sink`, which opens tables, and subclasses :class:`TableHandle`, one
table at the version that was opened. A handle reads the marker of our newest commit, replaces the
content by a copy, changes its columns, applies net changes and maintains the table. It decides
neither when to do so nor whether the columns fit: :class:`pgsluice.sinks.fence.TableWriter` reads
from the marker whether work is still to be done, compares the columns, and opens the table again
when another commit came first.

The rules of every write of a handle:

- All or nothing, in one commit, and the commit carries the marker.
- It succeeds only if the table is still at the handle's version, and raises
  :class:`Overtaken` otherwise. It is never retried inside the sink.

A handle has more methods, which a sink need not implement: each default says that the sink cannot
do it, and its docstring what pgsluice does then. With those that stage, tasks write what nobody
sees, and one commit makes it visible: the rows of a copy, or the changes of a large batch. An
attempt that is not committed leaves at most files that nobody refers to.

Errors that concern one table are TableErrors; a SinkError says that the target as a whole
cannot be used.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from pgsluice.changes.net import NetChanges
from pgsluice.errors import PgsluiceError
from pgsluice.lsn import Lsn


@dataclass(frozen=True, slots=True)
class TargetIdentity:
    """Which rows a target holds: those of one copy of one relation in one spool.

    Attributes:
        spool_id: the spool whose LSNs are the target's positions.
        relation_oid: the table at the source (a partitioned table's root).
        copy_number: how often the table has been copied; rises with each copy.
    """

    spool_id: str
    relation_oid: int
    copy_number: int

    @property
    def owner(self) -> int:
        """Spool and relation as one number of 63 bits, which any target can store."""
        name = f"{self.spool_id}:{self.relation_oid}".encode()
        return int.from_bytes(hashlib.sha256(name).digest()[:8], "big") >> 1


@dataclass(frozen=True, slots=True)
class CommitMarker:
    """What our newest commit in a target says.

    Attributes:
        owner: :attr:`TargetIdentity.owner` of whose rows these are.
        copy_number: of the newest copy.
        position: up to which the table is applied; None where the target keeps it for another
            identity than the handle's.
    """

    owner: int
    copy_number: int
    position: Lsn | None

    def reaches(self, identity: TargetIdentity, position: Lsn) -> bool:
        """Whether a write that brings the table to ``position`` would add nothing."""
        reached = (self.copy_number, self.position or 0)
        return reached >= (identity.copy_number, position)


@dataclass(frozen=True, slots=True)
class TargetTable:
    """One table at the target, as the subscription wants it.

    Attributes:
        namespace: the source's schema name.
        name: the source's table name.
        schema: the target's columns, key columns not nullable.
        key: names of the key columns; empty for a table that only takes inserts.
        predecessor_oids: relations of the same spool whose target a copy may replace: the table
            was dropped and created again under another OID.
        may_replace_foreign_target: a copy may replace a target that pgsluice wrote from another
            spool, or for another table.
        is_key_proved: the source makes sure that no two rows have the same key. Otherwise a copy
            is refused that has two of one key.
    """

    namespace: str
    name: str
    schema: pa.Schema
    key: tuple[str, ...]
    predecessor_oids: tuple[int, ...] = ()
    may_replace_foreign_target: bool = False
    is_key_proved: bool = True

    @property
    def title(self) -> str:
        """``schema.table``, for messages."""
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True)
class AddedColumn:
    """A column that a table gets.

    Attributes:
        field: nullable.
        value: of the field's type: what the rows have in it that the table has; may be NULL.
    """

    field: pa.Field
    value: pa.Scalar


@dataclass(frozen=True, slots=True)
class Applied:
    """What one call did.

    Attributes:
        version: the target's version after it (Delta's table version).
        rows_inserted: rows new to the target.
        rows_updated: rows rewritten.
        rows_deleted: rows removed.
        rows_skipped: rows that were updated or deleted at the source and that the target lacks.
        bytes_written: bytes of new files.
        skipped: true when the target was already at or past the position: nothing was done.
        copy_number: of the target's copy, where a load was skipped.
    """

    version: int
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    rows_skipped: int = 0
    bytes_written: int = 0
    skipped: bool = False
    copy_number: int = 0


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows of a copy that one task has written and that nobody sees yet; it pickles.

    Attributes:
        rows: how many.
        bytes_written: of new files.
        payload: what the sink needs to commit them; only the sink reads it.
        loaded: set by a sink that cannot stage: the task has loaded the rows already.
    """

    rows: int = 0
    bytes_written: int = 0
    payload: bytes = b""
    loaded: Applied | None = None


@dataclass(frozen=True, slots=True)
class StagedChanges:
    """Changes of a batch that one task has written and that nobody sees yet; it pickles.

    Attributes:
        version: the table's, which they start from.
        rows_inserted, rows_updated, rows_deleted, rows_skipped: see :class:`Applied`.
        bytes_written: of new files.
        payload: what the sink needs to commit them; only the sink reads it.
    """

    version: int
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    rows_skipped: int = 0
    bytes_written: int = 0
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class TargetContent:
    """One version of a target.

    Attributes:
        marker: what the newest commit of ours up to this version says; None without one.
        schema: the columns, as :meth:`TableHandle.schema` has them.
        rows: all of them, with these columns; read when it is iterated, and once.
    """

    marker: CommitMarker | None
    schema: pa.Schema
    rows: Iterable[pa.RecordBatch]


class Overtaken(PgsluiceError):
    """Another commit came first: the table is not at the handle's version any more."""


class TableHandle(ABC):
    """One target table as it was opened; used by one task, never shared.

    It stays usable after a write that succeeded, at the new version. After an error it is
    discarded.
    """

    @property
    @abstractmethod
    def location(self) -> str:
        """Where the table lies, for messages."""

    @property
    @abstractmethod
    def version(self) -> int:
        """A number that rises with each commit; -1 for a table that does not exist yet."""

    @abstractmethod
    def schema(self) -> pa.Schema | None:
        """The target's columns; None for a table that does not exist yet."""

    @abstractmethod
    def marker(self) -> CommitMarker | None:
        """What our newest commit says; None where pgsluice never wrote."""

    @abstractmethod
    def refuse_foreign_changes(self) -> None:
        """Compare the table with our newest commit.

        Raises:
            TableError: others changed its data since, and the configuration does not allow it.
        """

    def load(self, rows: Iterable[pa.RecordBatch], position: Lsn) -> Applied:
        """Replace the whole content by a copy, or make the table with it.

        A sink that cannot stage a copy has to implement it.

        Raises:
            Overtaken: another commit came first.
            TableError: the target has no type for a column, a key is NULL, or rows share one
                (:attr:`TargetTable.is_key_proved`).
        """
        with self.whole_attempt():
            return self.commit_load([self.stage_load(rows)], position)

    @abstractmethod
    def target_types(self, schema: pa.Schema) -> pa.Schema:
        """The same columns in the types that :meth:`schema` would give back for them.

        Raises:
            TableError: the target has no type for a column.
        """

    @abstractmethod
    def alter(
        self, added: Sequence[AddedColumn], widened: Sequence[pa.Field], position: Lsn
    ) -> Applied:
        """Give the table columns, and columns other types; its rows stay.

        The table has them with the commit, or not at all, whatever its size in bounded memory.

        Args:
            added: columns that the table lacks, in the target's types.
            widened: columns of the table in a type that holds all values of the one they have.
            position: the table's, which stays as it is.

        Raises:
            Overtaken: another commit came first.
        """

    @abstractmethod
    def apply(self, changes: NetChanges, position: Lsn) -> Applied:
        """Apply net changes, or make the table with them.

        Args:
            changes: the table has their columns, in types that hold their values.
            position: up to which the table is applied afterwards.

        A row that is not inserted and that the table lacks is skipped and counted. Where
        ``changes.unproved`` is not None, the table's rows with its keys are found first, and it
        compares them.

        Raises:
            Overtaken: another commit came first.
            TableError: the table lacks a row that absent values have to come from, or rows share
                a key.
        """

    @abstractmethod
    def maintain(self, keep_versions: Iterable[int]) -> bool:
        """Compact, vacuum and clean the log if enough has been written since the last time.

        Args:
            keep_versions: versions that readers rely on; missing ones are ignored.

        Returns:
            Whether the handle is discarded: the table has to be opened again.
        """

    def content(self, version: int) -> TargetContent | None:
        """The table at a version; None: there is none, or it cannot be read any more. Then a
        renamed table is copied from the source, and not from the target of its old name."""
        return None

    def keys(self, columns: Sequence[str]) -> Iterable[pa.RecordBatch] | None:
        """Some columns of all rows at the handle's version, in the types of :meth:`schema`; read
        when it is iterated, in bounded memory. None: they cannot be read, and the table is copied
        where rows of partitions that are gone have to be found."""
        return None

    def can_stage_load(self) -> bool:
        """Whether a copy can be staged; else one task loads all of it."""
        return False

    def stage_load(self, rows: Iterable[pa.RecordBatch]) -> StagedRows:
        """Write a part of a copy, durably and unseen."""
        raise NotImplementedError

    def commit_load(self, staged: Sequence[StagedRows], position: Lsn) -> Applied:
        """Replace the whole content by staged rows; without any the table is empty.

        Raises:
            TableError: rows share a key (:attr:`TargetTable.is_key_proved`).
            Overtaken: another commit came first; the staged rows can be committed again.
        """
        return self.load([], position)

    def discard_load(self, staged: Sequence[StagedRows]) -> None:  # noqa: B027 - optional
        """Delete what was staged, if that is possible. No commit of it was begun, and none will
        be."""

    def can_stage_changes(self) -> bool:
        """Whether changes can be staged once the table exists; else a task applies all of them."""
        return False

    def stage_changes(self, pieces: Iterable[NetChanges]) -> StagedChanges:
        """Write what some keys' changes make of the table, which exists, durably and unseen.

        Each task has all changes of some keys, in any number of pieces, so that no task needs more
        memory than a piece.

        Args:
            pieces: net changes that follow each other: each starts from what those before it
                leave. The table has their columns, in types that hold their values.

        Raises:
            TableError: as :meth:`apply`.
        """
        raise NotImplementedError

    def commit_changes(self, staged: Sequence[StagedChanges], position: Lsn) -> Applied:
        """Take the changes of all tasks, which start from the handle's version, in one commit.

        Raises:
            Overtaken: another commit came first.
        """
        raise NotImplementedError

    def discard_changes(self, staged: Sequence[StagedChanges]) -> None:  # noqa: B027 - optional
        """As :meth:`discard_load`."""

    def whole_attempt(
        self, delete: Callable[[], object] | None = None
    ) -> AbstractContextManager[None]:
        """A block that stages and commits: if it fails before the commit begins, what it has
        written is deleted, if that is possible.

        Args:
            delete: is called as well then; it deletes what was staged before the block.
        """
        return nullcontext()


class Sink(Protocol):
    """A target: it opens tables. Instances pickle; connections are opened lazily."""

    def location(self, namespace: str, name: str) -> str:
        """Where a table lies, as a user would write it."""

    def open(self, table: TargetTable, identity: TargetIdentity) -> TableHandle:
        """Open a table at its newest version, whether it exists or not."""
