"""Prepared transactions: parts that are kept from PREPARE to the end of the transaction, across
restarts.

Each has a small file with a :class:`PreparedHeader` that lists its parts. The file is durable
before the PREPARE may be acknowledged. It is deleted when the transaction's reference is durable,
or after a rollback.

The key is (gid, xid, prepare_lsn): a later transaction may have the same gid, and the server
resends a PREPARE until it is acknowledged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pgsluice.spool.layout import PREPARED, PreparedName
from pgsluice.spool.segments.header import PartReference, PreparedHeader
from pgsluice.spool.segments.objects import Objects


class PreparedTransactions:
    """The prepared transactions of one spool.

    Args:
        objects: the spool's.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._storage = objects.storage
        self._kept: dict[tuple[str, int], tuple[str, PreparedHeader]] = {}

    def load(self, committed: Collection[str]) -> set[str]:
        """Read the prepared transactions, and delete those that are already in the chain: their
        writer crashed after their commit.

        Args:
            committed: the transactions that have a reference segment.

        Returns:
            the names of their parts.

        Raises:
            SpoolError: a file cannot be read.
        """
        self._kept.clear()
        for entry in self._storage.entries(PREPARED):
            if PreparedName.parse(entry.base) is None:
                continue
            header = self._objects.header(entry.name, PreparedHeader)
            if header.transaction in committed:
                self._storage.delete(entry.name)
            else:
                self._kept[header.gid, header.xid] = (entry.name, header)
        return {part.name for header in self for part in header.parts}

    def __iter__(self) -> Iterator[PreparedHeader]:
        return (header for _, header in self._kept.values())

    def find(self, gid: str, xid: int) -> PreparedHeader | None:
        """The transaction's header; None if it is not prepared."""
        kept = self._kept.get((gid, xid))
        return None if kept is None else kept[1]

    def put(self, header: PreparedHeader) -> bool:
        """Record a prepared transaction durably; False if it is already recorded."""
        known = self.find(header.gid, header.xid)
        if known is not None:
            if known.prepare_lsn == header.prepare_lsn:
                return False
            # The gid was free again: the older transaction ended while nobody was connected.
            for part in self.end(header.gid, header.xid):
                self._storage.delete(part.name)
        name, _ = self._objects.put(header)
        self._kept[header.gid, header.xid] = (name, header)
        return True

    def end(self, gid: str, xid: int) -> tuple[PartReference, ...]:
        """Remove a transaction's record.

        Returns:
            its parts. The caller deletes them, unless a reference has them.
        """
        kept = self._kept.pop((gid, xid), None)
        if kept is None:
            return ()
        self._storage.delete(kept[0])
        return kept[1].parts
