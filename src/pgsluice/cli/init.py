"""``pgsluice init``: writes a commented configuration, asking what it needs.

What it writes is read back by the same code that will read it later, so that it never writes
a file that ``run`` refuses. It overwrites nothing unless ``--force`` says so.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from pgsluice.cli.options import DebugOption, YesOption
from pgsluice.config import mask_dsn, parse_config
from pgsluice.errors import ConfigError

_DSN = "postgresql://localhost/postgres"
_SLOT = "pgsluice"
_TARGET = "lake/{schema}/{table}"

_TEMPLATE = """\
# pgsluice: what is replicated, and where to. Relative paths start from this file's folder.

[source]
# libpq's connection string: service files, ~/.pgpass, PG* variables and TLS options work,
# so that a password need not stand here.
dsn = {dsn}
# The replication slot: made on the first run.
slot = {slot}
# Publications on the server: made on the first run if they are missing and the role may.
publications = [{publication}]
# streaming = "parallel"     # open transactions come in blocks: "off", "on" (14+), "parallel" (16+)
# two_phase = false          # prepared transactions at PREPARE; for the slot's life (15+)
# binary = false             # values in binary form (14+)
# messages = false           # what pg_logical_emit_message writes (14+)
# origin = "any"             # "none": without what came by replication itself (16+)
# catalog_poll_s = 10        # how often the server's catalog is looked at
# connect_timeout_s = 30     # how long the first connection may take

[spool]
# What was received and not yet applied: a folder on a local disk that lasts.
path = {spool}
# segment_bytes = "16 MiB"   # a segment ends at this size,
# segment_ms = 200           # or at this age
# retention = "0s"           # how long segments stay after all have applied them
# max_bytes = "20 GiB"       # the spool's limit; without one, 90 % of the disk. All transactions
#                            # that are open or prepared at one time have to fit into it

# pgsluice's own publications say which rows and columns a subscription gets, in the words of
# PostgreSQL 15+ (CREATE PUBLICATION orders_eu FOR TABLE orders WHERE (region = 'EU')):
#   [publications]
#   file = "publications.sql"

[[subscription]]
name = {name}
#   publications = ["orders_eu"]   # of [publications]; without it, everything that the slot sends
sink = {{ type = "delta", path = {target} }}
# enabled = true
# copy_data = true           # begin with a copy of what is there
# max_rows_per_batch = 1_000_000
# max_bytes_per_batch = "256 MiB"
# apply_interval_s = 0       # a table is written no more often than this
# numeric = "string"         # numeric without precision: "string", "double", "decimal(38,10)"
# key = {{ "public.t" = ["a", "b"] }}   # for a table that has no key of its own

[spark]
# Any Spark setting.
"spark.master" = "local[*]"
"""


def init(
    config: Annotated[Path, typer.Argument(metavar="[CONFIG]", help="the file to write")] = Path(
        "pgsluice.toml"
    ),
    dsn: Annotated[
        str | None, typer.Option(help="the source's connection string", show_default=False)
    ] = None,
    slot: Annotated[
        str | None, typer.Option(help="the replication slot", show_default=False)
    ] = None,
    spool: Annotated[
        str | None, typer.Option(help="the spool's folder", show_default=False)
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="where the Delta tables lie, with {schema} and {table}"),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="the subscription's name", show_default=False)
    ] = None,
    yes: YesOption = False,
    force: Annotated[bool, typer.Option("--force", help="overwrite the file")] = False,
    debug: DebugOption = False,
) -> None:
    """Write a commented configuration, asking what it needs."""
    path = config.expanduser().absolute()
    if path.exists() and not force:
        raise ConfigError(
            f"{config} is already there", hint="name another file, or overwrite it with --force"
        )
    asks = sys.stdin.isatty() and not yes
    if dsn is None and not asks and not yes:
        raise ConfigError(
            "init asks its questions on a terminal, and this is none",
            hint="give --dsn (and --slot, --spool, --target, --name), or --yes for the defaults",
        )
    dsn = _answer(dsn, "The source's connection string", _DSN, asks)
    slot = _answer(slot, "The slot's name", _SLOT, asks)
    spool = _answer(spool, "The spool's folder, on a local disk", "spool", asks)
    target = _answer(target, "Where the Delta tables lie", _TARGET, asks)
    name = _answer(name, "The subscription's name", "lake", asks)
    text = render(dsn=dsn, slot=slot, spool=spool, target=target, name=name)
    parse_config(text, path)
    _write(path, text, force=force)
    typer.echo(f"wrote {config}")
    if mask_dsn(dsn) != dsn:
        typer.echo("the password stands in it; ~/.pgpass or a service file would keep it out")
    typer.echo(f"next: pgsluice check {config}\n      pgsluice run {config}")


def render(*, dsn: str, slot: str, spool: str, target: str, name: str) -> str:
    """The configuration's text."""
    return _TEMPLATE.format(
        dsn=_quoted(dsn),
        slot=_quoted(slot),
        publication=_quoted(slot),
        spool=_quoted(spool),
        target=_quoted(target),
        name=_quoted(name),
    )


def _answer(given: str | None, question: str, default: str, asks: bool) -> str:
    if given is not None:
        return given
    if not asks:
        return default
    answer: str = typer.prompt(question, default=default)
    return answer


def _quoted(value: str) -> str:
    """A TOML basic string: JSON's escapes are among TOML's, but for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _write(path: Path, text: str, *, force: bool) -> None:
    """Readable by its owner only: a connection string may hold a password."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if force else os.O_EXCL)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
