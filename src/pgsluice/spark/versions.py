"""What pgsluice needs of a version of Spark. Nothing else looks at the numbers.

``pgsluice run`` uses jobs of tasks only, which every version has. ``format("pgoutput")`` uses the
Python Data Source API: Spark 4.0 brought it, 4.1 the push-down of filters, and 4.2 limits of a
batch (https://spark.apache.org/docs/latest/api/python/tutorial/sql/python_data_source.html).
"""

from __future__ import annotations

from typing import NamedTuple


class SparkVersion(NamedTuple):
    """The first two numbers of a version of Spark."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> SparkVersion:
        """Read a version from its text, such as ``4.1.2`` or ``4.2.0.dev1``."""
        major, minor = text.split(".")[:2]
        return cls(int(major), int(minor))

    @property
    def has_data_sources(self) -> bool:
        """Whether Spark can read from data sources that are written in Python."""
        return self >= (4, 0)

    @property
    def has_variants(self) -> bool:
        """Whether Spark, with Delta's jar, reads tables that have VARIANT columns."""
        return self >= (4, 0)

    @property
    def has_read_limits(self) -> bool:
        """Whether Spark asks a Python stream for batches with limits, and for its last offset."""
        return self >= (4, 2)

    @property
    def is_measured(self) -> bool:
        """Whether what makes a start faster was measured on it (ADR 0036).

        It relies on how PySpark works inside, so pgsluice starts other versions as PySpark does.
        """
        return self == (4, 2)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


OLDEST = SparkVersion(3, 5)
"""The oldest that ``pgsluice run`` works with."""
