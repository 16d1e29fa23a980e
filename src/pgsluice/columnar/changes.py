"""Typed changes of one relation: what decoding gives and everything later works on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgsluice.facts import RelationFacts
from pgsluice.wire import Relation

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
Text = Callable[[], pa.Array]
"""Reads a column's values as PostgreSQL's text output: a string array, null where ``columns`` would
be null but for unfit values."""

INSERT, UPDATE, DELETE, TRUNCATE = ord("I"), ord("U"), ord("D"), ord("T")
KEY_ONLY, WHOLE_ROW = ord("K"), ord("O")


@dataclass(frozen=True, slots=True)
class Tuples:
    """n tuples as columns, in the relation's column order.

    Attributes:
        columns: one array of length n a column; null where the value is NULL or not there.
        absent: column index -> mask of length n, true where the tuple does not carry the
            value (unchanged TOAST). Columns that are whole everywhere have no entry.
        unfit: column index -> mask of length n, true where the value was there but its
            column's Arrow type cannot hold it (an infinite date). The array has null there.
        texts: column index -> the values as the server prints them, for the columns that
            decoding was asked for. Read when called: it costs little but in binary mode.
    """

    columns: tuple[pa.Array, ...]
    absent: Mapping[int, Mask]
    unfit: Mapping[int, Mask]
    texts: Mapping[int, Text] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RelationChanges:
    """Changes of one relation under one definition of it, in commit order.

    Arrays without another length have n elements, one a change. A TRUNCATE is one change
    without tuples.

    Attributes:
        relation: the Relation message in force.
        facts: what the catalog said of it; None when it is unknown.
        schema: the new tuples' Arrow fields, named as the relation's columns.
        actions: INSERT, UPDATE, DELETE or TRUNCATE.
        positions: end LSN of the transaction.
        ordinals: order inside the transaction.
        commit_timestamps: microseconds since 1970-01-01 UTC.
        xids: top-level transaction ids.
        new: the new tuples of all INSERTs and UPDATEs, in order.
        new_index: row in ``new``, or -1 (DELETE, TRUNCATE).
        old: the old tuples of all changes that carry one, in order.
        old_index: row in ``old``, or -1.
        old_kinds: KEY_ONLY, WHOLE_ROW, or 0 where there is no old tuple. In a KEY_ONLY tuple
            only the key columns mean anything; the others are null and absent.
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

    def __len__(self) -> int:
        return len(self.actions)
