r"""``pgsluice describe``: prints publications and tables like psql's ``\dRp+`` and ``\d``."""

from __future__ import annotations

from typing import Annotated

import typer

from pgsluice.cli.options import ConfigArgument, DebugOption
from pgsluice.cli.output import say_picture
from pgsluice.config import load_config


def describe(
    config: ConfigArgument,
    publication: Annotated[
        str | None, typer.Argument(metavar="PUB", help="only this publication")
    ] = None,
    debug: DebugOption = False,
) -> None:
    r"""Show publications and their tables, like psql's \dRp+ and \d."""
    from pgsluice.cli.psql_picture import pictures
    from pgsluice.cli.source_view import read_source

    view = read_source(load_config(config))
    for picture in pictures(view, publication):
        say_picture(picture)
