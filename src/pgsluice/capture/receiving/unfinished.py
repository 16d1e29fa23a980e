"""What a full spool does about transactions whose end was not received: it asks the server.

A spool may be full of a transaction that is open, or prepared. While it is full, nothing is read,
so the end of that transaction would never be received. What was rolled back at the server needs
no room: it is dropped, and capture goes on. A transaction that commits needs all of its room.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pgsluice.capture.receiving.assembler import TransactionAssembler
from pgsluice.capture.receiving.commands import Command, to_parts
from pgsluice.capture.receiving.facts import FactsSource
from pgsluice.capture.receiving.store import Store
from pgsluice.catalog import TransactionStatus
from pgsluice.spool.segments.parts_writer import PartsWriter, WaitingTransaction


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The largest of the transactions whose end was not received.

    Attributes:
        status: what the server says of it; None: it does not know it any more.
    """

    transaction: WaitingTransaction
    status: TransactionStatus | None


class UnfinishedTransactions:
    """The transactions of one connection that are open, and the prepared ones of the spool.

    Attributes:
        largest: as of the last question; None: there was none.
    """

    def __init__(self, assembler: TransactionAssembler, store: Store, facts: FactsSource) -> None:
        self._assembler = assembler
        self._store = store
        self._facts = facts
        self.largest: Unfinished | None = None

    def drop_rolled_back(self) -> Iterator[Command]:
        """Ask how they ended, and drop what was rolled back, of subtransactions as well.

        Yields:
            commands; hand each to the store before asking for the next.

        Raises:
            SourceUnreachable, SourceRefused: the server cannot be asked.
        """
        waiting = self._store.waiting_transactions()
        xids = {*self._assembler.open_xids(), *(transaction.xid for transaction in waiting)}
        statuses = self._facts.statuses(xids)
        aborted = {xid for xid, status in statuses.items() if status is TransactionStatus.ABORTED}
        yield from self._assembler.drop_rolled_back(aborted)
        for transaction in waiting:
            if transaction.gid is not None and transaction.xid in aborted:
                yield to_parts(PartsWriter.rollback_prepared, transaction.gid, transaction.xid)
        largest = max(waiting, key=lambda transaction: transaction.size_bytes, default=None)
        self.largest = Unfinished(largest, statuses.get(largest.xid)) if largest else None
