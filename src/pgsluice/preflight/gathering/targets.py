"""Finds tables whose targets cannot be as configured, by the tables' definitions in the catalog."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pyarrow as pa

from pgsluice.catalog import fetch_many
from pgsluice.changes.deleted_rows import TIME
from pgsluice.config import Config, SubscriptionConfig
from pgsluice.definitions.source_tables import SourceCatalog
from pgsluice.errors import ConfigError, TableError
from pgsluice.facts import RelationFacts
from pgsluice.preflight.facts import UnfitTarget
from pgsluice.sinks.renamed import schema_at_target
from pgsluice.sinks.target import TableOptions, target_table
from pgsluice.subscription.base.options import table_options


def unfit_targets(
    connection: psycopg.Connection[tuple[Any, ...]],
    config: Config,
    catalog: SourceCatalog,
    sent: Collection[int],
) -> tuple[UnfitTarget, ...]:
    """Of tables that settings of the sink or ``rename`` concern, those whose target is refused.

    Args:
        sent: the relations that the server sends, by OID.
    """
    tables = catalog.tables
    roots = {(oid, *tables[oid].ancestors)[-1] for oid in sent if oid in tables} & tables.keys()
    found: list[UnfitTarget] = []
    for subscription in config.subscriptions:
        concerned = [oid for oid in sorted(roots) if _is_concerned(subscription, catalog, oid)]
        if not subscription.enabled or not concerned:
            continue
        with suppress(ConfigError):  # another check says what is wrong
            options = table_options(subscription)
            for facts in fetch_many(connection, concerned).values():
                found += _unfit(subscription, options, facts)
    return tuple(found)


def _is_concerned(subscription: SubscriptionConfig, catalog: SourceCatalog, oid: int) -> bool:
    table, names = catalog.tables[oid], subscription.names
    name = table.namespace, table.name
    is_named = names.described(*name) or names.owner_of_table_name(*name) is not None
    return bool(is_named) or ".".join(name) in subscription.sink.table_names()


def _unfit(
    subscription: SubscriptionConfig, options: TableOptions, facts: RelationFacts
) -> Iterator[UnfitTarget]:
    try:
        table = target_table(facts, options)
        schema, mode = table.schema, options.mode
        if mode.log is not None:
            schema = mode.log.of_table(schema, table.title)
        elif mode.history is not None:
            schema = mode.history.of_table(schema)
        elif mode.deleted_column is not None:
            schema = schema.append(pa.field(mode.deleted_column, TIME))
        sink = subscription.sink.with_names(subscription.names)
        sink.check_table(table.title, schema_at_target(schema, subscription.names, table.title))
    except TableError as error:
        yield UnfitTarget(subscription.name, error.what, error.hint or "")
