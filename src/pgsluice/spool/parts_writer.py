"""Transactions that arrive in parts: written, shortened, kept when prepared, committed.

A part of the writer (:mod:`pgsluice.spool.writer`): it shares the writer's lock, its chain of
segments and what the connection has said of relations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pgsluice.errors import SpoolError
from pgsluice.facts import RelationFacts
from pgsluice.failpoints import failpoint
from pgsluice.lsn import Lsn
from pgsluice.spool.block import RelationInForce
from pgsluice.spool.layout import SegmentName, new_part
from pgsluice.spool.parts import InForce, TransactionInParts, WrittenPart
from pgsluice.spool.prepared import PreparedTransactions
from pgsluice.spool.reader import SegmentInfo, relations_after, roots_of
from pgsluice.spool.scan import Counts, RawMessages, count_changes, part_block
from pgsluice.spool.segment import SegmentHeader, read_segment, write_segment

if TYPE_CHECKING:
    from pgsluice.spool.writer import SpoolWriter


class PartsWriter:
    """The transactions in parts of one writer.

    Args:
        writer: whose.
    """

    def __init__(self, writer: SpoolWriter) -> None:
        self._writer = writer
        self._storage = writer.spool.storage
        self._open: dict[str, TransactionInParts] = {}
        self._written = 0
        self._prepared = PreparedTransactions(self._storage)

    def load(self, committed: Collection[str]) -> set[str]:
        """Read which transactions are prepared; see :meth:`PreparedTransactions.load`."""
        return self._prepared.load(committed)

    def prepared(self) -> Iterable[SegmentHeader]:
        """The transactions that are prepared and have not ended."""
        return self._prepared

    @property
    def waiting_bytes(self) -> int:
        """Parts of transactions that have not ended: open or prepared ones."""
        with self._writer.mutex:
            of_open = (part.size_bytes for state in self._open.values() for part in state.parts)
            of_prepared = (part.size_bytes for header in self._prepared for part in header.parts)
            return sum(of_open) + sum(of_prepared)

    def abandon_all(self) -> None:
        """What is open, and not prepared, will come again from its beginning."""
        for transaction in list(self._open):
            self.abandon(transaction)

    def append(self, transaction: str, messages: RawMessages, *, body: int = 1) -> None:
        """Make a piece of an open transaction durable.

        Args:
            transaction: the transaction's key, unique among those this writer has open;
                letters, digits and ``-``.
            messages: what arrived since its last part.
            body: 5 for messages that carry an in-stream xid, else 1. What the former say of
                relations holds for their transaction until it joins at its commit.

        Raises:
            SpoolFull, SpoolError: it could not be written; nothing changed.
        """
        with self._writer.mutex:
            state = self._open.setdefault(transaction, TransactionInParts(body))
            before = self._writer.in_force if body == 1 else state.in_force
            counts, in_force = _measure(messages, body, before)
            header = self._writer.header(
                "part", counts, before, body=body, transaction=transaction, sequence=state.sequence
            )
            # Counted over all parts: a transaction may come again on another connection, and
            # what was prepared keeps its parts meanwhile.
            self._written += 1
            name = new_part(self._writer.epoch, transaction, self._written)
            size = self._storage.put(name, lambda file: write_segment(file, header, messages))
            if body == 1:
                self._writer.in_force = dict(in_force)
            kept = len(messages)
            state.parts.append(WrittenPart(name, size, kept, kept, counts, in_force))
            state.sequence += 1
            failpoint("spool.after_part")

    def take_back(self, transaction: str, kept_messages: int) -> None:
        """Keep only the first messages of an open transaction: a subtransaction aborted.

        Args:
            transaction: the key of its parts.
            kept_messages: how many, counted over its parts without what was taken back before.

        Raises:
            SpoolError: a part cannot be read again.
        """
        with self._writer.mutex:
            state = self._open[transaction]

            def shorten(part: WrittenPart, kept: int) -> WrittenPart:
                with self._storage.open(part.name) as file:
                    _, messages = read_segment(file, part.name)
                    counts, in_force = _measure(messages.first(kept), state.body, state.in_force)
                return replace(part, kept=kept, counts=counts, in_force=in_force)

            for part in state.take_back(kept_messages, shorten):
                self._storage.delete(part.name)

    def commit(
        self,
        transaction: str,
        *,
        position: Lsn,
        commit_timestamp: int,
        xid: int,
        facts: Mapping[int, RelationFacts | None] | None = None,
        joining: Collection[int] = (),
    ) -> SegmentInfo | None:
        """Make a transaction's parts readable, by one reference segment at its commit.

        Args:
            transaction: the key of its parts; its last message is in them.
            position: the transaction's end LSN.
            commit_timestamp: microseconds since 1970-01-01 UTC.
            xid: the top-level transaction's.
            facts: of the relations that it changed, looked up after its commit; None when
                they stand in its messages.
            joining: relations that from now on are as this transaction has said.

        Returns:
            the reference; None when the transaction was here already.

        Raises:
            SpoolFull, SpoolError: it could not be written; nothing changed.
        """
        with self._writer.mutex:
            state = self._open[transaction]
            relations = {} if facts is None else self._with_facts(state.relations(), facts)
            learnt = self._with_facts(state.in_force, facts or {})
            info = None
            if position > self._writer.position:
                header = replace(
                    self._writer.header("reference", state.counts()),
                    body=state.body,
                    transaction=f"{self._writer.epoch:08X}-{transaction}",
                    xid=xid,
                    parts=state.references(),
                )
                info = self._put_reference(header, position, commit_timestamp, relations)
                del self._open[transaction]
            else:
                self.abandon(transaction)
            self._writer.in_force.update({oid: learnt[oid] for oid in joining if oid in learnt})
            return info

    def prepare(self, transaction: str, *, gid: str, xid: int, prepare_lsn: Lsn) -> None:
        """Keep a prepared transaction's parts until its end, across restarts.

        One that is kept already (the server sends it again until it is acknowledged) is
        dropped.

        Args:
            transaction: the key of its parts; may have none.
            gid: the name that PREPARE TRANSACTION gave it.
            xid: the transaction's.
            prepare_lsn: where the prepare's record starts.

        Raises:
            SpoolFull, SpoolError: it could not be written; nothing changed.
        """
        with self._writer.mutex:
            state = self._open.get(transaction) or TransactionInParts(1)
            header = replace(
                self._writer.header("prepared", state.counts()),
                relations=state.relations(),
                body=state.body,
                transaction=f"{self._writer.epoch:08X}-{transaction}",
                xid=xid,
                parts=state.references(),
                gid=gid,
                prepare_lsn=prepare_lsn,
            )
            if self._prepared.put(header):
                self._open.pop(transaction, None)
                failpoint("spool.after_prepared")
            else:
                self.abandon(transaction)

    def prepared_relations(self, gid: str, xid: int) -> tuple[int, ...]:
        """OIDs of the relations that a prepared transaction changes."""
        with self._writer.mutex:
            kept = self._prepared.find(gid, xid)
            return () if kept is None else tuple(kept.relations)

    def commit_prepared(
        self,
        gid: str,
        xid: int,
        *,
        position: Lsn,
        commit_timestamp: int,
        facts: Mapping[int, RelationFacts | None],
    ) -> SegmentInfo | None:
        """Make a prepared transaction readable at its COMMIT PREPARED.

        Args:
            gid, xid: of the transaction.
            position: the end LSN of its commit.
            commit_timestamp: microseconds since 1970-01-01 UTC.
            facts: see :meth:`commit`.

        Returns:
            the reference; None when it was here already.

        Raises:
            SpoolError: its prepare is not in the spool.
            SpoolFull, SpoolError: it could not be written; nothing changed.
        """
        with self._writer.mutex:
            kept = self._prepared.find(gid, xid)
            if position <= self._writer.position:
                self.rollback_prepared(gid, xid)
                return None
            if kept is None:
                raise SpoolError(
                    f"COMMIT PREPARED at {position} of a transaction (xid {xid}) whose PREPARE "
                    "is not in the spool: it cannot be applied",
                    hint="what it changed has to be copied again: `pgsluice drop`, then start",
                    xid=xid,
                    lsn=position,
                )
            relations = self._with_facts(dict(kept.relations), facts)
            header = replace(kept, epoch=self._writer.epoch)
            info = self._put_reference(header, position, commit_timestamp, relations)
            failpoint("spool.after_commit_prepared")
            self._prepared.end(gid, xid)
            return info

    def rollback_prepared(self, gid: str, xid: int) -> None:
        """Forget a prepared transaction and delete its parts; nothing when it is not here."""
        with self._writer.mutex:
            for part in self._prepared.end(gid, xid):
                self._storage.delete(part.name)

    def abandon(self, transaction: str) -> None:
        """Delete the parts of a transaction that will not be committed (not from here)."""
        with self._writer.mutex:
            state = self._open.pop(transaction, None)
            for part in state.parts if state else ():
                self._storage.delete(part.name)

    def _with_facts(self, relations: InForce, facts: Mapping[int, RelationFacts | None]) -> InForce:
        """The relations with their facts as of the commit.

        One that is gone since then has those that the connection knows, if it was the same
        relation then, word by word; else they are unknown.
        """
        result = {}
        for oid, one in relations.items():
            found = facts.get(oid, one.facts)
            known = self._writer.in_force.get(oid)
            if found is None and known is not None and known.relation == one.relation:
                found = known.facts
            result[oid] = RelationInForce(one.relation, found)
        return result

    def _put_reference(
        self, header: SegmentHeader, position: Lsn, commit_timestamp: int, relations: InForce
    ) -> SegmentInfo:
        name = SegmentName(self._writer.position, position, self._writer.epoch, is_reference=True)
        reference = replace(
            header,
            kind="reference",
            start=name.start,
            end=name.end,
            transactions=1,
            relations=relations,
            roots=roots_of(header.counts, relations or self._writer.in_force),
            first_commit_timestamp=commit_timestamp,
            last_commit_timestamp=commit_timestamp,
            gid="",
            prepare_lsn=Lsn(0),
        )
        return self._writer.put_segment(name, reference, None)


def _measure(messages: RawMessages, body: int, before: InForce) -> tuple[Counts, InForce]:
    """What a part counts, and which relations are in force after it."""
    block = part_block(messages, body=body, position=0, commit_timestamp=0, xid=0, ordinal_start=0)
    return count_changes(block), relations_after(before, block)
