"""The ways of rebuilding a table from its change log that docs/modes.md gives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa

_PAGE = Path(__file__).parents[2] / "docs" / "modes.md"
_POSITION = "26724352"
Rows = list[dict[str, Any]]


def query(position: int) -> str:
    """The page's query of ``orders_log``, for another position."""
    text = block("query", "sql")
    assert text.count(_POSITION) == 1
    return text.replace(_POSITION, str(position))


def by_query(log: pa.Table, position: int) -> Rows:
    """The table (id, status, note) at a position, by the page's query in DuckDB."""
    connection = duckdb.connect()
    connection.register("orders_log", log)
    found: list[dict[str, Any]] = connection.sql(query(position)).to_arrow_table().to_pylist()
    return sorted(found, key=_order)


def by_loop(log: pa.Table, key: list[str], position: int) -> Rows:
    """A table at a position, by the page's loop in Polars."""
    names: dict[str, Any] = {}
    exec(block("loop", "python"), names)
    frame = pl.from_arrow(log)
    found: list[dict[str, Any]] = names["rebuild"](frame, key, position).to_dicts()
    return sorted(found, key=_order)


def _order(row: dict[str, Any]) -> str:
    return repr([*row.values()])


def block(mark: str, language: str) -> str:
    """The page's code after a comment with this mark."""
    found = re.findall(rf"<!-- {mark} -->\n```{language}\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    assert len(found) == 1, mark
    return str(found[0])
