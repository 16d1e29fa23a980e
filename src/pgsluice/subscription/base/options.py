"""What follows from a subscription's configuration: the options for tables and sink, a table's
target, and where rejects are."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pgsluice.changes.change_log import LogColumns
from pgsluice.changes.history.columns import HistoryColumns
from pgsluice.config import Config, SubscriptionConfig
from pgsluice.config.values.secrets import read_secret
from pgsluice.errors import ConfigError
from pgsluice.masks import ColumnMask, MaskKind
from pgsluice.rejects.files import EventFiles
from pgsluice.rejects.table import SCHEMA, RejectsPlace
from pgsluice.sinks import make_sink
from pgsluice.sinks.contract import TargetTable
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.identity import CURRENT, TargetIdentity, TargetMode
from pgsluice.sinks.target import TableOptions
from pgsluice.spark.session.master import DEFAULT_MASTER, local_cores
from pgsluice.spool import Spool, SubscriptionRecord, TableRecord, TargetName, find_record
from pgsluice.spool.layout import REJECTS, tasks_path
from pgsluice.spool.object_storage import folder_of
from pgsluice.stores.places import folder_at
from pgsluice.types import TypeOptions
from pgsluice.types.options import NESTED

_NAMED = ("relation", "schema_name", "table_name")


def target_mode(subscription: SubscriptionConfig, table: TargetName) -> TargetMode:
    """What the subscription's target of one table has."""
    return table_options(subscription).mode_of(*table)


def _mode(subscription: SubscriptionConfig) -> TargetMode:
    if subscription.mode == "changelog":
        columns = LogColumns(subscription.change_column_prefix)
        return TargetMode(columns, log_retention_s=subscription.log_retention)
    if subscription.mode == "history":
        return TargetMode(history=HistoryColumns(subscription.change_column_prefix))
    if subscription.deleted_column is not None:
        return TargetMode(deleted_column=subscription.deleted_column)
    return CURRENT


def table_options(subscription: SubscriptionConfig) -> TableOptions:
    """The columns, types and keys of tables, as configured.

    Raises:
        ConfigError: the secret of masks is missing.
    """
    secret = b""
    if "hash" in subscription.mask.values():
        assert subscription.mask_key is not None  # the model refuses that
        secret = read_secret("mask_key", subscription.mask_key)
    chosen = {
        column: TypeOptions(for_column=True, nested=chosen)
        if chosen in NESTED
        else TypeOptions(numeric=chosen, for_column=True)
        for column, chosen in subscription.types.items()
    }
    masked = {name: ColumnMask(MaskKind(kind), secret) for name, kind in subscription.mask.items()}
    # The values of excluded columns are not decoded.
    masked |= dict.fromkeys(subscription.exclude, ColumnMask(MaskKind.NULL))
    for column, mask in masked.items():
        chosen[column] = TypeOptions(numeric="string", for_column=True, mask=mask)
    return TableOptions(
        types=TypeOptions(
            numeric=subscription.numeric,
            nested="variant" if subscription.json_as == "variant" else "",
        ),
        overrides=chosen,
        keys=dict(subscription.key),
        mode=_mode(subscription),
        excluded=frozenset(subscription.exclude),
        names=subscription.names,
    )


def target_writer(
    subscription: SubscriptionConfig, spool_id: str, oid: int, table: TableRecord
) -> TableWriter:
    """What writes a table's target without changes: its columns stay as they are.

    Args:
        spool_id: the id of the spool whose rows the target has.
    """
    mode = target_mode(subscription, table.target_name)
    identity = TargetIdentity(spool_id, oid, table.copy_number, mode)
    shell = TargetTable(table.namespace, table.name, pa.schema([]), ())
    return TableWriter(make_sink(sink_options(subscription)), shell, identity)


def has_same_options(options: TableOptions, first: TargetName, second: TargetName) -> bool:
    """Whether a table has the same options under two names."""
    return (
        options.column_overrides(*first) == options.column_overrides(*second)
        and options.excluded_columns(*first) == options.excluded_columns(*second)
        and options.keys.get(".".join(first)) == options.keys.get(".".join(second))
    )


def sink_options(subscription: SubscriptionConfig) -> dict[str, Any]:
    """The sink's section, completed by the keys of the subscription that concern the sink."""
    return {
        **subscription.sink.model_dump(mode="json"),
        "foreign_writes": subscription.foreign_writes,
        "cut_retention_s": subscription.cut_retention_s,
        "rename": dict(subscription.rename),
    }


def copy_tasks_beside_stream(subscription: SubscriptionConfig, cores: int) -> int:
    """How many of Spark's cores a subscription's copies may use while it applies changes.

    Never more than Spark has: Spark starts tasks in order, so each copy task that waits for a core
    would delay later batches of changes.
    """
    return min(subscription.copy_cores or max(1, cores // 2), cores)


def too_many_copy_cores(config: Config, subscription: SubscriptionConfig) -> str | None:
    """A notice if copies may use all of Spark's cores; None: a core is left, or the number of cores
    is unknown, as on a cluster.

    Changes then wait for a copy's task to end, which takes seconds.
    """
    cores = local_cores(config.spark.get("spark.master", DEFAULT_MASTER))
    copies = subscription.copy_cores
    if cores is None or copies is None or copies <= max(1, cores - 1):
        return None
    return (
        f"copy_cores = {copies} lets copies take all {cores} cores of Spark: changes then wait "
        "some seconds for a copy's task to end"
    )


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


def begun_record(config: Config, subscription: SubscriptionConfig) -> SubscriptionRecord:
    """The record of a subscription.

    Raises:
        ConfigError: nothing was replicated yet.
    """
    record = find_record(config.spool.place, subscription.name)
    if record is None:
        raise ConfigError(
            f'pgsluice has not replicated anything for subscription "{subscription.name}" yet',
            hint="start `pgsluice run CONFIG` first",
        )
    return record


def stored_rejects(config: Config, subscription: SubscriptionConfig) -> pa.Table:
    """The rows of a subscription's rejects table, in the columns of
    :data:`pgsluice.rejects.table.SCHEMA`; each table has the name that it has now.

    Raises:
        ConfigError: nothing was replicated yet.
        PgsluiceError: the table cannot be read.
    """
    record = begun_record(config, subscription)
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
