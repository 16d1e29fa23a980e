"""The data source of a subscription's streaming query: it says where each batch ends.

The query's driver registers it in its session under a private format name; it is no part of
``format("pgoutput")``. Batches end where segments end, as for every reader of a spool, or at a
barrier (:mod:`pgsluice.subscription.barrier`). The driver plans what a batch holds, from each
table's own position (:mod:`pgsluice.subscription.planning`), so the batch's start does not matter:
after a checkpoint was restored or lost, nothing is applied twice or skipped.

Spark loads this module in a process that only asks for the schema, while a run starts. So the
reader, with all that it imports, is in a module of its own
(:mod:`pgsluice.subscription.batch_reader`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from pgsluice.subscription.batch_reader import BatchReader

FORMAT = "pgsluice_batches"
END_COLUMN = "end"


class BatchSource(DataSource):
    """Makes the reader; its options are those of :func:`read_batches`."""

    @classmethod
    def name(cls) -> str:
        """The private format name."""
        return FORMAT

    def schema(self) -> str:
        """One column: the LSN at which the batch ends, as text."""
        return f"{END_COLUMN} STRING"

    def streamReader(self, schema: StructType) -> BatchReader:  # noqa: N802 - Spark's name
        """The reader of one query."""
        from pgsluice.subscription.batch_reader import BatchReader

        options = self.options
        return BatchReader(
            Path(options["spool"]),
            options["subscription"],
            max_rows=int(options["max_rows"]),
            max_bytes=int(options["max_bytes"]),
        )


def read_batches(
    spark: SparkSession, spool: Path, subscription: str, *, max_rows: int, max_bytes: int
) -> DataFrame:
    """The streaming DataFrame of a subscription's batches: each has one row.

    Args:
        spark: the session of the query; the source is registered in it.
        subscription: a subscription that a configuration has registered.
        max_rows: rows after which a batch takes no further segment.
        max_bytes: bytes after which a batch takes no further segment.
    """
    spark.dataSource.register(BatchSource)
    return (
        spark.readStream.format(FORMAT)
        .option("spool", str(spool.absolute()))
        .option("subscription", subscription)
        .option("max_rows", str(max_rows))
        .option("max_bytes", str(max_bytes))
        .load()
    )
