"""Writes transactions in parts: appends, shortens, prepares, commits and aborts them.

Readers see a part only through a reference in the chain, which is written at the commit. Between
PREPARE and the end of a prepared transaction, a separate file lists its parts
(:class:`pgsluice.spool.segments.parts.PreparedTransactions`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from pgsluice.errors import SpoolError
from pgsluice.facts import RelationFacts
from pgsluice.failpoints import failpoint
from pgsluice.hints import COPY_ALL_AGAIN
from pgsluice.lsn import Lsn
from pgsluice.spool.segments.block import (
    Counts,
    InForce,
    RawMessages,
    RelationInForce,
    count_changes,
    part_block,
    relations_of,
)
from pgsluice.spool.segments.chain import ChainEnd
from pgsluice.spool.segments.header import PartHeader, PreparedHeader, ReferenceHeader
from pgsluice.spool.segments.parts import PreparedTransactions, TransactionInParts, WrittenPart
from pgsluice.spool.segments.reader import SegmentInfo, relations_after, roots_of
from pgsluice.spool.segments.recent_commits import commit_of

Facts = Mapping[int, RelationFacts | None]


@dataclass(frozen=True, slots=True)
class WaitingTransaction:
    """A transaction in parts whose end was not received: its top-level xid, 32 bits, the size of
    its parts, and, if it is prepared, its name."""

    xid: int
    size_bytes: int
    gid: str | None = None


class PartsWriter:
    """Writes one spool's transactions in parts, and appends their references to the chain. If a
    method raises, nothing has changed.

    Attributes:
        prepared: the prepared transactions that have not ended.
    """

    def __init__(self, chain: ChainEnd) -> None:
        self._chain = chain
        self._objects = chain.objects
        self._storage = chain.objects.storage
        self._open: dict[str, TransactionInParts] = {}
        self._written = 0
        self.prepared = PreparedTransactions(self._objects)

    def waiting(self) -> tuple[WaitingTransaction, ...]:
        """The open and prepared transactions, whose end was not received."""
        with self._chain.mutex:
            of_open = (
                WaitingTransaction(state.xid, sum(part.size_bytes for part in state.parts))
                for state in self._open.values()
            )
            of_prepared = (
                WaitingTransaction(
                    header.xid, sum(part.size_bytes for part in header.parts), header.gid
                )
                for header in self.prepared
            )
            return (*of_open, *of_prepared)

    def abandon_all(self) -> None:
        """Delete the parts of all open transactions, because the server will resend them."""
        for transaction in list(self._open):
            self.abandon(transaction)

    def append(
        self, transaction: str, messages: RawMessages, *, xid: int, in_stream: bool = False
    ) -> None:
        """Make a piece of an open transaction durable.

        Args:
            transaction: the transaction's key, unique among the open ones; letters, digits and
                ``-``.
            messages: the messages since its last part.
            in_stream: whether the messages have an xid. If so, the relations that they announce are
                valid only in this transaction until it commits; else for the connection.
        """
        chain = self._chain
        with chain.mutex:
            state = self._open.setdefault(transaction, TransactionInParts(xid, in_stream))
            before = state.in_force if in_stream else chain.in_force
            counts, in_force = _measure(messages, in_stream, before)
            # The number counts the parts of all transactions, because a transaction that is
            # resent has the same key as before, and if it was prepared, its old parts exist.
            self._written += 1
            header = PartHeader(
                chain.origin(),
                counts,
                relations_of(before, counts.relations),
                in_stream=in_stream,
                transaction=transaction,
                sequence=state.sequence,
                number=self._written,
            )
            name, size = self._objects.put(header, messages)
            if not in_stream:
                chain.in_force = in_force
            kept = len(messages)
            state.parts.append(WrittenPart(name, size, kept, kept, counts, in_force))
            state.sequence += 1
            failpoint("spool.after_part")

    def truncate(self, transaction: str, kept_messages: int) -> None:
        """Keep only the first messages, of those that its parts still have, of an open transaction:
        a subtransaction was aborted."""
        with self._chain.mutex:
            state = self._open[transaction]
            for part in state.truncate(
                kept_messages, lambda part, kept: self._shorten(state, part, kept)
            ):
                self._storage.delete(part.name)

    def _shorten(self, state: TransactionInParts, part: WrittenPart, kept: int) -> WrittenPart:
        _, messages = self._objects.read(part.name, PartHeader)
        counts, in_force = _measure(messages.select(slice(kept)), state.in_stream, state.in_force)
        return WrittenPart(part.name, part.size_bytes, part.messages, kept, counts, in_force)

    def commit(
        self,
        transaction: str,
        *,
        position: Lsn,
        commit_timestamp: int,
        xid: int,
        facts: Facts | None = None,
        joining: Collection[int] = (),
    ) -> SegmentInfo | None:
        """Make a transaction readable, by a reference at its commit; returns the reference, or None
        if the transaction is already in the chain.

        Args:
            transaction: the key of its parts, which contain its last message.
            position: the transaction's end LSN.
            commit_timestamp: microseconds since 1970-01-01 UTC.
            facts: the metadata of the relations that it changed, read after its commit; None if its
                messages contain it.
            joining: OIDs of the relations whose definition in this transaction is valid for the
                connection from now on.
        """
        chain = self._chain
        with chain.mutex:
            state = self._open[transaction]
            relations = {} if facts is None else self._with_facts(state.relations(), facts)
            announced = self._with_facts(state.in_force, facts or {})
            info = None
            if position > chain.position:
                counts = state.counts()
                reference = ReferenceHeader(
                    chain.origin(),
                    counts,
                    relations,
                    start=chain.position,
                    end=position,
                    roots=roots_of(counts.relations, relations or chain.in_force),
                    commit_timestamp=commit_timestamp,
                    in_stream=state.in_stream,
                    transaction=chain.transaction_key(transaction),
                    xid=xid,
                    parts=state.references(),
                )
                info = chain.append(reference, [commit_of(reference)])
                del self._open[transaction]
            else:
                self.abandon(transaction)
            chain.in_force = {**chain.in_force, **relations_of(announced, joining)}
            return info

    def prepare(self, transaction: str, *, gid: str, xid: int, prepare_lsn: Lsn) -> None:
        """Keep the parts of a prepared transaction, if it has any, until it ends, also across
        restarts. A repeated PREPARE, which the server sends until it is acknowledged, is
        dropped."""
        with self._chain.mutex:
            state = self._open.get(transaction) or TransactionInParts(xid, in_stream=False)
            header = PreparedHeader(
                self._chain.origin(),
                state.counts(),
                state.relations(),
                in_stream=state.in_stream,
                transaction=self._chain.transaction_key(transaction),
                xid=xid,
                parts=state.references(),
                gid=gid,
                prepare_lsn=prepare_lsn,
            )
            if self.prepared.put(header):
                self._open.pop(transaction, None)
                failpoint("spool.after_prepared")
            else:
                self.abandon(transaction)

    def prepared_relations(self, gid: str, xid: int) -> tuple[int, ...]:
        """OIDs of the relations that a prepared transaction changes; empty: it is unknown."""
        with self._chain.mutex:
            header = self.prepared.find(gid, xid)
            return () if header is None else tuple(header.relations)

    def commit_prepared(
        self, gid: str, xid: int, *, position: Lsn, commit_timestamp: int, facts: Facts
    ) -> SegmentInfo | None:
        """Make a prepared transaction readable at its COMMIT PREPARED; arguments as for
        :meth:`commit`. Returns the reference; None if the transaction is already in the chain, or
        has nothing that the server sends. Raises SpoolError if its PREPARE is not in the spool,
        although the server sends all of them."""
        chain = self._chain
        with chain.mutex:
            header = self.prepared.find(gid, xid)
            if position <= chain.position:
                self.rollback_prepared(gid, xid)
                return None
            if header is None:
                if chain.spool.identity.options.get("origin") == "none":
                    # A PREPARE that another origin replicated is left out by the server. Its
                    # COMMIT PREPARED is sent if somebody gave it here, without an origin.
                    return None
                raise SpoolError(
                    f"the server sent COMMIT PREPARED (xid {xid}) at {position}, but the spool "
                    "does not have the changes of that prepared transaction",
                    hint=COPY_ALL_AGAIN,
                    xid=xid,
                    lsn=position,
                )
            relations = self._with_facts(header.relations, facts)
            reference = ReferenceHeader(
                replace(header.origin, epoch=chain.epoch),
                header.counts,
                relations,
                start=chain.position,
                end=position,
                roots=roots_of(header.counts.relations, relations or chain.in_force),
                commit_timestamp=commit_timestamp,
                in_stream=header.in_stream,
                transaction=header.transaction,
                xid=xid,
                parts=header.parts,
            )
            info = chain.append(reference, [commit_of(reference)])
            failpoint("spool.after_commit_prepared")
            self.prepared.end(gid, xid)
            return info

    def rollback_prepared(self, gid: str, xid: int) -> None:
        """Remove a prepared transaction and delete its parts; a no-op for an unknown one."""
        with self._chain.mutex:
            for part in self.prepared.end(gid, xid):
                self._storage.delete(part.name)

    def abandon(self, transaction: str) -> None:
        """Delete the parts of a transaction that was aborted, or that the server will resend."""
        with self._chain.mutex:
            state = self._open.pop(transaction, None)
            for part in state.parts if state else ():
                self._storage.delete(part.name)

    def _with_facts(self, relations: InForce, facts: Facts) -> dict[int, RelationInForce]:
        """Add the metadata as of the commit to the relations.

        A relation that was dropped since then gets the metadata that the connection knows, if the
        Relation messages are byte-identical; otherwise its metadata is unknown.
        """
        result = {}
        for oid, relation in relations.items():
            of_relation = facts.get(oid, relation.facts)
            known = self._chain.in_force.get(oid)
            if of_relation is None and known is not None and known.relation == relation.relation:
                of_relation = known.facts
            result[oid] = RelationInForce(relation.relation, of_relation)
        return result


def _measure(messages: RawMessages, in_stream: bool, before: InForce) -> tuple[Counts, InForce]:
    """A part's counts, and the relations in force after it."""
    block = part_block(messages, in_stream=in_stream)
    return count_changes(block), relations_after(before, block)
