"""``pgsluice copy``: copy one table again.

If a ``pgsluice run`` is active, it is asked to copy the table. Otherwise this command acts as
the run: it copies the table, applies what the spool has for all tables, and ends.
"""

from __future__ import annotations

from typing import Annotated

import typer

from pgsluice.cli.options import ConfigArgument, DebugOption
from pgsluice.cli.output import say
from pgsluice.cli.run import replicate
from pgsluice.config import load_config


def copy(
    config: ConfigArgument,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="schema.table, or table in public")],
    subscription: Annotated[
        str | None,
        typer.Option("--subscription", help="only in this subscription", show_default=False),
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Copy one table again."""
    from pgsluice.cli.copy_request import ask_for_copy, find_table
    from pgsluice.spark.java import require_java

    loaded = load_config(config)
    require_java()
    oids = find_table(loaded, table, subscription)
    inactive = [name for name, oid in oids.items() if not ask_for_copy(loaded, name, oid)]
    if not inactive:
        say(f"asked the active run to copy {table} again")
        return
    code = replicate(loaded, once=True, names=inactive, config_path=str(config))
    if code:
        raise typer.Exit(code)
    say(f"copied {table} again")
