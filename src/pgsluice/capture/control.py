"""What the messages that begin and end transactions in progress mean for the spool.

Each gives the steps that the store has to take, in order: a transaction's last part, then what
becomes of it. Facts are looked up when a transaction has committed, since before that nobody
but itself can see what it made.
"""

from __future__ import annotations

from collections.abc import Iterator

from pgsluice.capture.facts import FactsSource
from pgsluice.capture.in_progress import InProgress, OpenTransaction
from pgsluice.capture.steps import (
    Committed,
    Prepared,
    PreparedCommitted,
    PreparedRolledBack,
    Step,
)
from pgsluice.capture.store import Store
from pgsluice.wire import (
    POSTGRES_EPOCH_US,
    BeginPrepare,
    CommitPrepared,
    Prepare,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    decode_message,
)

CONTROL_TAGS = b"SEcAbPKrp"


class Control:
    """Follows one connection's transactions in progress.

    Args:
        in_progress: its transactions.
        facts: looks up what is not on the wire.
        store: knows what is prepared.
        parallel: ``streaming 'parallel'`` was asked for.
    """

    def __init__(
        self, in_progress: InProgress, facts: FactsSource, store: Store, *, parallel: bool
    ) -> None:
        self._in_progress = in_progress
        self._facts = facts
        self._store = store
        self._parallel = parallel

    def take(self, data: bytes) -> Iterator[Step]:
        """One message with one of :data:`CONTROL_TAGS`.

        Yields:
            what is to be done for it; ask for the next step when one was handed over.

        Raises:
            ProtocolError: it is malformed, or cannot come here.
            SourceUnreachable, SourceRefused: the catalog could not be asked.
        """
        open_ones = self._in_progress
        match decode_message(data, parallel=self._parallel):
            case StreamStart(xid, is_first):
                open_ones.begin_block(xid, is_first=is_first)
            case StreamStop():
                open_ones.end_block()
            case StreamAbort(xid, subxid):
                step = open_ones.abort(xid, subxid)
                if step is not None:
                    yield step
            case StreamCommit() as commit:
                yield from self._commit(open_ones.end_stream(commit.xid, "c"), commit)
            case BeginPrepare() as begin:
                open_ones.begin_prepare(begin.xid)
            case Prepare() as prepare:
                yield from self._prepare(open_ones.end_prepare(prepare.xid), prepare)
            case StreamPrepare() as prepare:
                yield from self._prepare(open_ones.end_stream(prepare.xid, "p"), prepare)
            case CommitPrepared() as commit:
                oids = self._store.prepared_relations(commit.gid, commit.xid)
                yield PreparedCommitted(
                    commit.gid,
                    commit.xid,
                    commit.end_lsn,
                    commit.commit_timestamp + POSTGRES_EPOCH_US,
                    self._facts.at_commit(oids, joining=()),
                )
            case RollbackPrepared() as rollback:
                yield PreparedRolledBack(rollback.gid, rollback.xid)

    def _commit(self, stream: OpenTransaction, commit: StreamCommit) -> Iterator[Step]:
        if stream.heap.count:
            yield stream.part()
        if not stream.handed_out:
            return
        joining = self._in_progress.join(stream)
        yield Committed(
            stream.key,
            commit.end_lsn,
            commit.commit_timestamp + POSTGRES_EPOCH_US,
            stream.xid,
            self._facts.at_commit(stream.relations, joining),
            joining,
        )

    def _prepare(
        self, transaction: OpenTransaction, prepare: Prepare | StreamPrepare
    ) -> Iterator[Step]:
        if transaction.heap.count:
            yield transaction.part()
        yield Prepared(transaction.key, prepare.gid, transaction.xid, prepare.prepare_lsn)
