"""``pgsluice copy``: copy one table again.

Beside a live ``run`` it leaves the wish for it to take up. Without one it takes the run's
place: it copies the table, applies what the spool has for all tables, and ends.
"""

from __future__ import annotations

from typing import Annotated

import typer

from pgsluice.cli.options import ConfigArgument, DebugOption
from pgsluice.cli.run import replicate
from pgsluice.config import load_config


def copy(
    config: ConfigArgument,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="schema.table, or table in public")],
    subscription: Annotated[
        str | None,
        typer.Option("--subscription", help="for this one only", show_default=False),
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Copy one table again, from the source to the target."""
    from pgsluice.cli.copying import ask_for_copy, find_table
    from pgsluice.spark.java import require_java

    loaded = load_config(config)
    require_java()
    oids = find_table(loaded, table, subscription)
    waiting = [name for name, oid in oids.items() if not ask_for_copy(loaded, name, oid)]
    if waiting:
        code = replicate(loaded, once=True, names=waiting)
        if code:
            raise typer.Exit(code)
    typer.echo(f"{table} is copied again" if waiting else f"asked the run to copy {table} again")
