"""Names of PySpark that older versions lack or have otherwise: Spark 4.0 and 4.1 ask a stream for
its last offset without a start and a limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas import types

from pgsluice.spark.installed import spark_version

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

HAS_READ_LIMITS = spark_version().has_read_limits
if TYPE_CHECKING or HAS_READ_LIMITS:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
else:
    SupportsTriggerAvailableNow = object

__all__ = ["HAS_READ_LIMITS", "SupportsTriggerAvailableNow", "arrow_schema"]


def arrow_schema(schema: StructType) -> pa.Schema:
    """Spark's schema as Arrow's, with timestamps in UTC, which Spark 4.0 and 4.1 use anyway."""
    options: dict[str, Any] = {"timezone": "UTC"} if HAS_READ_LIMITS else {}
    return types.to_arrow_schema(schema, **options)
