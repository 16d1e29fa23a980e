r"""``pgsluice describe``: publications and tables as psql's ``\dRp+`` and ``\d`` show them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from pgsluice.cli.options import ConfigArgument, DebugOption
from pgsluice.config import load_config
from pgsluice.errors import ConfigError

if TYPE_CHECKING:
    from pgsluice.catalog.source_tables import SourceTable
    from pgsluice.cli.source_view import SourceView
    from pgsluice.publication import Publication


def describe(
    config: ConfigArgument,
    publication: Annotated[
        str | None,
        typer.Argument(metavar="[PUB]", help="one publication, not all", show_default=False),
    ] = None,
    debug: DebugOption = False,
) -> None:
    r"""Publications and tables, the server's and our own, as psql's \dRp+ and \d show them."""
    from pgsluice.cli.source_view import look

    view = look(load_config(config))
    for picture in pictures(view, publication):
        typer.echo(picture)


def pictures(view: SourceView, name: str | None) -> Iterator[str]:
    """A picture of each publication, then one of each table that they name.

    Raises:
        ConfigError: there is no publication of that name.
    """
    from pgsluice.cli.psql_picture import publication_picture, table_picture
    from pgsluice.cli.source_view import OWNER

    shown = [one for one in view.all if name in (None, one.publication.name)]
    if name is not None and not shown:
        names = ", ".join(f'"{one.publication.name}"' for one in view.all) or "none"
        raise ConfigError(f'there is no publication "{name}"', hint=f"there are: {names}")
    for one in shown:
        version = {} if one.owner == OWNER else {"server_version": view.server_version}
        yield publication_picture(one, **version)
    everyone = [one.publication for one in view.all]
    for table in _tables(view, [one.publication for one in shown]):
        yield table_picture(table, everyone)


def _tables(view: SourceView, publications: list[Publication]) -> list[SourceTable]:
    """What the publications have, by name."""
    found = [
        table
        for table in view.catalog.tables.values()
        if table.is_publishable
        and any(
            one.all_tables or table.namespace in one.schemas or one.table(table.oid)
            for one in publications
        )
    ]
    return sorted(found, key=lambda one: (one.namespace.encode(), one.name.encode()))
