"""The Spark versions on which the faster start was measured (ADR 0036).

The faster start depends on PySpark's internals, so with other versions pgsluice starts Spark in
PySpark's own way.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

MEASURED = ("4.2.",)


@cache
def is_measured() -> bool:
    """Whether the installed PySpark is of one of these versions."""
    try:
        return version("pyspark").startswith(MEASURED)
    except PackageNotFoundError:
        return False
