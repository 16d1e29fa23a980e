"""A transaction in parts: its files, and which of their messages still belong to it.

A transaction is written in parts if it is streamed, prepared, or larger than a segment. An aborted
subtransaction removes all messages from its first one on: later messages belong to it or to its
children, because it had not ended. Later parts are deleted, and the part with its first message
keeps the messages before that one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pgsluice.errors import SpoolError
from pgsluice.spool.segments.block import InForce, relations_of
from pgsluice.spool.segments.header import PartReference
from pgsluice.spool.segments.scan import Counts


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """A part that was written.

    Attributes:
        name, size_bytes: the file's name and size.
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
    """An open transaction and its parts.

    Attributes:
        xid: its top-level xid.
        in_stream: see :class:`pgsluice.spool.segments.block.MessageBlock`.
        sequence: the next part's number.
    """

    xid: int
    in_stream: bool
    parts: list[WrittenPart] = field(default_factory=list)
    sequence: int = 0

    @property
    def in_force(self) -> InForce:
        """The relations as the transaction's own messages have announced them."""
        return self.parts[-1].in_force if self.parts else {}

    def counts(self) -> Counts:
        """The counts of all kept messages."""
        total = Counts()
        for part in self.parts:
            total.add(part.counts)
        return total

    def relations(self) -> InForce:
        """The changed relations, as the transaction announced them last."""
        return relations_of(self.in_force, self.counts().relations)

    def references(self) -> tuple[PartReference, ...]:
        """The parts in the form of a reference or prepared file."""
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
        """Keep only the first messages.

        Args:
            shorten: returns the given part with only its first n messages kept.

        Returns:
            the parts without kept messages, which no longer belong to the transaction.
        """
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
