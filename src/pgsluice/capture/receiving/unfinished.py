"""Makes room in a full spool: asks the server whether unfinished transactions were rolled back.

An open or prepared transaction may fill the spool. While it is full, nothing is read, so the end of
that transaction would never be received. If it was rolled back on the server, it is dropped and
capture continues. A transaction that commits needs all of its room.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pgsluice.capture.receiving.assembler import TransactionAssembler
from pgsluice.capture.receiving.facts import FactsSource
from pgsluice.capture.receiving.store import Command, Store, to_parts
from pgsluice.catalog.visibility import TransactionStatus
from pgsluice.spool.segments.parts_writer import PartsWriter, WaitingTransaction


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The largest transaction whose end was not received.

    Attributes:
        status: its outcome on the server; None: the server no longer knows it.
    """

    transaction: WaitingTransaction
    status: TransactionStatus | None


class UnfinishedTransactions:
    """The open transactions of one connection, and the prepared transactions of the spool.

    Attributes:
        largest: the largest one at the last query; None: there was no query.
    """

    def __init__(self, assembler: TransactionAssembler, store: Store, facts: FactsSource) -> None:
        self._assembler = assembler
        self._store = store
        self._facts = facts
        self.largest: Unfinished | None = None

    def drop_rolled_back(self) -> Iterator[Command]:
        """Query their outcomes, and drop transactions and subtransactions that were rolled back;
        yields commands as :meth:`TransactionAssembler.take`.

        Raises:
            SourceUnreachable, SourceRefused: the server cannot be queried.
        """
        waiting = self._store.settled_writer().parts.waiting()
        xids = {*self._assembler.open_xids(), *(transaction.xid for transaction in waiting)}
        statuses = self._facts.statuses(xids)
        aborted = {xid for xid, status in statuses.items() if status is TransactionStatus.ABORTED}
        yield from self._assembler.drop_rolled_back(aborted)
        for transaction in waiting:
            if transaction.gid is not None and transaction.xid in aborted:
                yield to_parts(PartsWriter.rollback_prepared, transaction.gid, transaction.xid)
        largest = max(waiting, key=lambda transaction: transaction.size_bytes, default=None)
        self.largest = Unfinished(largest, statuses.get(largest.xid)) if largest else None
