"""``pgsluice at``: which version of each target is the table at one position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgsluice.cli.options import ConfigArgument, DebugOption, JsonOption, SubscriptionOption
from pgsluice.cli.output import say, say_block, say_json
from pgsluice.config import load_config

if TYPE_CHECKING:
    from pgsluice.spark.checkpoints import Checkpoint


def at(
    config: ConfigArgument,
    moment: Annotated[
        str | None,
        typer.Argument(
            metavar="LSN|TIME", help="such as 0/16B3748 or 2026-11-27T14:05; default: the newest"
        ),
    ] = None,
    subscription: SubscriptionOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show which version of each target has the table at one position."""
    from pgsluice.spark.checkpoints import find_checkpoint, parse_moment

    loaded = load_config(config)
    wanted = None if moment is None else parse_moment(moment)
    chosen = loaded.subscriptions if subscription is None else [loaded.subscription(subscription)]
    found = [find_checkpoint(loaded, one, wanted) for one in chosen if one.enabled]
    if as_json:
        say_json([_to_json(checkpoint) for checkpoint in found])
        return
    for checkpoint in found:
        say(
            f"{checkpoint.subscription}: {checkpoint.lsn},"
            f" made at {checkpoint.made_at.isoformat(sep=' ', timespec='seconds')}"
        )
        say_block(
            f"{table.namespace}.{table.name}: version {table.version}"
            + ("" if table.location is None else f" of {table.location}")
            for table in checkpoint.tables
        )


def _to_json(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "subscription": checkpoint.subscription,
        "lsn": str(checkpoint.lsn),
        "made_at": checkpoint.made_at.isoformat(),
        "tables": [
            {
                "schema": table.namespace,
                "table": table.name,
                "version": table.version,
                "location": table.location,
            }
            for table in checkpoint.tables
        ],
    }
