"""Imports all of PySpark in one thread before other threads use it.

PySpark's modules import each other. If two threads start with different ones, each waits for a
module that the other one is importing. Python resolves this deadlock with a half-initialised
module, and an import fails.
"""

from __future__ import annotations

import importlib
from contextlib import nullcontext

from pgsluice.spark.installed import is_measured, spark_version
from pgsluice.spark.session.without_pandas import load_arrow_without_pandas, without_pandas

MODULES = (
    "pyspark.sql",
    "py4j.protocol",
    "pyarrow.compute",
    "pyspark.errors",
    "pyspark.java_gateway",
    "pyspark.sql.pandas.map_ops",
    "pyspark.sql.pandas.types",
)
"""The PySpark modules that a run uses, and those that PySpark imports when a context is created."""
SINCE_4 = (
    "pyspark.sql.classic.column",
    "pyspark.sql.classic.dataframe",
    "pyspark.sql.datasource",
    "pyspark.testing.utils",  # at the first call of the JVM; in 3.5 it fails with NumPy 2
)
"""The same, in versions that have data sources in Python."""


def load_pyspark(*, owns_process: bool) -> None:
    """Import PySpark, and the modules that it would import later.

    Args:
        owns_process: nothing else uses Spark or pandas in this process.
    """
    is_quick = owns_process and is_measured()
    with without_pandas() if is_quick else nullcontext():
        has_sources = spark_version().has_data_sources
        for name in (*MODULES, *(SINCE_4 if has_sources else ())):
            importlib.import_module(name)
    if is_quick:
        load_arrow_without_pandas()
