"""Spark's Python worker daemon, with what tasks of pgsluice import loaded before it forks.

Spark forks a worker for each task that runs at once and ends idle ones after a minute; each
new one would spend a second or two importing Arrow, Delta and pgsluice. The daemon loads
them once, for all of its forks. Set by ``spark.python.daemon.module``; other kinds of workers
(data source planners) have daemons of their own, which are left as they are.
"""

import importlib
import sys

from pgsluice.spark.without_pandas import load_arrow_without_pandas

_LOADED = (
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "pgsluice.sinks.delta.sink",
    "pgsluice.subscription.batch_reader",
    "pgsluice.copy",
    "pgsluice.subscription.apply",
)


def main() -> None:
    """What ``python -m`` runs; Spark gives the kind of worker as the argument."""
    if sys.argv[1:2] == ["pyspark.worker"]:
        load_arrow_without_pandas()
        for name in _LOADED:
            importlib.import_module(name)
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
