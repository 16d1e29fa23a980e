"""Prepared transactions: parts that are kept between PREPARE and its end, across restarts.

Each is one small file, ``prepared/<UTC hour>/<prepare LSN>-<xid>.arrow``: a header of kind
``prepared`` that names its parts. It is durable before the PREPARE may be acknowledged, and
goes when the transaction's reference segment is durable, or it is rolled back.

The key is (gid, xid, prepare_lsn): a name may be used again, and the server sends a PREPARE
again until it is acknowledged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pgsluice.spool.header import PartReference, PreparedHeader
from pgsluice.spool.layout import PREPARED, new_prepared
from pgsluice.spool.segment import expect_kind, read_header, write_segment
from pgsluice.spool.storage import LocalStorage


class PreparedTransactions:
    """The prepared transactions of one spool.

    Args:
        storage: the spool's.
    """

    def __init__(self, storage: LocalStorage) -> None:
        self._storage = storage
        self._kept: dict[tuple[str, int], tuple[str, PreparedHeader]] = {}

    def load(self, committed: Collection[str]) -> set[str]:
        """Read what is there, without those that were committed just before their writer died.

        Args:
            committed: the transactions that have a reference segment.

        Returns:
            the names of all parts that are kept.

        Raises:
            SpoolError: a file cannot be read.
        """
        self._kept.clear()
        for entry in self._storage.entries(PREPARED):
            with self._storage.open(entry.name) as file:
                header = expect_kind(read_header(file, entry.name), PreparedHeader, entry.name)
            if header.transaction in committed:
                self._storage.delete(entry.name)
            else:
                self._kept[header.gid, header.xid] = (entry.name, header)
        return {part.name for header in self for part in header.parts}

    def __iter__(self) -> Iterator[PreparedHeader]:
        return (header for _, header in self._kept.values())

    def find(self, gid: str, xid: int) -> PreparedHeader | None:
        """One transaction; None when it is not here."""
        kept = self._kept.get((gid, xid))
        return None if kept is None else kept[1]

    def put(self, header: PreparedHeader) -> bool:
        """Keep a transaction durably; False when it is kept already."""
        known = self.find(header.gid, header.xid)
        if known is not None:
            if known.prepare_lsn == header.prepare_lsn:
                return False
            # It ended without our seeing it, or it could not have been prepared again.
            for part in self.end(header.gid, header.xid):
                self._storage.delete(part.name)
        name = new_prepared(header.prepare_lsn, header.xid)
        self._storage.put(name, lambda file: write_segment(file, header, None))
        self._kept[header.gid, header.xid] = (name, header)
        return True

    def end(self, gid: str, xid: int) -> tuple[PartReference, ...]:
        """Forget a transaction.

        Returns:
            its parts; they belong to its reference now, or to nothing.
        """
        kept = self._kept.pop((gid, xid), None)
        if kept is None:
            return ()
        self._storage.delete(kept[0])
        return kept[1].parts
