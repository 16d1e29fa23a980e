"""``pgsluice init``: writes a configuration with comments, and asks for the required values.

The text is validated before it is written, so that ``run`` never refuses it. An existing file
is overwritten only with ``--force``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from pgsluice.cli.options import DebugOption, YesOption
from pgsluice.cli.output import say
from pgsluice.config import mask_dsn, parse_config, render_config
from pgsluice.errors import ConfigError
from pgsluice.hints import name_config


def init(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="the file to write")] = Path(
        "pgsluice.toml"
    ),
    dsn: Annotated[str | None, typer.Option(help="the source's connection string")] = None,
    slot: Annotated[str | None, typer.Option(help="the replication slot")] = None,
    spool: Annotated[str | None, typer.Option(help="the spool's folder")] = None,
    target: Annotated[
        str | None,
        typer.Option(help="the path of the Delta tables, with {schema} and {table}"),
    ] = None,
    name: Annotated[str | None, typer.Option(help="the subscription's name")] = None,
    yes: YesOption = False,
    force: Annotated[bool, typer.Option("--force", help="overwrite the file")] = False,
    debug: DebugOption = False,
) -> None:
    """Write a configuration with comments, asking for what it needs."""
    path = config.expanduser().absolute()
    if path.exists() and not force:
        raise ConfigError(
            f"the file {config} already exists",
            hint="choose another file name, or overwrite the file with --force",
        )
    asks = sys.stdin.isatty() and not yes
    if dsn is None and not asks and not yes:
        raise ConfigError(
            "`pgsluice init` asks for the settings, but has no terminal",
            hint="give the settings as options: --dsn (and --slot, --spool, --target, --name); or "
            "give --yes to use the defaults",
        )
    dsn = _answer(dsn, "The source's connection string", "postgresql://localhost/postgres", asks)
    slot = _answer(slot, "The slot's name", "pgsluice", asks)
    spool = _answer(spool, "The spool's folder, on a local disk", "spool", asks)
    target = _answer(target, "The path of the Delta tables", "lake/{schema}/{table}", asks)
    name = _answer(name, "The subscription's name", "lake", asks)
    text = render_config(dsn=dsn, slot=slot, spool=spool, target=target, name=name)
    parse_config(text, path)
    _write(path, text, force=force)
    say(f"wrote {config}")
    if mask_dsn(dsn) != dsn:
        say("the file contains the password; ~/.pgpass or a service file would keep it out")
    name_config(str(config))
    say("next: pgsluice check CONFIG\n      pgsluice run CONFIG")


def _answer(given: str | None, question: str, default: str, asks: bool) -> str:
    if given is not None:
        return given
    if not asks:
        return default
    answer: str = typer.prompt(question, default=default)
    return answer


def _write(path: Path, text: str, *, force: bool) -> None:
    """Write a file that only its owner may read: it may contain a password."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if force else os.O_EXCL)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
