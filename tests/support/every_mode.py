"""Subscriptions of the other modes beside a pipeline's own, and the comparison of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import psycopg
from tests.support.histories import assert_no_overlaps
from tests.support.oracle import DELETED_COLUMN, compare_exact, target_rows
from tests.support.pipeline import Pipeline

from pgsluice.monitor.status import read_status
from pgsluice.verification import ComparedTable, DeltaRows

OTHER_MODES = {
    "log": 'mode = "changelog"',
    "history": 'mode = "history"',
    "marked": f'deleted_column = "{DELETED_COLUMN}"',
}
"""Setting of a mode, by the subscription that has it."""
_NEEDS_KEY = "has no key with a unique index"
_WITHOUT_KEY = frozenset({"history", "marked"})
"""Subscriptions in which changes of a table without a key park it."""


def other_modes(one: Pipeline) -> str:
    """The configuration of subscriptions that have all tables in another mode each."""
    return "\n".join(
        f'[[subscription]]\nname = "{name}"\n{setting}\n'
        f'sink = {{ type = "delta", path = "{one.lake_uri}-{name}/{{schema}}/{{table}}" }}'
        for name, setting in OTHER_MODES.items()
    )


def difference(
    connection: psycopg.Connection[Any],
    one: Pipeline,
    subscription: str,
    target: dict[str, Any],
    source: str,
) -> str | None:
    """How a target differs from its table; None: it does not.

    A history also has no overlapping versions of a key. A table without a key is parked where its
    mode needs one.

    Args:
        target: the table in ``pgsluice status --json``.
        source: the table that has the rows which are sent.
    """
    key = ComparedTable.find(connection, source).key
    if (error := target["error"]) is not None:
        is_right = subscription in _WITHOUT_KEY and not key and _NEEDS_KEY in error
        return None if is_right else f"parked: {error}"
    rows = target_rows(connection, source, target["target"], one.reading_options)
    missing, extra = compare_exact(connection, source, rows)
    if missing or extra:
        return f"lacks {missing[:2]}, has {extra[:2]} besides"
    assert_no_overlaps(connection, source, DeltaRows(target["target"], options=one.reading_options))
    return None


def assert_modes_equal(one: Pipeline, tables: Sequence[str]) -> None:
    """Some tables are the source's in each of the other modes."""
    targets = {
        (subscription, table["table"]): table
        for subscription, table in all_targets(read_status(one.config).to_json())
    }
    with one.database.connect() as connection:
        for subscription, table in product(OTHER_MODES, tables):
            target = targets[subscription, table]
            why = difference(connection, one, subscription, target, f"public.{table}")
            assert why is None, f"{subscription}: {table}: {why}"


def all_targets(status: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each subscription with each of its tables in ``pgsluice status --json``."""
    for subscription in status["subscriptions"]:
        for table in subscription["tables"]:
            yield subscription["name"], table
