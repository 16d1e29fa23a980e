"""PostgreSQL into the lakehouse with PySpark: logical replication, exactly once, no Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pgsluice.publication import Publication, PublicationTable
    from pgsluice.spark.checkpoints import read_at
    from pgsluice.spark.source.own_tables import fill_absent, latest_per_key
    from pgsluice.spark.source.subscriptions import (
        SourceSubscription,
        drop_subscription,
        subscriptions,
    )
    from pgsluice.subscription import Subscription

__version__ = "0.1.0"
__all__ = [
    "Publication",
    "PublicationTable",
    "SourceSubscription",
    "Subscription",
    "__version__",
    "drop_subscription",
    "fill_absent",
    "latest_per_key",
    "read_at",
    "register",
    "subscriptions",
]


def register(spark: SparkSession) -> None:
    """Register ``format("pgoutput")`` with a session.

    Only needed where Spark does not look for installed data sources by itself, as on some
    managed platforms.

    Raises:
        ConfigError: Spark is older than 4.0, and has no data sources in Python.
    """
    from pgsluice.spark.installed import require_data_sources

    require_data_sources()
    from pyspark.errors import AnalysisException

    from pgsluice.spark.source.data_source import PgoutputDataSource

    try:
        spark.dataSource.register(PgoutputDataSource)
    except AnalysisException as error:
        # Spark 4.0 refuses to register what it has found by itself.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise


def __getattr__(name: str) -> Any:
    # Imported when asked for: `import pgsluice.wire` must not bring the whole house along.
    if name == "Subscription":
        from pgsluice.subscription import Subscription

        return Subscription
    if name in ("SourceSubscription", "drop_subscription", "subscriptions"):
        from pgsluice.spark.source import subscriptions

        return getattr(subscriptions, name)
    if name == "read_at":
        from pgsluice.spark.checkpoints import read_at

        return read_at
    if name in ("fill_absent", "latest_per_key"):
        from pgsluice.spark.source import own_tables

        return getattr(own_tables, name)
    if name in ("Publication", "PublicationTable"):
        from pgsluice import publication

        return getattr(publication, name)
    raise AttributeError(name)
