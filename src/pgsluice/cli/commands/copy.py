"""``pgsluice copy``: copy one table again.

If a ``pgsluice run`` is active, this command sends it a request and shows the progress of the copy.
Otherwise this command acts as the run: it copies the table, applies the spool's changes to all
tables, and ends.
"""

from __future__ import annotations

from typing import Annotated

import typer

from pgsluice.cli.commands.run import replicate
from pgsluice.cli.options import ConfigArgument, DebugOption, SubscriptionOption, YesOption
from pgsluice.cli.output import say
from pgsluice.config import load_config
from pgsluice.errors import TablesUnfinished


def copy(
    config: ConfigArgument,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="schema.table, or table in public")],
    subscription: SubscriptionOption = None,
    yes: YesOption = False,
    debug: DebugOption = False,
) -> None:
    """Copy one table again."""
    from pgsluice.cli.copy_request import ask_for_copy, ask_to_replace, find_table, follow_copy
    from pgsluice.monitor.live import LiveView
    from pgsluice.spark.session.java import require_java

    loaded = load_config(config)
    require_java()
    oids = find_table(loaded, table, subscription)
    if not yes:
        ask_to_replace(loaded, oids, table)
    inactive = [name for name, oid in oids.items() if not ask_for_copy(loaded, name, oid)]
    if len(inactive) < len(oids):
        say(
            f"asked the active run to copy {table} again; it continues even if you stop this "
            "command"
        )
    if inactive:
        code = 0  # other parked tables are reported, but are no error
        try:
            code = replicate(loaded, once=True, names=inactive, config_path=str(config))
        except TablesUnfinished as error:
            if error.facts["tables"] & {(name, oids[name]) for name in inactive}:
                raise
        if code:
            raise typer.Exit(code)
    with LiveView() as view:
        for name, oid in oids.items():
            if name not in inactive:
                follow_copy(loaded.spool.place, name, oid, view)
    say(f"copied {table} again")
