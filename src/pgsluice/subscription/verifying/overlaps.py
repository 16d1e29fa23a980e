"""Counts the keys of a history that have two versions at the same position.

The source has only current rows, so nothing mends closed versions. Of several open versions of a
key, a copy ends each where the next one begins, and a comparison finds them: they end there here,
too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pgsluice.changes.history.columns import HistoryColumns
from pgsluice.changes.key_numbers import numbers_of
from pgsluice.changes.lineage import number_rows
from pgsluice.verification import TargetRows

VERSIONS_A_PASS = 2_000_000
"""About how many versions are in memory: with more, the history is read several times."""


def overlapping_keys(rows: TargetRows, key: Sequence[str], history: HistoryColumns) -> int:
    """How many keys have versions that overlap, or that end before they begin.

    Args:
        rows: all versions.
        key: the key's columns.
    """
    versions = sum(map(len, rows.batches([history.valid_from])))
    passes = 1 + versions // VERSIONS_A_PASS
    return sum(_overlapping(rows, key, history, number, passes) for number in range(passes))


def _overlapping(
    rows: TargetRows, key: Sequence[str], history: HistoryColumns, number: int, passes: int
) -> int:
    """The count of one pass, which takes the keys with this number."""
    names = [*key, history.valid_from, history.valid_to]
    # The engine returns text as views, which pyarrow does not filter.
    schema = pa.schema([rows.schema.field(name) for name in names])
    parts = [schema.empty_table()]
    for batch in rows.batches(names):
        part = pa.Table.from_batches([batch]).select(names).cast(schema)
        hashes = numbers_of(part.select(key)).numbers
        parts.append(part.filter(pa.array(hashes % np.uint64(passes) == number)))
    versions = pa.concat_tables(parts)
    keys = number_rows(versions, tuple(key))
    begins, valid_to = versions.column(history.valid_from).to_numpy(), versions.column(names[-1])
    ends = valid_to.fill_null(np.iinfo(np.int64).max).to_numpy()
    order = np.lexsort((begins, keys))
    keys, begins, ends = keys[order], begins[order], ends[order]
    is_open = np.flatnonzero(valid_to.is_null().to_numpy()[order])
    before, after = is_open[:-1], is_open[1:]
    is_same = keys[before] == keys[after]
    ends[before[is_same]] = begins[after[is_same]]
    is_seen = begins != ends
    keys, begins, ends = keys[is_seen], begins[is_seen], ends[is_seen]
    is_wrong = begins > ends
    is_wrong[:-1] |= (keys[:-1] == keys[1:]) & (ends[:-1] > begins[1:])
    return len(np.unique(keys[is_wrong]))
