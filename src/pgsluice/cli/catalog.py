"""Removes the targets from the catalog of Spark's session, for ``pgsluice drop --unregister``."""

from __future__ import annotations

from collections.abc import Iterator

from pgsluice.cli.output import say
from pgsluice.config import Config
from pgsluice.config.values.target_names import CatalogTable
from pgsluice.shown import shown
from pgsluice.spark.session.catalog import unregister
from pgsluice.spark.session.session import build_session
from pgsluice.spool import find_record


def unregister_targets(config: Config, subscription: str | None) -> None:
    """Remove the tables that a run has registered from the catalog; their files stay.

    Without ``register`` in a sink, it does nothing.

    Args:
        subscription: only the targets of this subscription; None: all targets.

    Raises:
        ConfigError: Spark cannot be started.
        Exception: an error of Spark; nothing has been dropped on the server then.
    """
    entries = list(_entries(config, subscription))
    if not entries:
        say("no table is to be taken out of a catalog")
        return
    session = build_session(config.spark, "pgsluice drop")
    try:
        for entry in entries:
            name = shown(".".join(entry.name))
            why = unregister(session.sparkContext, entry)
            say(f"the catalog has no {name} of ours" if why is None else f"{name} is kept: {why}")
    finally:
        session.stop()


def _entries(config: Config, subscription: str | None) -> Iterator[CatalogTable]:
    for each in config.subscriptions:
        record = find_record(config.spool.place, each.name)
        if record is None or subscription not in (None, each.name):
            continue
        for table in (*record.tables.values(), *record.unpublished.values()):
            entry = each.sink.catalog_table(*each.names.table(table.namespace, table.name))
            if entry is not None:
                yield entry
