"""Spark's Python worker daemon, which imports what pgsluice's tasks need before it forks.

Spark forks a worker for each concurrent task and ends idle ones after a minute. Each new worker
would need a second or two to import Arrow, Delta and pgsluice. The daemon imports them once for all
of its forks, while the JVM starts (:mod:`pgsluice.spark.session.daemon_ahead`).
``spark.python.daemon.module`` sets it; other kinds of workers have their own daemons, which stay
unchanged.
"""

import gc
import importlib
import sys

from pgsluice.spark.installed import is_measured
from pgsluice.spark.session import daemon_ahead
from pgsluice.spark.session.loading import load_arrow_without_pandas
from pgsluice.system.freed_memory import keep_freed_memory

LOADED = (
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "pgsluice.sinks.delta.sink",
    "pgsluice.copy.job",
    "pgsluice.copy.renamed",
    "pgsluice.subscription.batches.tasks.apply",
    "pgsluice.subscription.batches.tasks.shared_batch",
)


def main() -> None:
    """The entry point of ``python -m``; Spark gives the kind of worker as the argument."""
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
    if is_measured():
        load_arrow_without_pandas()
    keep_freed_memory()
    for name in LOADED:
        importlib.import_module(name)
    gc.freeze()  # so no fork's collector touches, and so copies, these pages
    gc.enable()


if __name__ == "__main__":
    main()
