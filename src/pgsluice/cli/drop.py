"""``pgsluice drop``: the slot, our publications and all state; or one subscription's state.

What has been written to targets stays. It refuses while a capture runs.
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
        typer.Option("--subscription", help="forget this one only", show_default=False),
    ] = None,
    yes: YesOption = False,
    debug: DebugOption = False,
) -> None:
    """Drop the slot and forget all state; the targets' tables stay."""
    from pgsluice.cli.forget import drop_all, drop_subscription, no_capture

    loaded = load_config(config)
    with no_capture(loaded.spool.path):
        if subscription is not None:
            drop_subscription(loaded, subscription, yes=yes)
        else:
            drop_all(loaded, yes=yes)
