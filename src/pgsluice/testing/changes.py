"""Builds typed changes from Python rows, in the form that the decoder gives.

>>> from pgsluice.testing.changes import ABSENT, ChangesBuilder
>>> orders = ChangesBuilder(pa.schema([pa.field("id", pa.int64()), pa.field("note", pa.string())]))
>>> orders.insert({"id": 1, "note": "long"}).update({"id": 2, "note": ABSENT}, old={"id": 1})
>>> len(orders.build())
2
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from pgsluice.columnar.changes import (
    DELETE,
    INSERT,
    KEY_ONLY,
    TRUNCATE,
    UPDATE,
    WHOLE_ROW,
    Mask,
    RelationChanges,
    Tuples,
)
from pgsluice.facts import RelationFacts
from pgsluice.wire import Relation, RelationColumn, ReplicaIdentity


class _Mark:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


ABSENT: Final = _Mark("ABSENT")
"""A value that the tuple does not have (unchanged TOAST)."""
UNFIT: Final = _Mark("UNFIT")
"""A value that does not fit its column's type."""

Row = Mapping[str, Any]


class ChangesBuilder:
    """Collects changes of one relation. Its methods return it, so that calls can be chained."""

    def __init__(
        self,
        schema: pa.Schema,
        key: tuple[str, ...] = ("id",),
        *,
        identity: ReplicaIdentity = ReplicaIdentity.DEFAULT,
        oid: int = 16384,
        position: int = 100,
        facts: RelationFacts | None = None,
    ) -> None:
        self.schema = schema
        self.key = key
        self.identity = identity
        self.facts = facts
        self.relation = Relation(
            oid,
            "public",
            "t" if facts is None else facts.name,
            identity,
            tuple(
                RelationColumn(int(self.is_full or field.name in key), field.name, 25, -1)
                for field in schema
            ),
        )
        self.position = position
        self.ordinal = 0
        self.new: list[Row] = []
        self.old: list[Row] = []
        self._rows: list[tuple[int, int, int, int, int, int]] = []

    @property
    def is_full(self) -> bool:
        """Whether old tuples have all columns."""
        return self.identity is ReplicaIdentity.FULL

    def commit(self) -> Self:
        """End a transaction: the next change has the next position."""
        self.position, self.ordinal = self.position + 1, 0
        return self

    def insert(self, row: Row) -> Self:
        """Add an INSERT; missing columns of ``row`` are NULL."""
        return self._add(INSERT, row, None)

    def update(self, row: Row, old: Row | None = None) -> Self:
        """Add an UPDATE; ``old`` is the old key, or the old row under REPLICA IDENTITY FULL."""
        return self._add(UPDATE, row, old)

    def delete(self, old: Row) -> Self:
        """Add a DELETE of the row with this key, or of this row."""
        return self._add(DELETE, None, old)

    def truncate(self) -> Self:
        """Add a TRUNCATE."""
        return self._add(TRUNCATE, None, None)

    def _add(self, action: int, new: Row | None, old: Row | None) -> Self:
        kind = 0 if old is None else WHOLE_ROW if self.is_full else KEY_ONLY
        new_index = -1 if new is None else len(self.new)
        old_index = -1 if old is None else len(self.old)
        if new is not None:
            self.new.append(dict(new))
        if old is not None:
            names = self.schema.names if self.is_full else self.key
            self.old.append({n: old.get(n) if n in names else ABSENT for n in self.schema.names})
        self._rows.append((action, self.position, self.ordinal, new_index, old_index, kind))
        self.ordinal += 1
        return self

    def build(self) -> RelationChanges:
        """The collected changes, with one definition."""
        table = np.array(self._rows, np.int64).reshape(-1, 6)
        return RelationChanges(
            relation=self.relation,
            facts=self.facts,
            schema=self.schema,
            actions=table[:, 0].astype(np.uint8),
            positions=table[:, 1].copy(),
            ordinals=table[:, 2].copy(),
            commit_timestamps=np.zeros(len(table), np.int64),
            xids=table[:, 1].copy(),
            new=self._tuples(self.new),
            new_index=table[:, 3].copy(),
            old=self._tuples(self.old),
            old_index=table[:, 4].copy(),
            old_kinds=table[:, 5].astype(np.uint8),
        )

    def _tuples(self, rows: list[Row]) -> Tuples:
        columns: list[pa.Array] = []
        absent: dict[int, Mask] = {}
        unfit: dict[int, Mask] = {}
        for index, field in enumerate(self.schema):
            values = [row.get(field.name) for row in rows]
            for mark, masks in ((ABSENT, absent), (UNFIT, unfit)):
                mask = np.array([value is mark for value in values], np.bool_)
                if mask.any():
                    masks[index] = mask
            plain = [None if value is ABSENT or value is UNFIT else value for value in values]
            columns.append(pa.array(plain, field.type))
        return Tuples(tuple(columns), absent, unfit)
