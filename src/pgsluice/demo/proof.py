"""The proof: every table of the shop against its Delta table, at one position.

The source's side is hashed by PostgreSQL, all tables under one snapshot; the target's by code
that shares nothing with what wrote it (:mod:`pgsluice.verification`).
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pgsluice.demo.shop import TABLES
from pgsluice.demo.stage import Stage
from pgsluice.lsn import Lsn
from pgsluice.monitor.wording import format_count
from pgsluice.verification import Comparison, compare, one_snapshot

# Eighty columns have to be enough; what is compared is the whole hash.
_SHOWN_HASH = 8


def prove(stage: Stage) -> list[Comparison]:
    """Compare every table; the source has to rest."""
    with psycopg.connect(stage.dsn, autocommit=True) as connection, one_snapshot(connection):
        return [compare(connection, title, stage.table_path(title)) for title in TABLES]


def show_proof(
    comparisons: Sequence[Comparison], position: Lsn, server_version: str, console: Console
) -> None:
    """Print it as a table, and what differs below it."""
    table = Table(
        title=f"PostgreSQL {server_version} and Delta at {position}",
        box=box.SIMPLE,
        pad_edge=False,
    )
    table.add_column("table", no_wrap=True)
    for title in ("rows", "in Delta"):
        table.add_column(title, justify="right", no_wrap=True)
    for title in ("hash", "of Delta", ""):
        table.add_column(title, no_wrap=True)
    for one in comparisons:
        table.add_row(
            Text(one.table),
            format_count(one.source_rows),
            format_count(one.target_rows),
            one.source.content_hash[:_SHOWN_HASH],
            one.target.content_hash[:_SHOWN_HASH],
            Text("equal", style="green") if one.equal else Text("DIFFERS", style="bold red"),
        )
    console.print(table)
    for one in comparisons:
        if not one.equal:
            console.print(str(one), style="red", markup=False, highlight=False, soft_wrap=True)
    equal = sum(one.equal for one in comparisons)
    if equal == len(comparisons):
        console.print(f"All {equal} tables are equal.", style="green", highlight=False)
    else:
        console.print(f"{equal} of {len(comparisons)} tables are equal.", style="bold red")
