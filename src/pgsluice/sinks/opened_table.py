"""A target table while a task writes to it: the handle, and what our newest commit in it says.

The marker of that commit decides whose rows the table has, and where changes start. Both are read
from the handle through which the write goes, so that another commit in between is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from pgsluice.disk import DiskTrouble, disk_trouble
from pgsluice.errors import ForeignTarget, PgsluiceError, TableError
from pgsluice.hints import copy_again
from pgsluice.sinks.contract import (
    Applied,
    CommitMarker,
    Sink,
    TableHandle,
    TargetIdentity,
    TargetTable,
)
from pgsluice.sinks.target_trouble import target_trouble
from pgsluice.stores.contract import StoreError


class OpenedTable:
    """One target table; it is opened when it is first needed, and again after an error.

    Args:
        table: what it has to be.
        identity: whose rows it has to hold.
    """

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
        """The table at the version at which it is open."""
        if self._handle is None:
            with self.naming_disk_trouble():
                self._handle = self._sink.open(self._table, self._identity)
        return self._handle

    @contextmanager
    def naming_disk_trouble(self) -> Iterator[None]:
        """Say which table is used, and where, if its disk fails meanwhile.

        Raises:
            TargetUnreachable: there is no room, no right, or another trouble.
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
        """Open the table anew at its next use."""
        self._handle, self._marker, self._is_checked = None, None, False

    def marker(self) -> CommitMarker | None:
        """Our marker; None for a table that does not exist yet.

        Raises:
            TableError: the table holds another source's rows, or others changed its data.
        """
        if not self._is_checked:
            self._marker = self._own_marker()
            if self._marker is not None:
                with self.naming_disk_trouble():
                    self.handle.refuse_foreign_changes()
            self._is_checked = True
        return self._marker

    def start(self) -> CommitMarker | None:
        """Our marker; changes start here from now on.

        Raises:
            TableError: see :meth:`marker`.
        """
        self._start, self._has_start = self.marker(), True
        return self._start

    def marker_since_start(self) -> CommitMarker | None:
        """Our marker as the table is open now; the first one is where changes start.

        Raises:
            TableError: see :meth:`marker`.
        """
        return self.marker() if self._has_start else self.start()

    def refuse_another_start(self) -> None:
        """Make sure that the table is still where changes start.

        Raises:
            PgsluiceError: another attempt has moved it, or it has another copy.
        """
        marker = self.marker_since_start()
        is_another_copy = marker is not None and marker.copy_number != self._identity.copy_number
        if marker != self._start or is_another_copy:
            raise PgsluiceError(
                f"the target of {self._table.title} is not where the changes start",
                hint="try again",
            )

    def marker_before_copy(self) -> CommitMarker | None:
        """Open the table anew for a copy: our marker; None where the copy replaces what is there.

        Changes of others don't matter: the copy replaces them.

        Raises:
            TableError: the table holds rows that the copy may not replace.
        """
        self.close()
        return None if self._is_taken_over() else self._own_marker()

    def write(self, write: Callable[[TableHandle], Applied]) -> Applied:
        """Write through the handle whose marker was read; it is discarded after an error."""
        try:
            with self.naming_disk_trouble():
                applied = write(self.handle)
        except BaseException:
            self.close()
            raise
        self._marker, self._is_checked = None, False
        return applied

    def _own_marker(self) -> CommitMarker | None:
        handle = self.handle
        if handle.version < 0:
            return None
        with self.naming_disk_trouble():
            marker = handle.marker()
        title = self._table.title
        if marker is None:
            raise TableError(
                f"there is a table at {handle.location} that pgsluice did not make",
                hint="choose another path for the sink; or move the table away and copy again: "
                + copy_again(title),
                table=title,
                location=handle.location,
            )
        if marker.owner != self._identity.owner or marker.position is None:
            raise ForeignTarget(
                f"pgsluice wrote the table at {handle.location} from another spool, or for another "
                "table",
                hint=f"to replace its rows, which deletes the old ones: {copy_again(title)}\n"
                "to keep them, move it away before that, or choose another path for the sink\n"
                "to keep those that are equal to the source's: adopt = true in [[subscription]]",
                table=title,
                location=handle.location,
            )
        return marker

    def _is_taken_over(self) -> bool:
        """Whether the table holds another relation's rows, and the copy may replace them."""
        marker = self.handle.marker() if self.handle.version >= 0 else None
        if marker is None or marker.owner == self._identity.owner:
            return False
        return self._table.may_replace_foreign_target or marker.owner in {
            replace(self._identity, relation_oid=oid).owner for oid in self._table.predecessor_oids
        }
