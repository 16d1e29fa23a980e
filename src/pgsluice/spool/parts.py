"""A transaction that is written in parts: which files it has, and what of them still counts.

A transaction arrives in parts when it is streamed while it is open, when it is prepared, or
when it is larger than a segment. An aborted subtransaction takes everything back from its
first message on: the subtransaction had not ended then, so what came after it is its own or
its children's. Parts that lie behind that place go, the one that it lies in keeps its
beginning, and later parts follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pgsluice.errors import SpoolError
from pgsluice.spool.block import RelationInForce
from pgsluice.spool.scan import Counts
from pgsluice.spool.segment import PartReference

InForce = Mapping[int, RelationInForce]


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """One part on the disk.

    Attributes:
        name, size_bytes: of the file.
        messages: how many it holds.
        kept: how many of them, from its first on, belong to the transaction.
        counts: of what is kept.
        in_force: the relations after what is kept.
    """

    name: str
    size_bytes: int
    messages: int
    kept: int
    counts: Counts
    in_force: InForce


@dataclass(slots=True)
class TransactionInParts:
    """A transaction that is still open.

    Attributes:
        body: 5 when its messages carry an in-stream xid, else 1.
        parts: in order.
        sequence: the next part's number.
    """

    body: int
    parts: list[WrittenPart] = field(default_factory=list)
    sequence: int = 0

    @property
    def in_force(self) -> InForce:
        """What the transaction itself has said of relations so far."""
        return self.parts[-1].in_force if self.parts else {}

    def counts(self) -> Counts:
        """Of all that is kept."""
        total = Counts()
        for part in self.parts:
            total.add(part.counts)
        return total

    def relations(self) -> InForce:
        """What was in force last, for the relations that have changes."""
        in_force, used = self.in_force, self.counts().relations
        return {oid: in_force[oid] for oid in used if oid in in_force}

    def references(self) -> tuple[PartReference, ...]:
        """The parts as a reference segment names them."""
        references, changes = [], 0
        for part in self.parts:
            drops = ((part.kept, part.messages),) if part.kept < part.messages else ()
            references.append(
                PartReference(part.name, part.size_bytes, part.messages, changes, drops)
            )
            changes += part.counts.changes
        return tuple(references)

    def take_back(
        self, messages: int, shorten: Callable[[WrittenPart, int], WrittenPart]
    ) -> list[WrittenPart]:
        """Keep the first messages only.

        Args:
            messages: how many.
            shorten: a part with only its first n messages kept.

        Returns:
            the parts that hold none of them; they belong to nothing any more.
        """
        gone: list[WrittenPart] = []
        before = sum(part.kept for part in self.parts)
        if messages > before:
            raise SpoolError(f"{messages} messages are to be kept of {before}")
        while before > messages:
            part = self.parts.pop()
            before -= part.kept
            if before < messages:
                self.parts.append(shorten(part, messages - before))
                break
            gone.append(part)
        return gone
