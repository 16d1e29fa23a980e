"""What Spark's Python workers of a run have before they begin."""

from __future__ import annotations

import subprocess
import sys

import pytest

BLOCKS = """
import resource
import pyarrow as pa
from pgsluice.system.freed_memory import keep_freed_memory
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


ARENAS = """
import ctypes, sys, threading
from pgsluice.system.freed_memory import keep_freed_memory
keep_freed_memory()
together = threading.Barrier(8)
def allocate():
    together.wait()
    blocks = [bytearray(100_000) for _ in range(100)]
    together.wait()
threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
out = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="arenas are the GNU C library's")
def test_threads_share_the_memory_that_is_freed() -> None:
    """Each arena keeps memory for its threads alone; there may be eight for each core."""
    ran = subprocess.run([sys.executable, "-c", ARENAS], capture_output=True, check=True)
    assert 1 <= ran.stdout.count(b"<heap nr=") <= 2


PIECES = """
from pgsluice.system import freed_memory
freed_memory.keep_freed_memory()
freed_memory.MUCH_BYTES = 100 * 2**20
imported = freed_memory.resident_bytes()
blocks = [bytearray(1_000_000) for _ in range(300)]
before = freed_memory.resident_bytes()
kept = blocks[::10]
del blocks
freed_memory.give_back_freed_memory()
print(before - imported, freed_memory.resident_bytes() - imported)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="malloc_trim is the GNU C library's")
def test_what_is_free_between_what_is_not_is_given_back() -> None:
    ran = subprocess.run([sys.executable, "-c", PIECES], capture_output=True, check=True)
    before, after = map(int, ran.stdout.split())
    assert before > 290_000_000
    assert after < 45_000_000, "30 MB are kept"
