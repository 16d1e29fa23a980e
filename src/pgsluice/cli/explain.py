"""``pgsluice explain``: for each action, which filter and columns act on a table, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from pgsluice.cli.options import ConfigArgument, DebugOption
from pgsluice.config import load_config

if TYPE_CHECKING:
    from pgsluice.catalog.source_tables import SourceTable
    from pgsluice.cli.source_view import SourceView
    from pgsluice.config import Config
    from pgsluice.publication import Action, Publication, Resolution


def explain(
    config: ConfigArgument,
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="as SQL writes it", show_default=False)
    ],
    debug: DebugOption = False,
) -> None:
    """For each action: which filter and columns act on TABLE, from which publications, and why."""
    from pgsluice.cli.source_view import look

    loaded = load_config(config)
    for line in explanation(look(loaded), loaded, table):
        typer.echo(line)


def explanation(view: SourceView, config: Config, name: str) -> Iterator[str]:
    """Lines for people: what the server does, then what each subscription does."""
    table = view.table(name)
    below = [one for one in view.catalog.below(table) if not one.is_partitioned]
    leaves = below if table.is_partitioned else [table]
    server = _of_server(view, config)
    for number, leaf in enumerate(leaves):
        if number:
            yield ""
        yield _name(leaf) + _partition_of(view, leaf)
        yield from _explain_leaf(view, config, leaf, server)
    if not leaves:
        yield f"{_name(table)} has no partitions"


def _of_server(view: SourceView, config: Config) -> list[Publication]:
    """The publications that the slot sends; before the first run, what that will make."""
    from pgsluice.catalog.managed_publications import INSERT_SUFFIX
    from pgsluice.publication import Publication

    named = config.source.publications
    found = view.server_named([*named, *(one + INSERT_SUFFIX for one in named)])
    return found or [
        Publication(f"{one} (the first run makes it)", all_tables=True) for one in named
    ]


def _explain_leaf(
    view: SourceView, config: Config, leaf: SourceTable, server: Sequence[Publication]
) -> Iterator[str]:
    from pgsluice.publication import resolve, subscribed

    names = ", ".join(f'"{one.name}"' for one in server)
    yield f"  the server, publications {names}"
    sent = resolve(server, leaf, view.catalog)
    yield from _lines(sent, leaf)
    if sent is None:
        return
    for one in config.subscriptions:
        if one.publications is None:
            yield f"  subscription {one.name}: everything that the server sends"
            continue
        listed = ", ".join(f'"{name}"' for name in one.publications)
        yield f"  subscription {one.name}, publications {listed}"
        own = subscribed(view.own, one.publications)
        yield from _lines(resolve(own, sent.published_as, view.catalog), sent.published_as)


def _lines(found: Resolution | None, table: SourceTable) -> Iterator[str]:
    from pgsluice.publication import ACTIONS, any_of

    if found is None:
        yield "    nothing: none of them has the table"
        return
    as_what = "partition root"
    if found.published_as.oid == table.oid:
        as_what = "leaf" if table.ancestors else "itself"
    if table.is_partitioned:
        as_what = "partition root, as the server sends it"
    by = ", ".join(f'"{one.publication}"' for one in found.rules)
    yield f"    published as  {_name(found.published_as)} ({as_what}), by {by}"
    what = "the column list" if found.columns is not None else "no column list"
    yield f"    columns       {', '.join(found.published_columns)} ({what})"
    for action in ACTIONS:
        yield f"    {action:<12}  {_action(found, action)}"
    yield f"    initial copy  {any_of(found.copy_filters) or 'every row'}"


def _action(found: Resolution, action: Action) -> str:
    if action not in found.published:
        return "not published"
    if action == "truncate":
        is_leaf = found.published_as.oid == found.table.oid
        return "published; filters have no effect" if is_leaf else "a partition's own is not sent"
    from pgsluice.publication import any_of

    acting = [one for one in found.rules if action in one.actions]
    if filters := any_of(found.filters(action)):
        by = ", ".join(f'"{one.publication}"' for one in acting)
        return f"WHERE {filters}  by {by}"
    why = "; ".join(
        f'"{one.publication}" cancels filters: {getattr(one.row_filter, "value", "")}'
        for one in found.cancelled(action)
    )
    return f"every row{f'; {why}' if why else ''}"


def _name(table: SourceTable) -> str:
    return f"{table.namespace}.{table.name}"


def _partition_of(view: SourceView, leaf: SourceTable) -> str:
    above = [_name(view.catalog.tables[oid]) for oid in leaf.ancestors]
    return f", partition of {', of '.join(above)}" if above else ""
