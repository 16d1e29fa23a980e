"""Imports all of PySpark in one thread before other threads use it.

PySpark's modules import each other. If two threads start with different ones, each waits for a
module that the other one is importing. Python resolves this deadlock with a half-initialised
module, and an import fails.

pgsluice's own processes do not import pandas: its import takes a second of CPU, and pgsluice never
uses it. Arrow imports it, if it is installed, when it first converts a list, in order to recognise
pandas objects; PySpark at its first call of the JVM, for its own tests (ADR 0036).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.machinery import ModuleSpec
from types import ModuleType

from pgsluice.spark.installed import is_measured, spark_version

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


class _NoPandas:
    """An importer that refuses pandas. (Arrow takes a None in ``sys.modules`` for the module.)"""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("pgsluice does not use pandas", name=name)
        return None


@contextmanager
def without_pandas() -> Iterator[None]:
    """A context in which pandas seems not to be installed; no effect if it is already imported."""
    importer = _NoPandas()
    sys.meta_path.insert(0, importer)
    try:
        yield
    finally:
        sys.meta_path.remove(importer)


def load_arrow_without_pandas() -> None:
    """Let Arrow find that pandas is not installed; no effect if it is already imported.

    Only for processes without user code: Arrow then treats a pandas Series as any other sequence.
    ``to_pandas`` still imports pandas.
    """
    import pyarrow as pa

    with without_pandas():
        pa.array([0])  # here Arrow looks for pandas, once
