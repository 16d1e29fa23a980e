"""Tasks that apply the changes of a spool that a test has written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.support.segments import facts_message
from tests.support.spools import SpoolMaker

from pgsluice.facts import RelationFacts
from pgsluice.sinks.target import TableOptions
from pgsluice.subscription.batches.tasks.apply import ApplyTables


@dataclass(frozen=True)
class FactsMessage:
    """The message that capture writes behind a relation's R."""

    facts: RelationFacts

    def encode(self) -> bytes:
        return facts_message(self.facts.oid, self.facts)


def apply_tables(maker: SpoolMaker, lake: Path) -> ApplyTables:
    """The task of a subscription to Delta tables beside ``lake``."""
    sink = {
        "type": "delta",
        "path": str(lake.parent / "{table}"),
        "foreign_writes": "park",
        "cut_retention_s": 600,
    }
    return ApplyTables(
        str(maker.path), maker.spool.identity.spool_id, sink, TableOptions(), keep_versions={}
    )
