"""The sink contract: what every target has to provide.

A new sink implements :class:`Sink`, which opens tables, and subclasses :class:`TableHandle`, one
table at the version that was opened. A handle reads the marker of our newest commit, replaces the
content by a copy, changes its columns, applies net changes and maintains the table. It does not
decide when to do so, or whether the columns match: :class:`pgsluice.sinks.fence.TableWriter`
decides from the marker whether work is still needed, compares the columns, and opens the table
again if another commit came first.

The rules of every write of a handle:

- All or nothing, in one commit, and the commit carries the marker.
- It succeeds only if the table is still at the handle's version, and raises
  :class:`Overtaken` otherwise. It is never retried inside the sink.

A handle has optional methods. Their defaults report that the sink does not support them, and their
docstrings describe what pgsluice does then. With the methods for staging, tasks write files that no
reader sees, and one commit makes them visible: the rows of a copy, or the changes of a large batch.
An attempt without a commit leaves only unreferenced files.

Errors of one table are TableErrors. A SinkError means that no table of the target can be used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from pgsluice.changes.net import NetChanges
from pgsluice.definitions.source_tables import TableComments
from pgsluice.errors import PgsluiceError
from pgsluice.lsn import Lsn
from pgsluice.sinks.identity import CommitMarker, TargetIdentity


@dataclass(frozen=True, slots=True)
class TargetTable:
    """One table at the target, as the subscription needs it.

    Attributes:
        namespace, name: its schema and name: the source's, unless `rename` gives it others.
        schema: the target's columns, key columns not nullable.
        key: names of the key columns; may be empty.
        predecessor_oids: earlier tables of the same name, whose target a copy may replace.
        may_replace_foreign_target: a copy may replace what pgsluice wrote from another spool, or
            for another table.
        is_key_proved: the source guarantees that two rows never have the same key. Otherwise a copy
            with two rows of one key is refused.
        has_whole_rows: without a key, updates and deletes come with whole old rows.
    """

    namespace: str
    name: str
    schema: pa.Schema
    key: tuple[str, ...]
    predecessor_oids: tuple[int, ...] = ()
    may_replace_foreign_target: bool = False
    is_key_proved: bool = True
    has_whole_rows: bool = False

    @property
    def title(self) -> str:
        """The source's ``schema.table``, for messages and settings."""
        return f"{self.namespace}.{self.name}"

    @property
    def source_key(self) -> tuple[str, ...]:
        """The source's names of the key columns, for messages."""
        return self.key


@dataclass(frozen=True, slots=True)
class AddedColumn:
    """A column (nullable) to add to a table, and its value in the existing rows, of the field's
    type; the value may be NULL."""

    field: pa.Field
    value: pa.Scalar


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of one call.

    Attributes:
        version: the target's version afterwards (Delta's table version).
        rows_inserted, rows_updated, rows_deleted: rows new to the target, rewritten and removed.
        rows_skipped: rows that were updated or deleted at the source but do not exist in the
            target.
        bytes_written: bytes of new files.
        skipped: the target was already at or past the position, and nothing was done.
        copy_number: the target's copy number, if a load was skipped.
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
    """Rows of a copy that one task has written and no reader sees yet; picklable.

    Attributes:
        rows, bytes_written: the number of rows, and the size of the new files.
        payload: data for the commit, which only the sink interprets.
        loaded: set by a sink that cannot stage: the task has already loaded the rows.
    """

    rows: int = 0
    bytes_written: int = 0
    payload: bytes = b""
    loaded: Applied | None = None


@dataclass(frozen=True, slots=True)
class StagedChanges:
    """Changes of a batch that one task has written and no reader sees yet; picklable.

    Attributes:
        version: the version of the table from which they start.
        rows_inserted, rows_updated, rows_deleted, rows_skipped: see :class:`Applied`.
        bytes_written: the size of the new files.
        payload: data for the commit, which only the sink interprets.
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
        marker: the marker of our newest commit up to this version; None without one.
        schema: the columns, as in :meth:`TableHandle.schema`.
        rows: all rows with these columns; they are read during iteration, once.
        rewrites_files: a change of a row rewrites the file that has it.
    """

    marker: CommitMarker | None
    schema: pa.Schema
    rows: Iterable[pa.RecordBatch]
    rewrites_files: bool = False


class Overtaken(PgsluiceError):
    """Another commit came first, so the table is no longer at the handle's version."""


class TableHandle(ABC):
    """One opened target table; used by one task, never shared.

    It stays usable after a successful write, at the new version. After an error it is discarded.
    """

    @property
    @abstractmethod
    def location(self) -> str:
        """The location of the table, for messages."""

    @property
    @abstractmethod
    def version(self) -> int:
        """A number that rises with each commit; -1 if the table does not exist yet."""

    @abstractmethod
    def schema(self) -> pa.Schema | None:
        """The target's columns; None if the table does not exist yet."""

    @abstractmethod
    def marker(self) -> CommitMarker | None:
        """The marker of our newest commit; None if pgsluice never wrote the table."""

    @abstractmethod
    def refuse_foreign_changes(self) -> None:
        """Refuse a table whose data others have changed since our newest commit.

        Raises:
            TableError: others changed its data, and the configuration does not allow it.
        """

    def load(self, rows: Iterable[pa.RecordBatch], position: Lsn) -> Applied:
        """Replace the whole content by a copy, or create the table with it.

        A sink without staging of copies has to implement it.

        Raises:
            Overtaken: another commit came first.
            TableError: the target has no type for a column, a key is NULL, or rows share one
                (:attr:`TargetTable.is_key_proved`).
        """
        raise NotImplementedError

    @abstractmethod
    def target_types(self, schema: pa.Schema) -> pa.Schema:
        """Columns of the source, in the types that :meth:`schema` would return for them.

        Raises:
            TableError: the target has no type for a column.
        """

    @abstractmethod
    def alter(
        self, added: Sequence[AddedColumn], widened: Sequence[pa.Field], position: Lsn
    ) -> Applied:
        """Add columns to the table, or change the types of columns; its rows stay.

        It is done in one commit and in bounded memory, regardless of the table's size.

        Args:
            added: columns to add, in the target's types.
            widened: existing columns, with a type that has all values of the old one.
            position: the table's position, which does not change.

        Raises:
            Overtaken: another commit came first.
        """

    def comments(self) -> TableComments | None:
        """The comments of the table and its columns; None: the target has none, or keeps those of
        others."""
        return None

    def comment(self, comments: TableComments, position: Lsn) -> Applied:
        """Replace the comments of the table and its columns; its rows and its position stay.

        Raises:
            Overtaken: another commit came first.
        """
        raise NotImplementedError

    @abstractmethod
    def apply(self, changes: NetChanges, position: Lsn) -> Applied:
        """Apply net changes, or create the table with them.

        Args:
            changes: net changes; the table has their columns, in types that can hold their values.
            position: the position up to which the table is applied afterwards.

        A row that was not inserted and that the table does not have is skipped and counted. If
        ``changes.unproved`` is not None, the handle first finds the table's rows with these keys,
        and passes them to it for the check.

        Raises:
            Overtaken: another commit came first.
            TableError: the table does not have a row from which absent values are taken, or rows
                have the same key.
        """

    @abstractmethod
    def maintain(self, keep_versions: Iterable[int]) -> bool:
        """Compact, vacuum and clean up the log, if enough was written since the last time.

        Args:
            keep_versions: versions that readers need; missing ones are ignored.

        Returns:
            True if the handle is discarded, so that the table has to be opened again.
        """

    def delete_leftovers(self, written_before: float) -> None:  # noqa: B027 - optional
        """Delete files that no version names, because the process that wrote them was killed. Files
        that were written after a time (in seconds since 1970) stay: somebody may be about to commit
        them."""

    def content(self, version: int) -> TargetContent | None:
        """The table at a version; None: it cannot be read (any more). Then a renamed table is
        copied from the source instead of its previous target."""
        return None

    def keys(self, columns: Sequence[str]) -> Iterable[pa.RecordBatch] | None:
        """Some columns of all rows at the handle's version, in the types of :meth:`schema`; read
        during iteration, in bounded memory. None: not supported; then a table is copied if rows of
        removed partitions have to be found."""
        return None

    def can_stage_load(self) -> bool:
        """Whether a copy can be staged; otherwise one task loads all of it."""
        return False

    def stage_load(self, rows: Iterable[pa.RecordBatch]) -> StagedRows:
        """Write a part of a copy durably, invisible to readers."""
        raise NotImplementedError

    def commit_load(self, staged: Sequence[StagedRows], position: Lsn) -> Applied:
        """Replace the whole content by staged rows; without any, the table is empty.

        Raises:
            TableError: rows have the same key (:attr:`TargetTable.is_key_proved`).
            Overtaken: another commit came first; the staged rows can be committed again.
        """
        return self.load([], position)

    def discard_load(self, staged: Sequence[StagedRows]) -> None:  # noqa: B027 - optional
        """Delete staged rows, if possible. No commit of them was started, and none will be."""

    def can_keep_deleted(self) -> bool:
        """Whether copies keep rows that they lack, with a time in ``identity.mode``'s column."""
        return False

    def can_append(self) -> bool:
        """Whether the table can be a change log, to which rows are only added."""
        return False

    def stage_rows(self, schema: pa.Schema, rows: Iterable[pa.RecordBatch]) -> StagedRows:
        """Write rows for :meth:`append` durably, invisible to readers.

        Args:
            schema: columns of the table, or columns that it gets, in the types of
                :meth:`target_types`.
            rows: in these columns; they are read during iteration, once.
        """
        raise NotImplementedError

    def append(self, schema: pa.Schema, staged: Sequence[StagedRows], position: Lsn) -> Applied:
        """Add staged rows to the existing ones, or create the table with them, in one commit.

        Args:
            schema: the table's columns afterwards, in the types of :meth:`target_types`. Columns
                that it lacks are NULL in the existing rows, whose values stay in any case.

        Raises:
            TableError: the table has rules that the sink does not keep.
            Overtaken: another commit came first; the staged rows can be appended again.
        """
        raise NotImplementedError

    def can_keep_versions(self) -> bool:
        """Whether the table can be a history (:mod:`pgsluice.changes.history`).

        Net changes that it applies have :attr:`.NetChanges.closings`: it closes the current
        versions of their ``deletes``, and adds their ``rows``. :meth:`alter` gives added columns
        their value in current versions.
        """
        return False

    def load_versions(
        self, schema: pa.Schema, staged: Sequence[StagedRows], position: Lsn
    ) -> Applied:
        """Make staged rows the current versions, in one commit. Rows that are equal to the current
        version of their key are not added; other current versions end at the position.

        Args:
            schema: the table's columns afterwards, as for :meth:`append`.
            staged: rows in these columns.

        Raises:
            Overtaken: another commit came first; the staged rows can be committed again.
        """
        raise NotImplementedError

    def can_change_whole_rows(self) -> bool:
        """Whether ``changes.whole_rows`` are applied; otherwise they are refused."""
        return False

    def can_stage_changes(self) -> bool:
        """Whether changes can be staged once the table exists; or one task applies all of them."""
        return False

    def stage_changes(self, pieces: Iterable[NetChanges]) -> StagedChanges:
        """Write the result of some keys' changes to an existing table durably, invisible to
        readers.

        Each task has all changes of some keys, in any number of pieces, so that it needs memory for
        one piece only.

        Args:
            pieces: consecutive net changes: each starts from the result of those before it. The
                table has their columns, in types that can hold their values.

        Raises:
            TableError: as :meth:`apply`.
        """
        raise NotImplementedError

    def commit_changes(self, staged: Sequence[StagedChanges], position: Lsn) -> Applied:
        """Commit the staged changes of all tasks, which start from the handle's version, in one
        commit.

        Raises:
            Overtaken: another commit came first.
        """
        raise NotImplementedError

    def discard_changes(self, staged: Sequence[StagedChanges]) -> None:  # noqa: B027 - optional
        """Delete staged changes, if possible. No commit of them was started, and none will be."""

    def whole_attempt(
        self, delete: Callable[[], object] | None = None
    ) -> AbstractContextManager[None]:
        """A context that stages and commits: if it fails before the commit starts, the files that
        it has written are deleted, if possible; ``delete`` deletes what was staged before it."""
        return nullcontext()


class Sink(Protocol):
    """A target, which opens tables. Instances are picklable; connections are opened lazily."""

    def location(self, namespace: str, name: str) -> str:
        """The location of a table, as a user would write it."""

    def open(self, table: TargetTable, identity: TargetIdentity) -> TableHandle:
        """Open a table at its newest version, even if it does not exist yet."""
