"""The copies of a subscription for ``status``: their progress, and the changes that the spool keeps
for them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from pgsluice.errors import PgsluiceError
from pgsluice.events import CopyAmount
from pgsluice.lsn import Lsn
from pgsluice.spool import SpoolReader, SubscriptionRecord, TableState, TargetName
from pgsluice.spool.records.copy_status import amount_json, read_copy_status


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
    held = _HeldBytes(reader)
    tables = {
        table.target_name: TableCopyStatus(
            status.tables.get(oid), status.waits_for.get(oid, ""), held.after(table.applied_through)
        )
        for oid, table in record.tables.items()
        if table.state is TableState.DATA_COPY
    }
    return CopiesStatus(tables, status.done, status.all_tables, status.amount)


class _HeldBytes:
    """The size of the spool's segments after a position."""

    def __init__(self, reader: SpoolReader) -> None:
        sizes = []
        self._ends: list[Lsn] = []
        for segment in reader.all_segments():
            with suppress(PgsluiceError):  # retention removed the file after it was listed
                sizes.append(segment.size_bytes)
                self._ends.append(segment.end)
        self._through = [0, *accumulate(sizes)]

    def after(self, position: Lsn) -> int:
        """Bytes of the segments that have changes after a position."""
        return self._through[-1] - self._through[bisect_right(self._ends, position)]
