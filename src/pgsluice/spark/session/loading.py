"""PySpark is imported by one thread, and as a whole, before other threads use any of it.

PySpark's modules import each other. Where two threads begin with different ones, each waits for a
module that the other one is importing. Python ends that by giving one of them a module that is
half made, and its import fails.
"""

from __future__ import annotations

import importlib
from contextlib import nullcontext

from pgsluice.spark.session.measured import is_measured
from pgsluice.spark.session.without_pandas import load_arrow_without_pandas, without_pandas

MODULES = (
    "pyspark.sql",
    "py4j.protocol",
    "pyarrow.compute",
    "pyspark.errors",
    "pyspark.java_gateway",
    "pyspark.sql.classic.column",
    "pyspark.sql.classic.dataframe",
    "pyspark.sql.datasource",
    "pyspark.sql.pandas.map_ops",
    "pyspark.sql.pandas.types",
    "pyspark.testing.utils",  # PySpark imports it when it first calls the JVM
)
"""What a run uses of PySpark, and what PySpark imports when a context is made."""


def load_pyspark(*, owns_process: bool) -> None:
    """Import PySpark, and what it imports later.

    Args:
        owns_process: nothing else uses Spark or pandas in this process.
    """
    is_quick = owns_process and is_measured()
    with without_pandas() if is_quick else nullcontext():
        for name in MODULES:
            importlib.import_module(name)
    if is_quick:
        load_arrow_without_pandas()
