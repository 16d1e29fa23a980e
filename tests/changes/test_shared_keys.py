"""Keys that several rows have, among many."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pgsluice.changes import shared_keys
from pgsluice.changes.key_numbers import numbers_of, spread
from pgsluice.changes.shared_keys import count_shared_keys

SIGN = np.uint64(1 << 63)


def counted(*batches: pa.Table, folder: Path | None = None) -> int:
    return count_shared_keys(lambda: batches, sum(map(len, batches)), folder)


def ints(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def test_keys_in_several_batches() -> None:
    assert counted() == 0
    assert counted(ints(1, 2, 3), ints(4, 5)) == 0
    assert counted(ints(1, 2, 3), ints(3, 2, 6), ints(2)) == 2
    texts = [pa.table({"a": ["x", "y"], "b": [one, 1]}) for one in (1, 2, 1)]
    assert counted(*texts[:2]) == 1
    assert counted(*texts) == 2


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_more_rows_than_are_looked_at_together(
    kind: pa.DataType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_keys, "ROWS_AT_ONCE", 1000)
    values = np.random.default_rng(7).permutation(20_000)
    keys = pa.table({"id": pa.array(values).cast(kind)})
    batches = [keys.slice(start, 700) for start in range(0, len(keys), 700)]
    assert counted(*batches, folder=tmp_path / "cache") == 0
    assert counted(*batches, keys.slice(300, 40), keys.slice(310, 5), folder=tmp_path) == 40
    same = [pa.table({"id": pa.nulls(700, pa.int64()).fill_null(1).cast(kind)})] * 9
    assert counted(*same, folder=tmp_path) == 1
    assert not [*(tmp_path / "cache").iterdir()], "temporary files have no name"


def test_different_keys_of_one_number() -> None:
    first, second = (np.array([value], np.uint64) ^ SIGN for value in (1, 2))
    other = (spread(first) ^ spread(second) ^ (np.uint64(5) ^ SIGN)) ^ SIGN
    keys = pa.table({"a": [1, 2], "b": pa.array([5, int(other.view(np.int64)[0])], pa.int64())})
    assert len(set(numbers_of(keys).numbers.tolist())) == 1
    assert counted(keys) == 0
    assert counted(keys, keys) > 0


def test_memory_does_not_grow_with_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_keys, "ROWS_AT_ONCE", 2**17)
    rows, at_once = 2**22, 2**16

    def read() -> Iterator[pa.Table]:
        for start in range(0, rows, at_once):
            yield pa.table({"id": np.arange(start, start + at_once)})

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert count_shared_keys(read, rows, tmp_path) == 0
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib * 1024 < 4 * rows, "less than half of the numbers"
