"""The writing end of the chain of segments, which whole transactions and references share."""

from __future__ import annotations

import threading

from pgsluice.errors import ProtocolError
from pgsluice.failpoints import failpoint
from pgsluice.lsn import Lsn
from pgsluice.spool.block import InForce
from pgsluice.spool.header import ChainHeader, Origin
from pgsluice.spool.layout import SegmentName, new_object
from pgsluice.spool.reader import SegmentInfo
from pgsluice.spool.scan import RawMessages
from pgsluice.spool.segment import write_segment
from pgsluice.spool.spool import Spool


class ChainEnd:
    """Where one writer appends to the chain, and what its connection has said so far.

    Args:
        spool: whose chain.
        epoch: the writer's number.
        position: where the chain ends.

    Attributes:
        mutex: held by whoever changes the spool.
        position: where the chain ends: the last durable position.
        in_force: the relations as the connection has announced them.
    """

    def __init__(self, spool: Spool, epoch: int, position: Lsn) -> None:
        self.spool = spool
        self.storage = spool.storage
        self.epoch = epoch
        self.mutex = threading.RLock()
        self.position = position
        self.in_force: InForce = {}

    def origin(self) -> Origin:
        """What the headers of this writer's files say of it."""
        identity = self.spool.identity
        return Origin(identity.spool_id, self.epoch, identity.publications, dict(identity.options))

    def transaction_key(self, transaction: str) -> str:
        """A transaction's key among those of all writers."""
        return f"{self.epoch:08X}-{transaction}"

    def append(self, header: ChainHeader, messages: RawMessages | None = None) -> SegmentInfo:
        """Make a segment or a reference durable; it starts where the chain ends.

        Raises:
            ProtocolError: it would not end past the chain's end.
            SpoolFull, SpoolError: it could not be written; nothing changed.
        """
        if header.end <= self.position:
            raise ProtocolError(f"a segment would end at {header.end}, not past {self.position}")
        name = new_object(SegmentName(header.start, header.end, self.epoch, header.is_reference))
        size = self.storage.put(name, lambda file: write_segment(file, header, messages))
        failpoint("spool.after_segment")
        self.position = header.end
        return SegmentInfo(
            name,
            header.start,
            header.end,
            self.epoch,
            header.is_reference,
            0.0,
            size,
            self.storage,
            header,
        )
