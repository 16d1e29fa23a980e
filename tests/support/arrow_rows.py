"""Rows in memory as the target of a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """The rows of an Arrow table, as :class:`pgsluice.verification.TargetRows`."""

    table: pa.Table

    @property
    def schema(self) -> pa.Schema:
        return self.table.schema

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from self.table.select(list(columns)).to_batches()
