"""Values that are taken out of bytes: the spool's checksums are those of their buffers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from pgsluice.types.buffers import spans


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_buffers_are_those_that_arrow_writes_to_a_file(count: int) -> None:
    data = np.frombuffer(b"..first..second..third", np.uint8)
    starts, ends = np.array([2, 9, 17])[:count], np.array([7, 15, 22])[:count]
    values = spans(data, starts, ends)
    assert values.to_pylist() == [b"first", b"second", b"third"][:count]
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([values], names=["message"])
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    written = pa.ipc.open_file(sink.getvalue()).get_batch(0).column(0)
    for own, read in zip(values.buffers()[1:], written.buffers()[1:], strict=True):
        assert own.to_pybytes() == read.to_pybytes()[: own.size]
        assert own.size <= read.size
