"""Registers ``format("pgoutput")`` when Spark finds this module.

Spark looks for top-level modules named ``pyspark_*`` that have a ``DefaultSource``. So a user
need not register the source before ``spark.readStream.format("pgoutput")``.
"""

from pgsluice.spark.source.data_source import PgoutputDataSource as DefaultSource

__all__ = ["DefaultSource"]
