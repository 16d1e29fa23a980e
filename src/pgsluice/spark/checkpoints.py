"""Consistent checkpoints for readers: which version of each target is the table at one position.

Only such a checkpoint makes a statement about several tables: a transaction that changed two of
them is in both, or in none. A run makes one whenever all tables have reached one position, at the
latest after ``cut_interval_s``, and keeps their versions for ``cut_retention_s``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from pgsluice.config import Config, SubscriptionConfig, load_config
from pgsluice.errors import ConfigError, PgsluiceError
from pgsluice.lsn import Lsn
from pgsluice.spool import Cut, find_record

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

Moment = Lsn | datetime
_AS_SPARK_NAMES_IT = {"s3": "s3a"}


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A target at a checkpoint.

    Attributes:
        namespace, name: the table's schema and name.
        location: the path or URL of its files; None: the sink's targets have none.
        version: the target's version.
    """

    namespace: str
    name: str
    location: str | None
    version: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A position that all replicating tables of a subscription have reached.

    Attributes:
        lsn: the position: each table has all transactions that ended before it, and no others.
        made_at: when the run made the checkpoint, in UTC.
        tables: by schema and name.
    """

    subscription: str
    lsn: Lsn
    made_at: datetime
    tables: tuple[TableVersion, ...]


def parse_moment(text: str) -> Moment:
    """An LSN, or a time in ISO 8601; without an offset it is in the machine's time zone.

    Raises:
        ConfigError: it is neither.
    """
    try:
        return Lsn.parse(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"the position {text!r} is neither an LSN nor a time",
            hint='give an LSN such as 0/16B3748, or a time such as "2026-11-27 14:05:00+01:00"',
        ) from None


def find_checkpoint(
    config: Config, subscription: SubscriptionConfig, at: Moment | None = None
) -> Checkpoint:
    """The newest checkpoint at or before a position or time.

    Args:
        at: a position, or the time when the run made the checkpoint; None: the newest one.

    Raises:
        PgsluiceError: no run has made one yet, or the kept ones are newer.
    """
    name = subscription.name
    record = find_record(config.spool.place, name)
    cuts = [*record.cuts, *([record.cut] if record.cut else [])] if record is not None else []
    cuts.sort(key=lambda cut: (cut.lsn, cut.made_at))
    if record is None or not cuts:
        raise PgsluiceError(
            f'subscription "{name}" has no consistent checkpoint yet',
            hint="`pgsluice run CONFIG` makes the first one when it has copied all tables; "
            "`pgsluice status CONFIG` shows the copies",
        )
    fitting = [cut for cut in cuts if at is None or _is_reached(cut, at)]
    if not fitting:
        oldest, time = cuts[0].lsn, _time(cuts[0])
        raise PgsluiceError(
            f'subscription "{name}": the oldest consistent checkpoint, {oldest} of {time}, is '
            f"newer than {at}",
            hint="choose a newer checkpoint. The subscription keeps checkpoints for "
            f"cut_retention_s = {subscription.cut_retention_s:g} seconds: to keep those of the "
            "future longer, raise cut_retention_s in [[subscription]]",
        )
    cut = fitting[-1]
    tables = [
        TableVersion(
            table.namespace,
            table.name,
            subscription.sink.location(*subscription.names.table(table.namespace, table.name)),
            cut.versions[oid],
        )
        for oid, table in record.tables.items()
        if oid in cut.versions
    ]
    tables.sort(key=lambda table: (table.namespace, table.name))
    return Checkpoint(name, cut.lsn, _time(cut), tuple(tables))


def read_at(
    spark: SparkSession,
    config: str | Path,
    at: str | Lsn | datetime | None = None,
    *,
    subscription: str | None = None,
) -> dict[str, DataFrame]:
    """All tables of a subscription at one position.

    The session needs Delta's package, and the store's credentials if the tables lie in a store.
    Spark reads files when a DataFrame is used: use them within ``cut_retention_s``.

    Args:
        config: the path of the configuration.
        at: an LSN, or a time when the run may have made a checkpoint; the newest checkpoint at or
            before it counts. None: the newest one.
        subscription: its name; None: the configuration has only one.

    Returns:
        a DataFrame for each ``schema.table``.

    Raises:
        ConfigError: there is no such subscription, or its targets are not Delta tables.
        PgsluiceError: there is no such checkpoint.
    """
    loaded = load_config(config)
    chosen = _only(loaded) if subscription is None else loaded.subscription(subscription)
    moment = parse_moment(at) if isinstance(at, str) else at
    if chosen.sink.type != "delta":
        raise ConfigError(f"{chosen.name}: only Delta tables can be read at a position")
    frames = {}
    for table in find_checkpoint(loaded, chosen, moment).tables:
        location = cast(str, table.location)
        reader = spark.read.format("delta").option("versionAsOf", table.version)
        frames[f"{table.namespace}.{table.name}"] = reader.load(_for_spark(location))
    return frames


def _only(config: Config) -> SubscriptionConfig:
    if len(config.subscriptions) != 1:
        names = ", ".join(subscription.name for subscription in config.subscriptions)
        raise ConfigError(f"name one of the subscriptions: {names}")
    return config.subscriptions[0]


def _is_reached(cut: Cut, at: Moment) -> bool:
    return _time(cut) <= at if isinstance(at, datetime) else cut.lsn <= at


def _time(cut: Cut) -> datetime:
    return datetime.fromtimestamp(cut.made_at, UTC)


def _for_spark(location: str) -> str:
    """Hadoop has its file systems under other schemes."""
    scheme, separator, rest = location.partition("://")
    return f"{_AS_SPARK_NAMES_IT.get(scheme, scheme)}{separator}{rest}" if separator else location
