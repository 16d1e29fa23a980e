"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


class Invocation:
    """One call of the program: what holds for all commands."""

    def __init__(self) -> None:
        self.debug = False


def _set_debug(context: typer.Context, value: bool) -> bool:
    """``--debug`` may stand before the command or after it."""
    if value:
        context.ensure_object(Invocation).debug = True
    return value


ConfigArgument = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="the configuration file", show_default=False)
]
DebugOption = Annotated[
    bool,
    typer.Option("--debug", callback=_set_debug, help="show where an error comes from"),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="ask nothing")]
