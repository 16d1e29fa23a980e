"""Pipelines whose subscriptions have publications of pgsluice's own, each with its own lake."""

from __future__ import annotations

import json
from typing import Any

from deltalake import DeltaTable
from tests.support.pipeline import Pipeline


def subscriptions(**named: tuple[str, ...] | None) -> str:
    """Sections of subscriptions; None: one without publications of ours."""
    return "".join(
        f"[[subscription]]\nname = {json.dumps(name)}\n"
        + ("" if publications is None else f"publications = {json.dumps(publications)}\n")
        + f'sink = {{ type = "delta", path = "{name}/{{schema}}/{{table}}" }}\n'
        for name, publications in named.items()
    )


def publishing(one: Pipeline, statements: str, **named: tuple[str, ...] | None) -> None:
    """Write a configuration with these publications and subscriptions only."""
    (one.folder / "publications.sql").write_text(statements)
    one.write()
    text = one.path.read_text()
    head, _, rest = text.partition("[[subscription]]")
    spark = rest[rest.index("[spark]") :]
    own = '[publications]\nfile = "publications.sql"\n'
    one.path.write_text(head + own + subscriptions(**named) + spark)


def lake(one: Pipeline, name: str, table: str) -> list[tuple[Any, ...]]:
    """A table's rows in a subscription's lake, sorted, NULL last."""
    rows = DeltaTable(str(one.folder / name / "public" / table)).to_pyarrow_table()
    found = zip(*(column.to_pylist() for column in rows.columns), strict=True)
    return sorted(found, key=lambda row: [(value is None, value) for value in row])
