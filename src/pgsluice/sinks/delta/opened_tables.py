"""Delta tables that stay open in a process from one batch to the next.

To open a table and to ask for its transaction identifiers reads its log, which takes longer than
the changes of most batches. A kept table is used again only if its newest commit is still the same
file, and after it has read the commits that followed. Object stores have nothing to tell that by:
their tables are opened each time.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pgsluice.sinks.delta.log import commit_path, local_folder, newest_version, stamp

_MOST_TABLES = 2000
_MOST_FILES = 1000
"""A table with more files takes megabytes of memory, and its merges longer than its opening."""

_kept: dict[Path, tuple[OpenedTable, tuple[int, ...]]] = {}
_lock = threading.Lock()


class OpenedTable(DeltaTable):
    """A table that knows the transaction identifiers that it was asked for."""

    _transactions: Mapping[str, int | None] = {}
    _transactions_at = -1
    """The version that they are of."""

    def transaction_version(self, app_id: str) -> int | None:
        """The version of a transaction identifier; None: no commit had it."""
        if self._transactions_at != self.version():
            self._transactions, self._transactions_at = {}, self.version()
        if app_id not in self._transactions:
            known = {app_id: super().transaction_version(app_id)}
            self._transactions = {**self._transactions, **known}
        return self._transactions[app_id]

    def committed(self, version: int, transactions: Mapping[str, int]) -> None:
        """Note that a version is a commit of our own with these identifiers."""
        if version != self.version():
            return  # somebody has made another one since
        before = self._transactions if self._transactions_at == self.version() - 1 else {}
        self._transactions = {**before, **transactions}
        self._transactions_at = self.version()


def keep(uri: str, table: OpenedTable) -> bool:
    """Keep a table for the next batch; whoever gives it does not use it any more.

    Returns:
        False: it is not kept.
    """
    folder = local_folder(uri)
    newest = None if folder is None else stamp(commit_path(folder, table.version()))
    if folder is None or newest is None or len(table.file_uris()) > _MOST_FILES:
        return False
    with _lock:
        _kept[folder] = table, newest
        while len(_kept) > _MOST_TABLES:
            del _kept[next(iter(_kept))]
    return True


def take(uri: str) -> OpenedTable | None:
    """The table that was kept, at its newest version; None: it has to be opened."""
    folder = local_folder(uri)
    if folder is None:
        return None
    with _lock:
        kept = _kept.pop(folder, None)
    if kept is None:
        return None
    table, newest = kept
    if stamp(commit_path(folder, table.version())) != newest:
        return None  # another table has its place, or the commit was cleaned up
    # A listing, because a network file system may say for a while that a new file is not there.
    if newest_version(folder) != table.version():
        try:
            table.update_incremental()
        except (DeltaError, OSError):
            return None
    return table
