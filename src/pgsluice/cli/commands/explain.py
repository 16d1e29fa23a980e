"""``pgsluice explain``: which filter and columns apply to a table, for each action, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from pgsluice.cli.options import ConfigArgument, DebugOption
from pgsluice.cli.output import say
from pgsluice.config import load_config

if TYPE_CHECKING:
    from pgsluice.cli.source_view import SourceView
    from pgsluice.config import Config
    from pgsluice.definitions.source_tables import SourceTable
    from pgsluice.publication import Action, Publication, Resolution


def explain(
    config: ConfigArgument,
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="the name as in SQL", show_default=False)
    ],
    debug: DebugOption = False,
) -> None:
    """Show which filters and columns apply to a table, and why."""
    from pgsluice.cli.source_view import read_source

    loaded = load_config(config)
    for line in explanation(read_source(loaded), loaded, table):
        say(line)


def explanation(view: SourceView, config: Config, name: str) -> Iterator[str]:
    """Lines about what the server sends of the table, and what each subscription applies."""
    table = view.table(name)
    below = [child for child in view.catalog.below(table) if not child.is_partitioned]
    leaves = below if table.is_partitioned else [table]
    server = _server_publications(view, config)
    for number, leaf in enumerate(leaves):
        if number:
            yield ""
        yield _name(leaf) + _partition_of(view, leaf)
        yield from _explain_leaf(view, config, leaf, server)
    if not leaves:
        yield f"{_name(table)} has no partitions"


def _server_publications(view: SourceView, config: Config) -> list[Publication]:
    """The publications that the slot sends, or will send after the first run."""
    from pgsluice.catalog.publications.managed import INSERT_SUFFIX
    from pgsluice.publication import Publication

    names = config.source.publications
    sent = {*names, *(name + INSERT_SUFFIX for name in names)}
    existing = [owned.publication for owned in view.server if owned.publication.name in sent]
    return existing or [
        Publication(f"{name} (the first run creates it)", all_tables=True) for name in names
    ]


def _explain_leaf(
    view: SourceView, config: Config, leaf: SourceTable, server: Sequence[Publication]
) -> Iterator[str]:
    from pgsluice.publication import resolve, subscribed

    names = ", ".join(f'"{publication.name}"' for publication in server)
    yield f"  the server, publications {names}"
    sent = resolve(server, leaf, view.catalog)
    yield from _lines(sent, leaf)
    if sent is None:
        return
    for subscription in config.subscriptions:
        if subscription.publications is None:
            yield f"  subscription {subscription.name}: everything that the server sends"
            continue
        names = ", ".join(f'"{name}"' for name in subscription.publications)
        yield f"  subscription {subscription.name}, publications {names}"
        own = subscribed(view.own, subscription.publications)
        yield from _lines(resolve(own, sent.published_as, view.catalog), sent.published_as)


def _lines(resolution: Resolution | None, table: SourceTable) -> Iterator[str]:
    from pgsluice.publication import ACTIONS
    from pgsluice.sql import any_of

    if resolution is None:
        yield "    nothing: none of them has the table"
        return
    kind = "partition root"
    if resolution.published_as.oid == table.oid:
        kind = "leaf" if table.ancestors else "itself"
    if table.is_partitioned:
        kind = "partition root, as the server sends it"
    by = ", ".join(f'"{rule.publication}"' for rule in resolution.rules)
    yield f"    published as  {_name(resolution.published_as)} ({kind}), by {by}"
    columns = "the column list" if resolution.columns is not None else "no column list"
    yield f"    columns       {', '.join(resolution.published_columns)} ({columns})"
    for action in ACTIONS:
        yield f"    {action:<12}  {_action(resolution, action)}"
    yield f"    initial copy  {any_of(resolution.copy_filters) or 'every row'}"


def _action(resolution: Resolution, action: Action) -> str:
    if action not in resolution.published:
        return "not published"
    if action == "truncate":
        is_leaf = resolution.published_as.oid == resolution.table.oid
        return "published; filters have no effect" if is_leaf else "a partition's own is not sent"
    from pgsluice.sql import any_of

    acting = [rule for rule in resolution.rules if action in rule.actions]
    if filters := any_of(resolution.filters(action)):
        by = ", ".join(f'"{rule.publication}"' for rule in acting)
        return f"WHERE {filters}  by {by}"
    why = "; ".join(
        f'"{rule.publication}" cancels filters: {getattr(rule.row_filter, "value", "")}'
        for rule in resolution.cancelled(action)
    )
    return f"every row{f'; {why}' if why else ''}"


def _name(table: SourceTable) -> str:
    return f"{table.namespace}.{table.name}"


def _partition_of(view: SourceView, leaf: SourceTable) -> str:
    above = [_name(view.catalog.tables[oid]) for oid in leaf.ancestors]
    return f", partition of {', of '.join(above)}" if above else ""
