"""Registers ``format("pgoutput")`` by being there.

Spark looks for top-level modules named ``pyspark_*`` with a ``DefaultSource``, so nobody has
to call anything before the first ``spark.readStream.format("pgoutput")``.
"""

from pgsluice.spark.source import PgoutputDataSource as DefaultSource

__all__ = ["DefaultSource"]
