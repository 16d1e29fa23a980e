"""The copies of a subscription for ``status``: their progress, and the changes that the spool keeps
for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pgsluice.events import CopyAmount
from pgsluice.monitor.spool_status import HeldBytes
from pgsluice.spool import SpoolReader, SubscriptionRecord, TableState, TargetName
from pgsluice.spool.notes import amount_json, read_copy_status


@dataclass(frozen=True, slots=True)
class TableCopyStatus:
    """A table that is being copied (state ``d``).

    Attributes:
        amount: the progress; None before its chunks are planned.
        waits_for: why it waits, as text for the user; empty: it does not wait.
        held_bytes: the size of the spool's segments with changes after its snapshot.
    """

    amount: CopyAmount | None
    waits_for: str
    held_bytes: int

    def to_json(self) -> dict[str, Any]:
        return {
            **({} if self.amount is None else amount_json(self.amount)),
            "waits_for": self.waits_for or None,
            "held_bytes": self.held_bytes,
        }


@dataclass(frozen=True, slots=True)
class CopiesStatus:
    """The copies of a subscription.

    Attributes:
        tables: the tables that are being copied, by their targets' names.
        done, all_tables: how many tables are copied since the first of these copies started, and
            how many there are; 0 of 0 before chunks are planned.
        amount: the progress of all of them.
    """

    tables: Mapping[TargetName, TableCopyStatus] = field(default_factory=dict)
    done: int = 0
    all_tables: int = 0
    amount: CopyAmount = field(default_factory=CopyAmount)

    def to_json(self) -> dict[str, Any] | None:
        """The copies as JSON; None if no table is being copied."""
        if not self.tables:
            return None
        amount = amount_json(self.amount)
        return {"tables": self.done, "all_tables": self.all_tables, **amount}


def read_copies(reader: SpoolReader, record: SubscriptionRecord) -> CopiesStatus:
    """The progress of a subscription's copies."""
    status = read_copy_status(reader.spool.path, record)
    held = HeldBytes(reader.all_segments())
    tables = {
        table.target_name: TableCopyStatus(
            status.tables.get(oid), status.waits_for.get(oid, ""), held.after(table.applied_through)
        )
        for oid, table in record.tables.items()
        if table.state is TableState.DATA_COPY
    }
    return CopiesStatus(tables, status.done, status.all_tables, status.amount)
