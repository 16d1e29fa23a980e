"""Counts the keys of a history that have two versions at the same position.

The source has only current rows, so nothing mends closed versions. Of several open versions of a
key, a copy ends each where the next one begins, and a comparison finds them: they end there here,
too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa

from pgsluice.changes.history.columns import HistoryColumns
from pgsluice.changes.key_numbers import numbers_of
from pgsluice.changes.lineage import number_rows
from pgsluice.verification import TargetRows

VERSIONS_A_PART = 2_000_000
"""About how many versions are in memory: more are split by their keys, in temporary files."""


def overlapping_keys(rows: TargetRows, key: Sequence[str], history: HistoryColumns) -> int:
    """How many keys have versions that overlap, or that end before they begin.

    Args:
        rows: all versions.
        key: the key's columns.

    Raises:
        OSError: the temporary files cannot be written.
    """
    names = [*key, history.valid_from, history.valid_to]
    return sum(_overlapping(part, key) for part in _parts(rows, names, len(key)))


def _parts(rows: TargetRows, names: Sequence[str], key_columns: int) -> Iterator[pa.Table]:
    """The versions, in parts that have all versions of their keys."""
    # The engine returns text as views, which pyarrow does not take by index.
    schema = pa.schema([rows.schema.field(name) for name in names])
    batches = (
        pa.Table.from_batches([batch]).select(names).cast(schema)
        for batch in rows.batches([*names])
    )
    count = 1 + sum(map(len, rows.batches([names[-2]]))) // VERSIONS_A_PART
    if count == 1:
        yield pa.concat_tables([schema.empty_table(), *batches])
        return
    with tempfile.TemporaryDirectory(prefix="pgsluice-") as folder:
        paths = [Path(folder) / f"{number}.arrow" for number in range(count)]
        with ExitStack() as opened:
            writers = [opened.enter_context(pa.ipc.new_file(str(path), schema)) for path in paths]
            for batch in batches:
                parts = numbers_of(batch.select(range(key_columns))).numbers % np.uint64(count)
                order = np.argsort(parts, kind="stable")
                begins = np.searchsorted(parts[order], np.arange(count))
                batch = batch.take(order)
                sizes = np.diff(begins, append=len(parts))
                for writer, begin, size in zip(writers, begins, sizes, strict=True):
                    writer.write_table(batch.slice(begin, size))
        for path in paths:
            with pa.memory_map(str(path)) as file:
                yield pa.ipc.open_file(file).read_all()


def _overlapping(versions: pa.Table, key: Sequence[str]) -> int:
    """The count of one part."""
    keys = number_rows(versions, tuple(key))
    begins, valid_to = versions.column(len(key)).to_numpy(), versions.column(len(key) + 1)
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
