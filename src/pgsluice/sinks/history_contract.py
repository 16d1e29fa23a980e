"""What a target has to provide beside :class:`.TableHandle` to be a history."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import pyarrow as pa

from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import Applied, StagedRows, TableHandle


class HistoryHandle(TableHandle):
    """A table with each version of a row (:mod:`pgsluice.changes.history`).

    Net changes that it applies have :attr:`.NetChanges.closings`: it closes the current versions of
    their ``deletes``, and adds their ``rows``. :meth:`alter` gives added columns their value in
    current versions.
    """

    @abstractmethod
    def load_versions(
        self, schema: pa.Schema, staged: Sequence[StagedRows], position: Lsn
    ) -> Applied:
        """Make staged rows the current versions, in one commit. Rows that are equal to the current
        version of their key are not added; other current versions end at the position.

        Args:
            schema: the table's columns afterwards, in the types of :meth:`target_types`; columns
                that it lacks are NULL in existing rows.
            staged: rows in these columns.

        Raises:
            Overtaken: another commit came first; the staged rows can be committed again.
        """
