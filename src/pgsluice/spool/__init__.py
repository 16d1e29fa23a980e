"""The spool: received messages, durable, in commit order, for any number of readers.

One process writes it (:class:`SpoolWriter`); any number of processes read it
(:class:`SpoolReader`). It stores raw messages unchanged. Each segment can be decoded without the
others. The rules are those of the contracts: an LSN is acknowledged only after its bytes are here.

The exported names are imported when first used, because they need numpy and Arrow. A run starts the
JVM before it loads these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgsluice.exports import on_demand

if TYPE_CHECKING:
    from pgsluice.spool.identity import SpoolIdentity
    from pgsluice.spool.records.record import (
        AddedColumns,
        Claim,
        Copied,
        Cut,
        FormerTarget,
        OldTarget,
        Owner,
        Partitions,
        Pending,
        SourceView,
        SubscriptionRecord,
        TableRecord,
        TableState,
        TargetName,
        UnseenLeaf,
    )
    from pgsluice.spool.records.store import RecordStore, find_record
    from pgsluice.spool.segments.block import FACTS_TAG, RawMessages, RelationInForce, SegmentView
    from pgsluice.spool.segments.header import (
        PartHeader,
        PartReference,
        PreparedHeader,
        ReferenceHeader,
        SegmentHeader,
    )
    from pgsluice.spool.segments.reader import SegmentInfo, SpoolReader, relations_after
    from pgsluice.spool.segments.writer import SpoolWriter
    from pgsluice.spool.spool import Spool

__getattr__ = on_demand(
    __name__,
    (
        "segments.block",
        "segments.header",
        "identity",
        "segments.reader",
        "records.record",
        "records.store",
        "spool",
        "segments.writer",
    ),
)
