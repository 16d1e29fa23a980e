"""Compares every table of the shop with its Delta table, at one position.

PostgreSQL hashes the source's tables, all in one snapshot. The targets are hashed by code that
shares nothing with the code that wrote them (:mod:`pgsluice.verification`).
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
from pgsluice.shown import shown, shown_lines
from pgsluice.verification import Comparison, compare, one_snapshot

# The table has to fit into 80 columns. The whole hashes are compared.
_SHOWN_HASH = 8


def prove(stage: Stage) -> list[Comparison]:
    """Compare every table. Nothing may change the source meanwhile."""
    with psycopg.connect(stage.dsn, autocommit=True) as connection, one_snapshot(connection):
        return [compare(connection, title, stage.rows(title)) for title in TABLES]


def show_proof(
    comparisons: Sequence[Comparison], position: Lsn, server_version: str, console: Console
) -> None:
    """Print the comparisons as a table, and the differences below it."""
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
    for comparison in comparisons:
        table.add_row(
            Text(shown(comparison.table)),
            format_count(comparison.source_rows),
            format_count(comparison.target_rows),
            comparison.source.content_hash[:_SHOWN_HASH],
            comparison.target.content_hash[:_SHOWN_HASH],
            Text("equal", style="green") if comparison.equal else Text("DIFFERS", style="bold red"),
        )
    console.print(table)
    for comparison in comparisons:
        if not comparison.equal:
            console.print(Text(shown_lines(str(comparison)), style="red"), soft_wrap=True)
    equal = sum(comparison.equal for comparison in comparisons)
    if equal == len(comparisons):
        console.print(f"All {equal} tables are equal.", style="green", highlight=False)
    else:
        console.print(f"{equal} of {len(comparisons)} tables are equal.", style="bold red")
