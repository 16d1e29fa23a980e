"""The table at a position, from its history, by the query that docs/modes.md gives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
from deltalake import DeltaTable
from tests.support.change_logs import Rows, block

from pgsluice.verification import ComparedTable, DeltaRows

_POSITION = "26724352"


def as_of_query(position: int) -> str:
    """The page's query of ``orders_history``, for another position."""
    text = block("as of", "sql")
    assert text.count(_POSITION) == 2
    return text.replace(_POSITION, str(position))


def as_of(history: pa.Table, position: int) -> Rows:
    """The table at a position, with the history's columns."""
    connection = duckdb.connect()
    connection.register("orders_history", history)
    rows: Rows = connection.sql(as_of_query(position)).to_arrow_table().to_pylist()
    return rows


def history_of(delta: DeltaTable) -> pa.Table:
    """All versions; each key has at most one at each position."""
    read = pa.RecordBatchReader.from_stream(delta.scan()).read_all()
    history = read.cast(pa.schema(delta.schema().to_arrow()))
    assert_whole(history.to_pylist(), ["id"])
    return history


def assert_no_overlaps(
    connection: psycopg.Connection[Any], source: str, versions: DeltaRows
) -> None:
    """A target, if it is a history, has at most one version of each key at each position."""
    if "_valid_to" not in versions.schema.names:
        return
    key = ComparedTable.find(connection, source).key
    names = [*key, "_valid_from", "_valid_to", "_is_current"]
    assert_whole([row for batch in versions.batches(names) for row in batch.to_pylist()], key)


def assert_whole(history: Rows, key: Sequence[str]) -> None:
    """The versions of a key do not overlap, and the current one is the last."""
    by_key: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in history:
        by_key[repr([row[name] for name in key])].append(row)
    for versions in by_key.values():
        versions.sort(key=lambda row: int(row["_valid_from"]))
        for version, following in zip(versions, [*versions[1:], None], strict=True):
            end = version["_valid_to"]
            assert version["_is_current"] == (end is None), version
            assert end is None or version["_valid_from"] < end, version
            if following is not None:
                assert end is not None, version
                assert end <= following["_valid_from"], (version, following)
