"""``pgsluice status``: slot, spool, subscriptions and tables, as text or as JSON."""

from __future__ import annotations

from typing import Annotated

import typer

from pgsluice.cli.options import ConfigArgument, DebugOption
from pgsluice.cli.output import say_json
from pgsluice.config import load_config

_PATIENCE_S = 2.0
"""How long to wait for capture's report: it reports the server's position about once a second."""


def status(
    config: ConfigArgument,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    debug: DebugOption = False,
) -> None:
    """Show state, position and lag of slot, spool and tables."""
    from pgsluice.monitor.status import read_status

    current = read_status(load_config(config), patience_s=_PATIENCE_S)
    if as_json:
        say_json(current.to_json(), indent=2)
    else:
        from pgsluice.cli.status_view import show
        from pgsluice.monitor.display import plain_console

        show(current, plain_console(), str(config))
