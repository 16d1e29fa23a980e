"""What a worker keeps of the memory that it has freed.

The C library decides that, by limits that its caller may set. Other libraries than GNU's have none
of these functions: there nothing happens.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

_MIB = 2**20
# Parameters of mallopt, as malloc.h of the GNU C library has them.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_KEPT_BYTES, _OWN_MAPPING_BYTES, _ARENAS = 32 * _MIB, 16 * _MIB, 2
MUCH_BYTES = 384 * _MIB
"""A process that has more in memory gives back what is free."""


def keep_freed_memory() -> None:
    """Keep some memory that is freed for what is needed next.

    A copy needs as much for each of its blocks. The C library gives large pieces back to the
    system, which then has to give each page anew: a fifth of the CPU of copying narrow rows.

    Threads share two arenas, which hold what is freed. With one for each thread of the libraries, a
    worker that merges small batches took 450 MB instead of 260.
    """
    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
        import pyarrow as pa

        pa.set_memory_pool(pa.system_memory_pool())
    mallopt = _function("mallopt")
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _OWN_MAPPING_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_ARENA_MAX, _ARENAS)


def give_back_freed_memory() -> None:
    """Give free pages back to the system, if this process has much in memory.

    What one piece of a large batch, or one group of a file's rows, frees lies between what stays,
    so the next one may not fit into it: the process would grow with them.
    """
    trim = _function("malloc_trim")
    if trim is not None and _resident_bytes() > MUCH_BYTES:
        trim(0)


@cache
def _function(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
