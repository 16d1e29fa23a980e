"""Arguments and options of several commands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pgsluice.hints import name_config
from pgsluice.log_lines import VARIABLE, LogFormat


@dataclass(slots=True)
class Invocation:
    """One call of the program, on which its error messages depend."""

    debug: bool = False


def _set_debug(context: typer.Context, value: bool) -> bool:
    """Accept ``--debug`` before and after the command."""
    if value:
        context.ensure_object(Invocation).debug = True
    return value


def _note_config(value: Path | None) -> Path | None:
    if value is not None:
        name_config(str(value))
    return value


_CONFIG = typer.Argument(
    metavar="CONFIG", callback=_note_config, help="the configuration file", show_default=False
)
ConfigArgument = Annotated[Path, _CONFIG]
OptionalConfigArgument = Annotated[Path | None, _CONFIG]
TablesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="TABLE", help="schema.table, or table in public; default: all"),
]
SubscriptionOption = Annotated[
    str | None, typer.Option("--subscription", help="only in this subscription")
]
OnceOption = Annotated[
    bool, typer.Option("--once", help="end at the position that the source has at the start")
]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON")]
DebugOption = Annotated[
    bool,
    typer.Option("--debug", callback=_set_debug, help="show the traceback of an error"),
]
LogFormatOption = Annotated[
    LogFormat | None,
    typer.Option("--log-format", help=f"lines of text, or JSON ({VARIABLE} sets it, too)"),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="do not ask")]
