"""Compares Arrow arrays bit by bit."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt


def assert_identical(first: pa.Array, second: pa.Array) -> None:
    """The arrays have the same bits: NaN equals NaN, and -0 is not 0."""
    assert first.type == second.type
    if pt.is_list(first.type):
        assert first.is_null().equals(second.is_null())
        lengths = [list_.value_lengths().to_pylist() for list_ in (first, second)]
        assert lengths[0] == lengths[1]
        assert_identical(first.flatten(), second.flatten())
    elif pt.is_floating(first.type):
        assert repr(first.to_pylist()) == repr(second.to_pylist())
    elif pt.is_string(first.type):
        assert first.to_pylist() == second.to_pylist()
    else:
        assert first.equals(second), (first, second)
