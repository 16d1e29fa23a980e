r"""``pgsluice describe``: prints publications and tables like psql's ``\dRp+`` and ``\d``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from pgsluice.cli.options import ConfigArgument, DebugOption
from pgsluice.cli.output import say_picture
from pgsluice.config import load_config
from pgsluice.config.values.table_names import publication_named
from pgsluice.errors import ConfigError

if TYPE_CHECKING:
    from pgsluice.cli.source_view import SourceView
    from pgsluice.definitions.source_tables import SourceTable
    from pgsluice.publication import Publication


def describe(
    config: ConfigArgument,
    publication: Annotated[
        str | None,
        typer.Argument(metavar="PUB", help="only this publication", show_default=False),
    ] = None,
    debug: DebugOption = False,
) -> None:
    r"""Show publications and their tables, like psql's \dRp+ and \d."""
    from pgsluice.cli.source_view import read_source

    view = read_source(load_config(config))
    for picture in pictures(view, publication):
        say_picture(picture)


def pictures(view: SourceView, name: str | None) -> Iterator[str]:
    """A picture of each publication, then of each of their tables.

    Raises:
        ConfigError: there is no publication with this name.
    """
    from pgsluice.cli.psql_picture import publication_picture, table_picture
    from pgsluice.cli.source_view import OWNER

    meant = name and publication_named(name, [owned.publication.name for owned in view.all])
    shown = [owned for owned in view.all if name is None or owned.publication.name == meant]
    if name is not None and not shown:
        names = ", ".join(f'"{owned.publication.name}"' for owned in view.all) or "none"
        raise ConfigError(
            f'no publication has the name "{name}"', hint=f"the publications are: {names}"
        )
    for owned in shown:
        version = {} if owned.owner == OWNER else {"server_version": view.server_version}
        yield publication_picture(owned, **version)
    publications = [owned.publication for owned in view.all]
    for table in _tables(view, [owned.publication for owned in shown]):
        yield table_picture(table, publications)


def _tables(view: SourceView, publications: list[Publication]) -> list[SourceTable]:
    """The tables of these publications, sorted by name."""
    tables = [
        table
        for table in view.catalog.tables.values()
        if table.is_publishable
        and any(
            publication.all_tables
            or table.namespace in publication.schemas
            or publication.table(table.oid)
            for publication in publications
        )
    ]
    return sorted(tables, key=lambda table: (table.namespace.encode(), table.name.encode()))
