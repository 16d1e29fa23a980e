"""A target table during a write: the handle, and the marker of our newest commit.

The marker has the origin of the rows, and the position where changes start. It is read from the
same handle that writes, so that a commit in between is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from pgsluice.changes.net import NetChanges
from pgsluice.disk import DiskTrouble, disk_trouble
from pgsluice.errors import ForeignTarget, ParkReason, PgsluiceError, TableError, TargetUnreachable
from pgsluice.hints import copy_again
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import Applied, Sink, TableHandle, TargetContent, TargetTable
from pgsluice.sinks.identity import CommitMarker, TargetIdentity
from pgsluice.stores.contract import StoreError

_NO_RULES = (
    "remove the rules that docs/delta.md lists, such as constraints or the change data feed, from "
    "the target table"
)
_ADOPT = (
    "\nto keep the rows that are equal to the source's, and replace or delete all others: stop the "
    "run, set adopt = true in [[subscription]], run `pgsluice drop CONFIG --subscription NAME`, "
    "and start the run again"
)


class OpenedTable:
    """One target table, with a required definition and origin of its rows; it is opened when first
    needed, and again after an error."""

    def __init__(self, sink: Sink, table: TargetTable, identity: TargetIdentity) -> None:
        self._sink = sink
        self._table = table
        self._identity = identity
        self._handle: TableHandle | None = None
        self._marker: CommitMarker | None = None
        self._is_checked = False
        self._start: CommitMarker | None = None
        self._has_start = False

    @property
    def handle(self) -> TableHandle:
        """The handle, at the version at which the table is open."""
        if self._handle is None:
            with self.naming_disk_trouble():
                self._handle = self._sink.open(self._table, self._identity)
        return self._handle

    def refuse_unsupported(self, changes: NetChanges | None = None) -> None:
        """Refuse changes that the target does not support; None: only what the identity's mode
        needs.

        Raises:
            TableError: the target cannot be in this mode, or have a table without a key.
        """
        handle, mode, title = self.handle, self._identity.mode, self._table.title
        if mode.log is not None and not handle.can_append():
            raise TableError(
                f"the sink of table {title} does not support change logs",
                hint='set mode = "current" in the subscription, or use another sink; restart '
                f"`pgsluice run CONFIG`, then copy the table: {copy_again(title)}",
                table=title,
            )
        if mode.history is not None and not handle.can_keep_versions():
            raise TableError(
                f"the target of table {title} does not support a history",
                hint=f'{_NO_RULES}; or set mode = "current" in the subscription and restart '
                f"`pgsluice run CONFIG`; then copy the table: {copy_again(title)}",
                table=title,
            )
        if mode.deleted_column is not None and not handle.can_keep_deleted():
            raise TableError(
                f"the target of table {title} does not support deleted_column",
                hint=f"{_NO_RULES}; or remove deleted_column from the subscription and restart "
                f"`pgsluice run CONFIG`; then copy the table: {copy_again(title)}",
                table=title,
            )
        is_whole = changes is not None and changes.whole_rows is not None
        if is_whole and not handle.can_change_whole_rows():
            raise TableError(
                f"table {title} has no key, and its target does not support tables without a key",
                hint=f"give the table a primary key; or {_NO_RULES}; then copy the table: "
                f"{copy_again(title)}",
                table=title,
                reason=ParkReason.KEY,
            )

    @contextmanager
    def naming_disk_trouble(self) -> Iterator[None]:
        """A context that adds the table and its location to errors of its disk.

        Raises:
            TargetUnreachable: no room, missing permissions, or another problem of the disk.
        """
        try:
            yield
        except OSError as error:
            location = self._sink.location(self._table.namespace, self._table.name)
            if (trouble := disk_trouble(error, location)) is None:
                raise
            raise target_trouble(trouble, self._table.title) from error
        except StoreError as error:
            trouble = DiskTrouble(error.what, error.hint or "look at the store")
            raise target_trouble(trouble, self._table.title) from error

    def close(self) -> None:
        """Forget the handle and the marker: the next use opens the table again."""
        self._handle, self._marker, self._is_checked = None, None, False

    def marker(self) -> CommitMarker | None:
        """Our marker; None if the table does not exist yet.

        Raises:
            TableError: the table has rows of another source, or others changed its data.
        """
        if not self._is_checked:
            self._marker = self._own_marker()
            if self._marker is not None:
                with self.naming_disk_trouble():
                    self.handle.refuse_foreign_changes()
            self._is_checked = True
        return self._marker

    def start(self) -> CommitMarker | None:
        """Our marker, as :meth:`marker`; from now on, changes have to start at its position."""
        self._start, self._has_start = self.marker(), True
        return self._start

    def marker_since_start(self) -> CommitMarker | None:
        """Our current marker, as :meth:`marker`; the first call fixes where changes have to
        start."""
        return self.marker() if self._has_start else self.start()

    def refuse_another_start(self) -> None:
        """Check that the table is still at the position where changes start.

        Raises:
            PgsluiceError: another attempt has moved it, or it has another copy.
        """
        marker = self.marker_since_start()
        is_another_copy = marker is not None and marker.copy_number != self._identity.copy_number
        if marker != self._start or is_another_copy:
            raise PgsluiceError(
                f"table {self._table.title}: another attempt has written to the target table in "
                "the meantime",
                hint="nothing to do: pgsluice retries the changes",
            )

    def marker_before_copy(self) -> CommitMarker | None:
        """Open the table again for a copy, and return our marker; None if the copy replaces the
        existing rows.

        Changes of others do not matter, because the copy replaces them.

        Raises:
            TableError: the table holds rows that the copy may not replace.
        """
        self.close()
        return None if self._is_taken_over() else self._own_marker()

    def write(self, write: Callable[[TableHandle], Applied]) -> Applied:
        """Write through the handle whose marker was read; after an error it is discarded."""
        try:
            with self.naming_disk_trouble():
                applied = write(self.handle)
        except BaseException:
            self.close()
            raise
        self._marker, self._is_checked = None, False
        return applied

    def _own_marker(self) -> CommitMarker | None:
        handle, title = self.handle, self._table.title
        if handle.version < 0:
            return None
        with self.naming_disk_trouble():
            marker = handle.marker()
        if marker is None:
            raise TableError(
                f"{handle.location} already has a table that pgsluice did not create",
                hint="set path in the sink to another folder; or move the table there away, and "
                "copy the source's table again: " + copy_again(title),
                table=title,
                location=handle.location,
            )
        if marker.owner != self._identity.owner or marker.position is None:
            raise ForeignTarget(
                f"the target table at {handle.location} has rows that pgsluice wrote from another "
                "spool, for another table, in another mode, or with other names of columns (its "
                "mark does not tell which of these)",
                hint=f"to delete these rows and copy the table again: {copy_again(title)}\n"
                "to keep the rows: move that table away before you copy, or set path in the sink "
                "to another folder" + (_ADOPT if self._identity.mode.has_current_rows_only else ""),
                table=title,
                location=handle.location,
            )
        return marker

    def has_rows_of(self, *, ours: bool) -> bool:
        """Whether the table has rows of this spool, in this mode, of a table that has or had the
        name (``ours``), or other rows that pgsluice wrote."""
        marker = self.handle.marker() if self.handle.version >= 0 else None
        return marker is not None and (marker.owner in self._owners()) is ours

    def _owners(self) -> set[int]:
        """Of the relation's rows, and of those whose name it has."""
        oids = (self._identity.relation_oid, *self._table.predecessor_oids)
        return {replace(self._identity, relation_oid=oid).owner for oid in oids}

    def _is_taken_over(self) -> bool:
        """Whether the table has another relation's rows, which the copy may replace."""
        marker = self.handle.marker() if self.handle.version >= 0 else None
        if marker is None or marker.owner == self._identity.owner:
            return False
        return self._table.may_replace_foreign_target or marker.owner in self._owners()


def read_content(
    sink: Sink, table: TargetTable, identity: TargetIdentity, version: int, position: Lsn
) -> TargetContent | None:
    """The content of a target at a version; None: the sink cannot read it, its rows are of another
    origin, or it was not applied up to this position. The table's columns are not used."""
    content = sink.open(table, identity).content(version)
    expected = CommitMarker(identity.owner, identity.copy_number, position)
    return content if content is not None and content.marker == expected else None


def target_trouble(trouble: DiskTrouble, table: str) -> TargetUnreachable:
    """The error for a table whose target's disk is full, or cannot be written otherwise."""
    return TargetUnreachable(
        f"table {table}: {trouble.what}",
        hint=f"{trouble.hint}; no data is lost, and pgsluice keeps retrying",
        table=table,
    )
