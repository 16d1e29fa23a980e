"""The layout of a Delta table, which its properties have: all that write it follow it.

A part of a time is a plain column, and no generated one: a reader in another time zone would skip
files that have its rows (ADR 0053).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pgsluice.errors import TableError
from pgsluice.hints import copy_again
from pgsluice.sinks.joined_columns import another_target
from pgsluice.sinks.lake.layout.layout import Layout

if TYPE_CHECKING:
    from pgsluice.sinks.delta.log.snapshot import DeltaSnapshot

_PARTITION_BY, _CLUSTER_BY = "pgsluice.partition_by", "pgsluice.cluster_by"


def layout_of(configuration: Mapping[str, str | None]) -> Layout:
    """The partitions and the order of rows that the properties of a Delta table name; empty
    without."""
    return _parsed(configuration.get(_PARTITION_BY), configuration.get(_CLUSTER_BY))


@lru_cache(maxsize=2000)
def _parsed(partition_by: str | None, cluster_by: str | None) -> Layout:
    return Layout.parse(json.loads(partition_by or "[]"), json.loads(cluster_by or "[]"))


def with_layout(metadata: Mapping[str, Any], layout: Layout) -> dict[str, Any]:
    """A table's ``metaData`` action with the partitions and the order of rows of this layout."""
    lists = {
        _PARTITION_BY: [*map(str, layout.partition_by)],
        _CLUSTER_BY: [*layout.cluster_by],
    }
    others = metadata.get("configuration") or {}
    configuration = {name: text for name, text in others.items() if name not in lists}
    configuration |= {
        name: json.dumps(values, ensure_ascii=False) for name, values in lists.items() if values
    }
    columns = layout.partition_columns
    return {**metadata, "partitionColumns": columns, "configuration": configuration}


def refuse_other_partitions(
    snapshot: DeltaSnapshot, layout: Layout, title: str, *, keeps_rows: bool
) -> None:
    """Refuse to write a table that is partitioned otherwise than configured.

    Args:
        layout: the configured one.
        keeps_rows: a copy of the table keeps the rows from before.

    Raises:
        TableError: it is.
    """
    has, wanted = snapshot.layout.partition_by, layout.partition_by
    if snapshot.version < 0 or has == wanted:
        return
    raise TableError(
        f"the target of table {title} at {snapshot.folder.uri} is partitioned by {_listed(has)}, "
        f"but `partition_by` in the sink has {_listed(wanted)}",
        hint=another_target(title)
        if keeps_rows
        else f"copy the table again, which partitions it: {copy_again(title)}\nor set "
        "`partition_by` as before, then also copy the table again",
        table=title,
        location=snapshot.folder.uri,
    )


def _listed(terms: Iterable[object]) -> str:
    return ", ".join(map(str, terms)) or "nothing"
