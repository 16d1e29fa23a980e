"""The versions of Spark on which what makes a start sooner was measured (ADR 0036).

It relies on how PySpark works inside, so with another version pgsluice starts as PySpark does.
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
