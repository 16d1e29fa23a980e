"""``pgsluice status``: slot, spool, subscriptions and tables, as text or as JSON."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from pgsluice.cli.options import ConfigArgument, DebugOption
from pgsluice.config import load_config


def status(
    config: ConfigArgument,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    debug: DebugOption = False,
) -> None:
    """Show slot, spool, subscriptions and tables: state, position and lag."""
    from pgsluice.monitor.status import read_status

    current = read_status(load_config(config))
    if as_json:
        typer.echo(json.dumps(current.to_json(), indent=2, ensure_ascii=False))
    else:
        from rich.console import Console

        from pgsluice.cli.status_view import show

        show(current, Console())
