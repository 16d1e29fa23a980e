"""``pgsluice drop``: remove the slot, our publications and all state, or one subscription.

The target tables stay, and so do their names in a catalog, unless the user requests otherwise. The
command is refused while a capture is active.
"""

from __future__ import annotations

from typing import Annotated

import typer

from pgsluice.cli.options import ConfigArgument, DebugOption, YesOption
from pgsluice.config import load_config


def drop(
    config: ConfigArgument,
    subscription: Annotated[
        str | None,
        typer.Option("--subscription", help="only this subscription's state", show_default=False),
    ] = None,
    unregister: Annotated[
        bool,
        typer.Option(
            "--unregister",
            help="also take the tables out of the catalog that the sink's register names; "
            "their files stay",
        ),
    ] = False,
    yes: YesOption = False,
    debug: DebugOption = False,
) -> None:
    """Drop the slot and all state; the targets' tables are kept."""
    from pgsluice.cli.catalog import unregister_targets
    from pgsluice.cli.teardown import drop_all, drop_subscription, no_capture

    loaded = load_config(config)

    def before() -> None:
        if unregister:
            unregister_targets(loaded, subscription)

    with no_capture(loaded.spool.path):
        if subscription is not None:
            drop_subscription(loaded, subscription, yes=yes, before=before)
        else:
            code = drop_all(loaded, yes=yes, before=before)
            if code:
                raise typer.Exit(code)
