"""The write fence: decides, for every sink, whether a write is still needed, so that each change is
applied exactly once.

A task may run twice at the same time, and once more much later. The means of targets against that,
such as Delta's transaction identifiers, often only exclude commits that start from the same
version: a new handle with an older position would succeed again. So a table is opened once, the
position is read from that handle, the write uses the same handle, and the sink does not retry it.
If another commit came first, everything is repeated from the opening of the table, because the
position may have changed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from pgsluice.changes.net import NetChanges
from pgsluice.definitions.source_tables import TableComments
from pgsluice.errors import PgsluiceError
from pgsluice.failpoints import failpoint
from pgsluice.lsn import Lsn
from pgsluice.schema_rules.target import check_key_columns, reconcile_target
from pgsluice.schema_rules.types import holds
from pgsluice.sinks.contract import (
    AddedColumn,
    Applied,
    Overtaken,
    Sink,
    StagedChanges,
    StagedRows,
    TableHandle,
    TargetContent,
    TargetTable,
)
from pgsluice.sinks.identity import CommitMarker, TargetIdentity
from pgsluice.sinks.joined_columns import with_all_columns
from pgsluice.sinks.opened_table import OpenedTable

ATTEMPTS = 10


class TableWriter:
    """Writes one target table, each position once; used by one task, never shared. ``table`` and
    ``identity`` are its required definition and origin."""

    def __init__(self, sink: Sink, table: TargetTable, identity: TargetIdentity) -> None:
        self._table = table
        self._identity = identity
        self._opened = OpenedTable(sink, table, identity)

    def position(self) -> Lsn | None:
        """The LSN up to which the table is applied; None if it does not exist yet.

        The next changes have to start here.

        Raises:
            TableError: the table holds another source's rows, others changed its data, or it cannot
                be in the identity's mode.
        """
        self._opened.refuse_unsupported()
        marker = self._opened.start()
        return None if marker is None else marker.position

    def refuse_foreign_target(self) -> None:
        """Check whether a copy may replace the existing target.

        Raises:
            ForeignTarget: pgsluice wrote it from another spool, or for another table.
            TableError: pgsluice did not create it.
        """
        self._opened.marker_before_copy()

    def copy_number(self) -> int | None:
        """The number of the table's copy; None if the table does not exist yet."""
        marker = self._opened.marker()
        return None if marker is None else marker.copy_number

    def version(self) -> int:
        """The version at which the table is open; -1 if it does not exist yet."""
        return self._opened.handle.version

    def schema(self) -> pa.Schema | None:
        """The table's columns; None if it does not exist yet."""
        return self._opened.handle.schema()

    def adoptable(self) -> TargetContent | None:
        """The rows of a target of ours, perhaps from another spool; None: a copy would make other
        columns, or there is none."""
        self._opened.close()
        handle = self._opened.handle
        with self._opened.naming_disk_trouble():
            is_proved = self._table.is_key_proved or not self._table.key
            if handle.version < 0 or handle.marker() is None or not is_proved:
                return None
            existing, wanted = handle.schema(), handle.target_types(self._table.schema)
            if existing is None or set(existing) != set(wanted):
                return None
            return handle.content(handle.version)

    def content(self) -> TargetContent:
        """The rows of :meth:`adoptable` once more; PgsluiceError: they cannot be read any more."""
        if (content := self._opened.handle.content(self.version())) is None:
            raise PgsluiceError(f"the target of {self._table.title} cannot be read")
        return content

    def stage_differences(self, pieces: Iterable[NetChanges]) -> StagedChanges:
        """Stage what turns the rows of :meth:`adoptable` into those of the identity's copy."""
        with self._opened.naming_disk_trouble():
            return self._opened.handle.stage_changes(pieces)

    def take_over(self, position: Lsn, staged: Sequence[StagedChanges] = ()) -> Applied:
        """Make the rows of :meth:`adoptable` those of the identity's copy, in one commit.

        Args:
            position: at which the source has these rows.
            staged: the result of :meth:`stage_differences`; deleted if another commit came since.

        Raises:
            Overtaken: another commit came since.
        """
        if not staged:
            return self._opened.write(lambda handle: handle.alter((), (), position))
        handle = self._opened.handle
        with handle.whole_attempt(lambda: handle.discard_changes(staged)):
            return self._opened.write(lambda handle: handle.commit_changes(staged, position))

    def load(self, rows: Iterable[pa.RecordBatch], position: Lsn) -> Applied:
        """Replace the whole content by a copy, in one commit with its position.

        Raises:
            TableError: the table has rows of another source, or rows do not fit.
            PgsluiceError: another commit came first: repeat the copy.
        """
        if (skipped := self._skip_load(position)) is not None:
            return skipped
        if self.can_stage():
            with self._opened.handle.whole_attempt():
                return self.commit_load([self.stage_load(rows, position)], position)
        try:
            return self._opened.write(lambda handle: handle.load(rows, position))
        except Overtaken:
            if (skipped := self._skip_load(position)) is not None:
                return skipped
            raise PgsluiceError(
                f"table {self._table.title}: another writer committed during the copy",
                hint="nothing to do: pgsluice retries the copy",
            ) from None

    def apply(self, changes: NetChanges, position: Lsn) -> Applied:
        """Apply net changes that start at the table's position, in one commit.

        Raises:
            TableError: the table has rows of another source, was changed by others, or the changes
                do not fit.
            PgsluiceError: another attempt moved the table to a position before ``position``:
                the changes have to be decoded again from there.
        """

        def write(handle: TableHandle) -> Applied:
            marker = self._opened.marker()
            added = [
                AddedColumn(field.with_nullable(True), pa.scalar(None, field.type))
                for field in self._columns_to_add(changes)
            ]
            if marker is not None and marker.position is not None and added:
                handle.alter(added, (), marker.position)
            return handle.apply(changes, position)

        return self._write_once(position, write)

    def alter(self, added: Sequence[AddedColumn], widened: Sequence[pa.Field]) -> Applied:
        """Add columns to the table, or widen columns, in one commit at its position.

        Changes that the table already has are skipped, so that a second attempt changes nothing.

        Args:
            added: columns with their value in the existing rows.
            widened: columns in types that have all values of the old ones.

        Raises:
            TableError: the table holds another source's rows, or was changed by others.
            PgsluiceError: another attempt moved the table: find out again which columns it lacks.
        """

        def change(existing: pa.Schema, at: Lsn) -> Applied | None:
            lacking = [column for column in added if column.field.name not in existing.names]
            narrow = [
                field for field in widened if not holds(existing.field(field.name).type, field.type)
            ]
            if not lacking and not narrow:
                return None
            altered = self._opened.write(lambda handle: handle.alter(lacking, narrow, at))
            failpoint("target.altered")
            return altered

        return self._changed(change)

    def comment(self, comments: TableComments) -> bool:
        """Give the table comments in one commit at its position; whether it had others.

        Args:
            comments: where there is none, what the table has stays.

        Raises:
            PgsluiceError: the table holds another source's rows or another copy, or was changed by
                others.
        """

        def change(schema: pa.Schema, at: Lsn) -> Applied | None:
            existing = self._opened.handle.comments()
            if existing is None or (wanted := comments.over(existing, schema.names)) == existing:
                return None
            return self._opened.write(lambda handle: handle.comment(wanted, at))

        return not self._changed(change).skipped

    def _changed(self, change: Callable[[pa.Schema, Lsn], Applied | None]) -> Applied:
        """Change the definition of an existing table, once, by a function of its columns and
        position, which returns None if there is nothing to change."""

        def attempt() -> Applied:
            marker = self._opened.marker_since_start()
            self._opened.refuse_another_start()
            existing = self._opened.handle.schema()
            if marker is None or marker.position is None or existing is None:
                return Applied(self.version(), skipped=True)
            return change(existing, marker.position) or self._skipped(marker)

        return self._until_first(attempt)

    def maintain(self, keep_versions: Iterable[int]) -> None:
        """Compact and vacuum, if enough was written since the last time."""
        with self._opened.naming_disk_trouble():
            has_changed = self._opened.handle.maintain(keep_versions)
        if has_changed:
            self._opened.close()

    def delete_leftovers(self, written_before: float) -> None:
        """See :meth:`.TableHandle.delete_leftovers`.

        Raises:
            TableError: the table has rows of another source, or others changed its data.
        """
        if self._opened.marker() is not None:
            with self._opened.naming_disk_trouble():
                self._opened.handle.delete_leftovers(written_before)

    def can_stage(self) -> bool:
        """Whether several tasks can stage a copy; otherwise one task has to load all of it."""
        return self._identity.mode.keeps_rows or self._opened.handle.can_stage_load()

    def stage_load(self, rows: Iterable[pa.RecordBatch], position: Lsn) -> StagedRows:
        """A task's part of a copy: write some of its rows, invisible to readers before the commit.
        A sink that cannot stage loads the rows here, with their position.

        Raises:
            TableError: the table has rows of another source, or rows do not fit.
        """
        if not self.can_stage():
            return StagedRows(loaded=self.load(rows, position))
        self._skip_load(position)  # refuses another source's table before anything is written
        with self._opened.naming_disk_trouble():
            return self._opened.handle.stage_load(rows)

    def commit_load(self, staged: Sequence[StagedRows], position: Lsn) -> Applied:
        """The driver's part of a copy: replace the whole content by the staged rows, once.

        Raises:
            TableError: the table has rows of another source.
            PgsluiceError: a sink that cannot stage was given more than one task's rows.
        """
        loaded = [part.loaded for part in staged if part.loaded is not None]
        if loaded:
            if len(staged) > 1:
                raise PgsluiceError(
                    f"table {self._table.title} was copied by {len(staged)} tasks, but its target "
                    "takes the rows of one task only, since it was changed during the copy",
                    hint="nothing to do: pgsluice copies the table again, in one task",
                )
            return loaded[0]

        return self._copy_once(position, lambda handle: handle.commit_load(staged, position))

    def discard_load(self, staged: Sequence[StagedRows]) -> None:
        """Delete staged rows, if possible. No commit of them was started, and none will be."""
        self._opened.handle.discard_load(staged)

    def keys(self, columns: Sequence[str]) -> Iterable[pa.RecordBatch] | None:
        """The given columns of all rows, at the version before the staged changes; None: the table
        does not exist, or its sink cannot read it."""
        handle = self._opened.handle
        return None if handle.version < 0 else handle.keys(columns)

    def can_stage_changes(self) -> bool:
        """Whether changes of this table can be staged once it exists."""
        return self._opened.handle.can_stage_changes()

    def stage_changes(self, pieces: Iterable[NetChanges]) -> StagedChanges:
        """The tasks' part of a batch: write the result of some keys' changes, before the commit.

        Args:
            pieces: consecutive net changes; the first starts at the table's position.

        Raises:
            TableError: the table has rows of another source, was changed by others, or the changes
                do not fit.
            PgsluiceError: another attempt moved the table.
        """
        self._opened.refuse_another_start()
        with self._opened.naming_disk_trouble():
            return self._opened.handle.stage_changes(map(self._fitting, pieces))

    def apply_pieces(self, pieces: Iterable[NetChanges], position: Lsn) -> Applied:
        """Stage changes and commit them in one task (:meth:`stage_changes`,
        :meth:`commit_changes`)."""
        with self._opened.handle.whole_attempt():
            return self.commit_changes([self.stage_changes(pieces)], position)

    def discard_changes(self, staged: Sequence[StagedChanges]) -> None:
        """Delete staged changes for which no commit was started or will be."""
        self._opened.handle.discard_changes(staged)

    def commit_or_discard(
        self, staged: Sequence[StagedChanges], position: Lsn, may_discard: Callable[[], bool]
    ) -> Applied:
        """As :meth:`commit_changes`. If it fails before the commit starts, the staged changes are
        deleted, unless ``may_discard`` says then that another attempt may commit them."""
        handle = self._opened.handle

        def discard() -> None:
            if may_discard():
                handle.discard_changes(staged)

        with handle.whole_attempt(discard):
            return self.commit_changes(staged, position)

    def commit_changes(self, staged: Sequence[StagedChanges], position: Lsn) -> Applied:
        """The committing task's part of a batch: commit the staged changes of all tasks, once.

        Raises:
            TableError: the table holds another source's rows, or was changed by others.
            PgsluiceError: another commit came after the changes were staged: they have to be
                staged again.
        """

        def write(handle: TableHandle) -> Applied:
            if any(part.version != handle.version for part in staged):
                raise PgsluiceError(
                    f"table {self._table.title}: another writer committed while rows were staged",
                    hint="nothing to do: pgsluice retries the changes",
                )
            return handle.commit_changes(staged, position)

        return self._write_once(position, write)

    def _fitting(self, changes: NetChanges) -> NetChanges:
        """The changes, if the table has all of their columns."""
        if lacking := self._columns_to_add(changes):
            raise PgsluiceError(
                f"the target of table {self._table.title} lacks the column {lacking[0].name!r} of "
                "changes that are about to be committed: another writer has changed the target",
                hint="nothing to do: pgsluice retries the changes",
            )
        return changes

    def _stage(self, schema: pa.Schema, rows: Iterable[pa.RecordBatch]) -> StagedRows:
        """Write rows with some of a table's columns, invisible to readers."""
        whole = (with_all_columns(batch, schema) for batch in rows)
        with self._opened.naming_disk_trouble():
            return self._opened.handle.stage_rows(schema, whole)

    def _skip_load(self, position: Lsn) -> Applied | None:
        """Open the table again for a copy; returns a result if the copy is no longer needed."""
        self._opened.refuse_unsupported()
        marker = self._opened.marker_before_copy()
        if marker is not None and marker.reaches(self._identity, position):
            return self._skipped(marker)
        return None

    def _columns_to_add(self, changes: NetChanges) -> Sequence[pa.Field]:
        """The columns to add to the table, if its own columns can take the changes.

        Raises:
            TableError: they cannot (:mod:`pgsluice.schema_rules`).
        """
        self._opened.refuse_unsupported(changes)
        handle = self._opened.handle
        existing, title = handle.schema(), self._table.title
        if existing is None:
            return ()
        check_key_columns(title, existing, changes.key)
        now = handle.target_types(changes.schema)
        return reconcile_target(title, existing, now, key=changes.key)

    def _copy_once(self, position: Lsn, write: Callable[[TableHandle], Applied]) -> Applied:
        """Commit a copy, unless the table already has it."""
        return self._until_first(lambda: self._skip_load(position) or self._opened.write(write))

    def _write_once(self, position: Lsn, write: Callable[[TableHandle], Applied]) -> Applied:
        """Commit changes that start at the table's position, unless it already has them."""

        def attempt() -> Applied:
            marker = self._opened.marker_since_start()
            if marker is not None and marker.reaches(self._identity, position):
                return self._skipped(marker)
            self._opened.refuse_another_start()
            return self._opened.write(write)

        return self._until_first(attempt)

    def _until_first(self, attempt: Callable[[], Applied]) -> Applied:
        """Repeat from the opening of the table whenever another commit came first."""
        for number in range(ATTEMPTS):
            try:
                return attempt()
            except Overtaken:
                # By a compaction of others, or by another attempt of this very task.
                time.sleep(random.uniform(0, 0.02 * 2**number))  # noqa: S311 - parts rivals
        raise PgsluiceError(
            f"table {self._table.title}: {ATTEMPTS} times in a row another writer committed first",
            hint="pause the other programs that write to the target table",
        )

    def _skipped(self, marker: CommitMarker) -> Applied:
        return Applied(self._opened.handle.version, skipped=True, copy_number=marker.copy_number)
