"""``pgsluice page``: the page of ``[monitor]``, from the spool's files, also while nothing runs."""

from __future__ import annotations

from typing import Annotated

import typer

from pgsluice.cli.options import ConfigArgument, DebugOption
from pgsluice.cli.output import say
from pgsluice.cli.signals import stop_on_signals
from pgsluice.config import load_config


def page(
    config: ConfigArgument,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="the port; 0: a free one")
    ] = 0,
    debug: DebugOption = False,
) -> None:
    """Serve the status as a page on this machine, until Ctrl-C.

    It reads the spool's files and does not connect to the source.
    """
    from pgsluice.monitor.metrics.serving import page_server

    loaded = load_config(config)
    with stop_on_signals() as request, page_server(loaded, port) as server:
        say(f"http://127.0.0.1:{server.port}/\n  Ctrl-C ends it")
        request.event.wait()
    raise typer.Exit(request.exit_code)
