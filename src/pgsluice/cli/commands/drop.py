"""``pgsluice drop``: remove the slot, our publications and all state, or one subscription.

With ``--stream``, those of streaming queries, which have no configuration.

The target tables stay, and so do their names in a catalog, unless the user requests otherwise. The
command is refused while a capture or a run is active.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from pgsluice.cli.options import DebugOption, OptionalConfigArgument, YesOption
from pgsluice.config import load_config


def drop(
    config: OptionalConfigArgument = None,
    subscription: Annotated[
        str | None, typer.Option("--subscription", help="only this subscription's state")
    ] = None,
    unregister: Annotated[
        bool,
        typer.Option(
            "--unregister",
            help="also take the tables out of the catalog that the sink's register names; "
            "their files stay",
        ),
    ] = False,
    stream: Annotated[
        Path | None,
        typer.Option(
            "--stream",
            metavar="SPOOL",
            help="the slot, publications and spool of streaming queries, without a configuration",
        ),
    ] = None,
    dsn: Annotated[str | None, typer.Option("--dsn", help="the server of --stream")] = None,
    yes: YesOption = False,
    debug: DebugOption = False,
) -> None:
    """Drop the slot and all state; the targets' tables are kept."""
    from pgsluice.cli.teardown import (
        drop_all,
        drop_streams,
        drop_subscription,
        no_capture,
        no_runs,
        unregister_targets,
    )

    if stream is not None:
        if config is not None or dsn is None or subscription is not None or unregister:
            raise typer.BadParameter(
                "--stream needs --dsn, and neither CONFIG nor --subscription nor --unregister"
            )
        if code := drop_streams(stream, dsn, yes=yes):
            raise typer.Exit(code)
        return
    if config is None or dsn is not None:
        raise typer.BadParameter("name the configuration, or --stream SPOOL and --dsn DSN")
    loaded = load_config(config)
    before = partial(unregister_targets, loaded, subscription) if unregister else lambda: None
    with no_capture(loaded.spool.folder):
        if subscription is not None:
            drop_subscription(loaded, subscription, yes=yes, before=before)
        else:
            with no_runs(loaded.spool.place):
                code = drop_all(loaded, yes=yes, before=before)
            if code:
                raise typer.Exit(code)
