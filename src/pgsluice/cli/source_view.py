"""The source as ``describe`` and ``explain`` see it: its tables, its publications, and our own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pgsluice.catalog.publications.managed import INSERT_SUFFIX
from pgsluice.catalog.publications.publications import server_publications
from pgsluice.catalog.tables.source_tables import source_catalog
from pgsluice.config import Config
from pgsluice.config.values.table_names import table_named
from pgsluice.definitions.source_tables import SourceCatalog, SourceTable
from pgsluice.errors import ConfigError
from pgsluice.publication import (
    ACTIONS,
    Action,
    OwnedPublication,
    Publication,
    Publications,
    Resolution,
    Statements,
    find_table,
    read_relation_name,
    resolve,
    subscribed,
)
from pgsluice.replication import connect_sql, source_errors
from pgsluice.sql import SqlRefused, any_of

_KINDS = ("r", "p")
_SYSTEM = ("pg_catalog", "information_schema")
OWNER = "pgsluice"
"""The displayed owner of our own publications."""


@dataclass(frozen=True, slots=True)
class SourceView:
    """The source at one time.

    Attributes:
        server: the server's publications.
        own: the publications that the configuration's statements create.
    """

    catalog: SourceCatalog
    server: tuple[OwnedPublication, ...]
    own: Publications
    server_version: int

    @property
    def all(self) -> list[OwnedPublication]:
        """The publications of the server, then pgsluice's own ones."""
        return [*self.server, *(OwnedPublication(publication, OWNER) for publication in self.own)]

    def table(self, name: str) -> SourceTable:
        """A table by its name; all commands parse it by the same rules.

        Raises:
            ConfigError: no table has the name; the hint has the nearest one.
        """
        tables = {
            (table.namespace, table.name): table
            for table in self.catalog.tables.values()
            if table.kind in _KINDS and table.namespace not in _SYSTEM
        }
        missing = f"there is no table {name} in the database {self.catalog.database}"
        try:
            return tables[table_named(name, tables, missing)]
        except ConfigError:
            with suppress(SqlRefused):  # by the role's search path, and all that SQL can write
                return find_table(read_relation_name(name), self.catalog)
            raise


def read_source(config: Config) -> SourceView:
    """Read everything from the source.

    Raises:
        SourceUnreachable, SourceRefused: it cannot be queried.
        ConfigError: a statement of our own publications is refused.
    """
    timeout_s = config.source.connect_timeout_s
    with connect_sql(config.source.conninfo, timeout_s=timeout_s) as connection:
        with source_errors("reading the catalog"):
            catalog = source_catalog(
                connection, with_defaults=True, for_filters=config.publications is not None
            )
            server = tuple(server_publications(connection))
        version = connection.info.server_version
    return SourceView(
        catalog, server, Statements.read(config.publications).publications(catalog), version
    )


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
    names = config.source.publications
    sent = {*names, *(name + INSERT_SUFFIX for name in names)}
    existing = [owned.publication for owned in view.server if owned.publication.name in sent]
    return existing or [
        Publication(f"{name} (the first run creates it)", all_tables=True) for name in names
    ]


def _explain_leaf(
    view: SourceView, config: Config, leaf: SourceTable, server: Sequence[Publication]
) -> Iterator[str]:
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
