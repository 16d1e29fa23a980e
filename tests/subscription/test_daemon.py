"""What Spark's Python workers of a run have before they begin."""

from __future__ import annotations

import subprocess
import sys

import pytest

BLOCKS = """
import resource
import pyarrow as pa
from pgsluice.subscription.daemon import keep_freed_memory
keep_freed_memory()
def allocate():
    return [b"x" * 2**23 for _ in range(3)], pa.array(range(1000)).take(list(range(1000)))
allocate()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    allocate()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is the GNU C library's")
def test_memory_of_a_block_serves_the_next_one() -> None:
    """Otherwise each page of each block, 4 KiB, is given anew by the system: 123,000 times."""
    ran = subprocess.run([sys.executable, "-c", BLOCKS], capture_output=True, check=True)
    assert int(ran.stdout) < 2000
