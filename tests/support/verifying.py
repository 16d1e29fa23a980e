"""A table of two columns, its target tampered with, and ``pgsluice verify`` with its results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.support.databases import Database
from tests.support.pipeline import Pipeline

from pgsluice.cli.app import run_command


def verify(
    one: Pipeline, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, dict[str, dict[str, Any]]]:
    """The command's exit code and its results by table."""
    capsys.readouterr()
    code = run_command(["verify", str(one.path), *arguments, "--json"])
    captured = capsys.readouterr()
    assert captured.out.startswith("["), captured.err
    return code, {result["table"]: result for result in json.loads(captured.out)}


def with_rows(shop: Database, rows: int, *, has_key: bool = True) -> None:
    shop.execute(
        f"CREATE TABLE t (id int {'PRIMARY KEY' if has_key else ''}, v text)",
        *(() if has_key else ("ALTER TABLE t REPLICA IDENTITY FULL",)),
        f"INSERT INTO t SELECT i, md5(i::text) FROM generate_series(1, {rows}) i",
    )


def tamper(folder: Path, rows: int) -> None:
    """Change one value, remove one row and add one, as somebody else would."""
    target = DeltaTable(str(folder))
    target.update(predicate="id = 17", updates={"v": "'other'"})
    target.delete("id = 4711")
    target = DeltaTable(str(folder))  # scanned: datasets have no deletion vectors
    read = pa.RecordBatchReader.from_stream(target.scan()).read_all()
    all_rows = read.cast(pa.schema(target.schema().to_arrow()))
    first = all_rows.filter(pc.field("id") == 1)
    number = first.schema.get_field_index("id")
    extra = first.set_column(number, "id", pa.array([rows + 1], first.schema.field(number).type))
    write_deltalake(str(folder), extra, mode="append")
