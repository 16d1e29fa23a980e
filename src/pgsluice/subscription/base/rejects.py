"""Where the rejects of a subscription are."""

from __future__ import annotations

import pyarrow as pa

from pgsluice.config import Config, SubscriptionConfig
from pgsluice.errors import ConfigError
from pgsluice.rejects.files import EventFiles
from pgsluice.rejects.table import SCHEMA, RejectsPlace
from pgsluice.spool import Spool, find_record
from pgsluice.spool.layout import REJECTS, tasks_path
from pgsluice.spool.object_storage import folder_of
from pgsluice.stores.places import folder_at
from pgsluice.subscription.base.options import sink_options

_NAMED = ("relation", "schema_name", "table_name")


def rejects_place(
    config: Config, subscription: SubscriptionConfig, spool_id: str
) -> RejectsPlace | None:
    """Where a subscription's rejects are; None: its sink has no Delta tables, so that a value that
    does not fit is an error."""
    if subscription.sink.type != "delta":
        return None
    spool = config.spool.place
    path = tasks_path(spool, subscription.name, REJECTS)
    return RejectsPlace(
        sink_options(subscription),
        subscription.rejects,
        subscription.name,
        spool_id,
        EventFiles(folder_of(spool, path) if spool.is_remote else folder_at(path)),
        accepts=subscription.on_unrepresentable == "reject",
    )


def stored_rejects(config: Config, subscription: SubscriptionConfig) -> pa.Table:
    """The rows of a subscription's rejects table, in the columns of
    :data:`pgsluice.rejects.table.SCHEMA`; each table has the name that it has now.

    Raises:
        ConfigError: nothing was replicated yet.
        PgsluiceError: the table cannot be read.
    """
    record = find_record(config.spool.place, subscription.name)
    if record is None:
        raise ConfigError(
            f'pgsluice has not replicated anything for subscription "{subscription.name}" yet',
            hint="start `pgsluice run CONFIG` first",
        )
    spool_id = Spool.open(config.spool.place).identity.spool_id
    place = rejects_place(config, subscription, spool_id)
    rows = pa.Table.from_batches([] if place is None else place.table().batches(), SCHEMA)
    names = {oid: table.target_name for oid, table in record.tables.items()}
    stored = zip(*(rows[name].to_pylist() for name in _NAMED), strict=True)
    now = [names.get(oid, (schema, table)) for oid, schema, table in stored]
    for number, name in enumerate(_NAMED[1:]):
        column = pa.array([each[number] for each in now], pa.string())
        rows = rows.set_column(SCHEMA.get_field_index(name), name, column)
    return rows
