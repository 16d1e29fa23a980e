"""Spark's Python worker daemon, with what tasks of pgsluice import loaded before it forks.

Spark forks a worker for each task that runs at once and ends idle ones after a minute; each
new one would spend a second or two importing Arrow, Delta and pgsluice. The daemon loads
them once, for all of its forks, and a run has it load them while the JVM starts
(:mod:`pgsluice.spark.daemon_ahead`). Set by ``spark.python.daemon.module``; other kinds of workers
(data source planners) have daemons of their own, which are left as they are.
"""

import ctypes
import gc
import importlib
import os
import sys

from pgsluice.spark import daemon_ahead
from pgsluice.spark.without_pandas import load_arrow_without_pandas

_LOADED = (
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "pgsluice.sinks.delta.sink",
    "pgsluice.subscription.batch_reader",
    "pgsluice.copy",
    "pgsluice.subscription.apply",
)

_MIB = 2**20
# Parameters of mallopt, as malloc.h of the GNU C library has them.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_KEPT_BYTES, _OWN_MAPPING_BYTES, _ARENAS = 32 * _MIB, 16 * _MIB, 2


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
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:  # other C libraries have no such function
        mallopt(_M_MMAP_THRESHOLD, _OWN_MAPPING_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_ARENA_MAX, _ARENAS)


def main() -> None:
    """What ``python -m`` runs; Spark gives the kind of worker as the argument."""
    match sys.argv[1:]:
        case [_, daemon_ahead.AHEAD, listener]:
            _load()
            daemon_ahead.wait_for_daemon(int(listener))
        case [daemon_ahead.WORKERS, *_]:
            if daemon_ahead.give_to_process_ahead():
                return
            _load()
    from pyspark.daemon import manager

    manager()


def _load() -> None:
    gc.disable()  # what is imported stays
    load_arrow_without_pandas()
    keep_freed_memory()
    for name in _LOADED:
        importlib.import_module(name)
    gc.freeze()  # so no fork's collector touches, and so copies, these pages
    gc.enable()


if __name__ == "__main__":
    main()
