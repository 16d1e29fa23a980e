"""The spool: what was received, durable, in commit order, for any number of readers.

One process writes (:class:`SpoolWriter`); everyone else reads (:class:`SpoolReader`). Raw
messages stay as they came; a segment decodes alone. The rules are those of the contracts:
an LSN is acknowledged only after its bytes are here.
"""

from pgsluice.spool.block import (
    FACTS_TAG,
    MessageBlock,
    RelationInForce,
    SegmentView,
)
from pgsluice.spool.identity import SpoolIdentity
from pgsluice.spool.reader import SegmentInfo, SpoolReader, relations_after
from pgsluice.spool.record import Cut, Owner, SubscriptionRecord, TableRecord, TableState
from pgsluice.spool.record_file import RecordStore, find_record, load_record
from pgsluice.spool.scan import RawMessages, RelationCounts, part_block, plain_block
from pgsluice.spool.segment import PartReference, SegmentHeader
from pgsluice.spool.spool import ChainStart, Spool
from pgsluice.spool.writer import SpoolWriter

__all__ = [
    "FACTS_TAG",
    "ChainStart",
    "Cut",
    "MessageBlock",
    "Owner",
    "PartReference",
    "RawMessages",
    "RecordStore",
    "RelationCounts",
    "RelationInForce",
    "SegmentHeader",
    "SegmentInfo",
    "SegmentView",
    "Spool",
    "SpoolIdentity",
    "SpoolReader",
    "SpoolWriter",
    "SubscriptionRecord",
    "TableRecord",
    "TableState",
    "find_record",
    "load_record",
    "part_block",
    "plain_block",
    "relations_after",
]
