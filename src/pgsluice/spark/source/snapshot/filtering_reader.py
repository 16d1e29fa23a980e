"""A reader of a snapshot that has the server filter rows, for Spark 4.1 and newer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pyspark.sql.datasource import Filter

from pgsluice.spark.source.snapshot.pushed_filters import PushedFilters
from pgsluice.spark.source.snapshot.reader import SnapshotReader


class FilteringSnapshotReader(SnapshotReader):
    """A reader that also passes Spark's filters to the server."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take the filters, but also leave all of them to Spark."""
        self._selection = replace(self._selection, condition=PushedFilters(tuple(filters)))
        return filters
