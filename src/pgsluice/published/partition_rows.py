"""Functions that find the rows of partitions: their bounds, as filters on the table's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from pgsluice.catalog import Connection
from pgsluice.catalog.tables.source_tables import source_catalog
from pgsluice.publication import bind_filter
from pgsluice.row_filter import FilterEvaluator, plan_filters
from pgsluice.sql import SqlRefused

T = TypeVar("T", int, tuple[int, int])


def evaluators_of(
    connection: Connection, wanted: Mapping[T, tuple[int, Sequence[str]]]
) -> dict[T, FilterEvaluator]:
    """Functions that find the rows of partitions.

    Args:
        wanted: any key -> a table, and conditions on its rows, of which at least one has to be
            true.

    Returns:
        the functions by the same keys, without those whose conditions cannot be computed exactly.
    """
    evaluators: dict[T, FilterEvaluator] = {}
    catalog = source_catalog(connection) if wanted else None
    for name, (oid, conditions) in wanted.items():
        table = catalog.tables.get(oid) if catalog is not None else None
        if catalog is None or table is None:
            continue
        try:
            bound = [bind_filter(text, table, catalog.text_rules) for text in conditions]
            evaluators[name] = plan_filters(bound)
        except SqlRefused:
            continue
    return evaluators
