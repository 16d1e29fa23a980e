"""Transactions in parts: their files, and which of their messages still belong to them.

A transaction is written in parts if it is streamed, prepared, or larger than a segment. An aborted
subtransaction removes all messages from its first one on: later messages belong to it or to its
children, because it had not ended. Later parts are deleted, and the part with its first message
keeps the messages before that one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from pgsluice.errors import SpoolError
from pgsluice.spool.layout import PREPARED, PreparedName
from pgsluice.spool.segments.block import Counts, InForce, relations_of
from pgsluice.spool.segments.header import PartReference, PreparedHeader
from pgsluice.spool.segments.segment import Objects


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """A part that was written.

    Attributes:
        kept: how many of its first messages still belong to the transaction.
        counts: the counts of the kept messages.
        in_force: the relations after the last kept message.
    """

    name: str
    size_bytes: int
    messages: int
    kept: int
    counts: Counts
    in_force: InForce


@dataclass(slots=True)
class TransactionInParts:
    """An open transaction and its parts; ``sequence`` is the next part's number in it."""

    xid: int
    in_stream: bool
    parts: list[WrittenPart] = field(default_factory=list)
    sequence: int = 0

    @property
    def in_force(self) -> InForce:
        """The relations as the transaction's own messages have announced them."""
        return self.parts[-1].in_force if self.parts else {}

    def counts(self) -> Counts:
        """The counts of all messages that still belong to the transaction."""
        total = Counts()
        for part in self.parts:
            total.add(part.counts)
        return total

    def relations(self) -> InForce:
        """The changed relations, as the transaction announced them last."""
        return relations_of(self.in_force, self.counts().relations)

    def references(self) -> tuple[PartReference, ...]:
        """The transaction's parts, in the form that a reference or prepared file has."""
        references, changes = [], 0
        for part in self.parts:
            drops = ((part.kept, part.messages),) if part.kept < part.messages else ()
            references.append(
                PartReference(part.name, part.size_bytes, part.messages, changes, drops)
            )
            changes += part.counts.changes
        return tuple(references)

    def truncate(
        self, messages: int, shorten: Callable[[WrittenPart, int], WrittenPart]
    ) -> list[WrittenPart]:
        """Keep only the first messages; returns the parts that no longer belong to the transaction.
        ``shorten`` returns a part with only its first n messages kept."""
        removed: list[WrittenPart] = []
        count = sum(part.kept for part in self.parts)
        if messages > count:
            raise SpoolError(f"{messages} messages are to be kept of {count}")
        while count > messages:
            part = self.parts.pop()
            count -= part.kept
            if count < messages:
                self.parts.append(shorten(part, messages - count))
                break
            removed.append(part)
        return removed


class PreparedTransactions:
    """The prepared transactions of one spool, kept to their end, also across restarts.

    Each has a small file with a :class:`PreparedHeader` that lists its parts. The file is durable
    before the PREPARE may be acknowledged. It is deleted when the transaction's reference is
    durable, or after a rollback. The key is (gid, xid, prepare_lsn): a later transaction may have
    the same gid, and the server resends a PREPARE until it is acknowledged.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._storage = objects.storage
        self._kept: dict[tuple[str, int], tuple[str, PreparedHeader]] = {}

    def load(self, committed: Collection[str]) -> set[str]:
        """Read the prepared transactions, and return the names of their parts; delete those in
        ``committed``, which have a reference: their writer crashed after the commit. Raises
        SpoolError if a file cannot be read."""
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
        """The header of a prepared transaction's file; None if it is not prepared."""
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
        """Remove a transaction's record; returns its parts, which the caller deletes unless a
        reference has them."""
        kept = self._kept.pop((gid, xid), None)
        if kept is None:
            return ()
        self._storage.delete(kept[0])
        return kept[1].parts
