"""Typed changes of one relation: the result of decoding, and the input of all later stages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgsluice.facts import RelationFacts
from pgsluice.wire import Relation

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
Text = Callable[[], pa.Array]
"""Returns a column's values as PostgreSQL's text output: a string array, null where the value is
NULL or absent. An unfit value has its text."""

T = TypeVar("T")

INSERT, UPDATE, DELETE, TRUNCATE = ord("I"), ord("U"), ord("D"), ord("T")
KEY_ONLY, WHOLE_ROW = ord("K"), ord("O")


@dataclass(frozen=True, slots=True)
class Tuples:
    """n tuples as columns, in the relation's column order.

    Attributes:
        columns: one array of length n for each column; null where the value is NULL or absent.
        absent: by column index, a mask of length n: true where the tuple does not have the value
            (unchanged TOAST). A column without absent values has no entry.
        unfit: by column index, a mask of length n: true where the column's Arrow type cannot
            hold the value (an infinite date). The array has null there.
        texts: by column index, functions for the values as the server prints them, for the columns
            whose text was requested. A call decodes them, which is expensive only in binary mode.
    """

    columns: tuple[pa.Array, ...]
    absent: Mapping[int, Mask]
    unfit: Mapping[int, Mask]
    texts: Mapping[int, Text] = field(default_factory=dict)

    def select(self, kept: Sequence[int]) -> Tuples:
        """The tuples with only the columns of these indexes, in this order."""

        def of_kept(values: Mapping[int, T]) -> dict[int, T]:
            return {new: values[old] for new, old in enumerate(kept) if old in values}

        return Tuples(
            tuple(self.columns[index] for index in kept),
            of_kept(self.absent),
            of_kept(self.unfit),
            of_kept(self.texts),
        )

    def take(self, rows: Int64s) -> Tuples:
        """Some of the tuples, with the texts of columns that have unfit values."""
        index = pa.array(rows)
        unfit = {column: mask[rows] for column, mask in self.unfit.items() if mask[rows].any()}
        return Tuples(
            tuple(column.take(index) for column in self.columns),
            {column: mask[rows] for column, mask in self.absent.items() if mask[rows].any()},
            unfit,
            {
                column: partial(_given, self.texts[column]().take(index))
                for column in unfit
                if column in self.texts
            },
        )


def _given(values: pa.Array) -> pa.Array:
    """A :data:`Text` that is decoded already, and so can be pickled."""
    return values


@dataclass(frozen=True, slots=True)
class RelationChanges:
    """Changes of one relation under one definition of it, in commit order.

    Arrays have n elements, one for each change, unless another length is named. A TRUNCATE is
    one change without tuples.

    Attributes:
        facts: the relation's metadata; None if unknown.
        schema: the new tuples' Arrow fields, named as the relation's columns.
        actions: INSERT, UPDATE, DELETE or TRUNCATE.
        positions: end LSN of the transaction.
        ordinals: order inside the transaction.
        commit_timestamps: microseconds since 1970-01-01 UTC.
        xids: top-level transaction ids.
        new: the new tuples of all INSERTs and UPDATEs, in order.
        new_index: row in ``new``, or -1 (DELETE, TRUNCATE).
        old: the old tuples of all changes that have one, in order.
        old_index: row in ``old``, or -1.
        old_kinds: KEY_ONLY, WHOLE_ROW, or 0 without an old tuple. In a KEY_ONLY tuple only the key
            columns have values; the others are null and absent.
        doubt: see :class:`pgsluice.columnar.definitions.Definition`.
        masked: the columns whose values are masked; their texts are not.
    """

    relation: Relation
    facts: RelationFacts | None
    schema: pa.Schema
    actions: Bytes
    positions: Int64s
    ordinals: Int64s
    commit_timestamps: Int64s
    xids: Int64s
    new: Tuples
    new_index: Int64s
    old: Tuples
    old_index: Int64s
    old_kinds: Bytes
    doubt: str = ""
    masked: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.actions)

    def without(self, names: Collection[str]) -> RelationChanges:
        """The same changes without the relation's columns of these names."""
        kept = [index for index, name in enumerate(self.schema.names) if name not in names]
        if len(kept) == len(self.schema):
            return self
        columns = tuple(self.relation.columns[index] for index in kept)
        return replace(
            self,
            relation=replace(self.relation, columns=columns),
            schema=pa.schema([self.schema.field(index) for index in kept]),
            new=self.new.select(kept),
            old=self.old.select(kept),
        )

    def take(self, wanted: Int64s) -> RelationChanges:
        """Some of the changes with only their own tuples; for texts, see :meth:`Tuples.take`."""
        chosen = self.select(wanted)
        has_new, has_old = chosen.new_index >= 0, chosen.old_index >= 0
        return replace(
            chosen,
            new=self.new.take(chosen.new_index[has_new]),
            new_index=np.where(has_new, np.cumsum(has_new) - 1, -1),
            old=self.old.take(chosen.old_index[has_old]),
            old_index=np.where(has_old, np.cumsum(has_old) - 1, -1),
        )

    def outline(self, wanted: Int64s) -> RelationChanges:
        """Some of the changes without their tuples: their relation and positions."""
        nothing = Tuples((), {}, {})
        none = np.full(len(wanted), -1, np.int64)
        chosen = self.select(wanted)
        return replace(chosen, new=nothing, new_index=none, old=nothing, old_index=none)

    @property
    def title(self) -> str:
        """The changed relation's ``schema.table``, for messages."""
        return f"{self.relation.schema}.{self.relation.name}"

    @property
    def table_name(self) -> tuple[str, str]:
        """Schema and name of the table that the rows belong to: for a leaf partition, its
        root's."""
        facts = self.facts
        if facts is not None and facts.root_oid != facts.oid:
            return facts.root_namespace, facts.root_name
        return self.relation.schema, self.relation.name

    @property
    def table_title(self) -> str:
        """``schema.table`` of that table, as in settings and commands."""
        return ".".join(self.table_name)

    def select(self, wanted: Mask | Int64s) -> RelationChanges:
        """Some of the changes, by a mask or by their indexes. The arrays of tuples stay whole,
        since changes refer to their rows."""
        return replace(
            self,
            actions=self.actions[wanted],
            positions=self.positions[wanted],
            ordinals=self.ordinals[wanted],
            commit_timestamps=self.commit_timestamps[wanted],
            xids=self.xids[wanted],
            new_index=self.new_index[wanted],
            old_index=self.old_index[wanted],
            old_kinds=self.old_kinds[wanted],
        )
