"""Arguments and options of several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pgsluice.hints import name_config
from pgsluice.log_lines import VARIABLE, LogFormat


class Invocation:
    """One call of the program, on which its error messages depend."""

    def __init__(self) -> None:
        self.debug = False


def _set_debug(context: typer.Context, value: bool) -> bool:
    """Accept ``--debug`` before and after the command."""
    if value:
        context.ensure_object(Invocation).debug = True
    return value


def _note_config(value: Path | None) -> Path | None:
    if value is not None:
        name_config(str(value))
    return value


ConfigArgument = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG",
        callback=_note_config,
        help="the configuration file",
        show_default=False,
    ),
]
OptionalConfigArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="CONFIG",
        callback=_note_config,
        help="the configuration file",
        show_default=False,
    ),
]
DebugOption = Annotated[
    bool,
    typer.Option("--debug", callback=_set_debug, help="show the traceback of an error"),
]
LogFormatOption = Annotated[
    LogFormat | None,
    typer.Option(
        "--log-format",
        help=f"lines of text, or JSON ({VARIABLE} sets it, too)",
        show_default=False,
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="do not ask")]
