"""``pgsluice explain``: which filter and columns apply to a table, for each action, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from pgsluice.cli.options import ConfigArgument, DebugOption
from pgsluice.cli.output import say
from pgsluice.config import load_config


def explain(
    config: ConfigArgument,
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="the name as in SQL", show_default=False)
    ],
    debug: DebugOption = False,
) -> None:
    """Show which filters and columns apply to a table, and why."""
    from pgsluice.cli.source_view import explanation, read_source

    loaded = load_config(config)
    for line in explanation(read_source(loaded), loaded, table):
        say(line)
