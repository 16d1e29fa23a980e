"""``format("pgoutput")``: what Spark asks for a schema and for readers.

Spark makes this object in a short-lived process, pickles it and makes readers from it in
others; it holds the options only. Spark imports this module whenever it looks for Python
data sources, also for sessions that never use this one: what is heavy is imported late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from pgsluice.errors import ConfigError
from pgsluice.spark.options import SourceOptions
from pgsluice.spark.schema import envelope_ddl, table_ddl

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pgsluice.spark.batch import PgoutputReader
    from pgsluice.spark.stream import PgoutputStreamReader


class PgoutputDataSource(DataSource):
    """PostgreSQL's changes from a spool, as a stream or as a range."""

    @classmethod
    def name(cls) -> str:
        """What ``format`` takes."""
        return "pgoutput"

    def schema(self) -> str:
        """The columns: a table's own with ``table``, else the envelope's.

        Raises:
            ConfigError: an option is wrong, or the table is not known.
        """
        options = SourceOptions.parse(self.options)
        if options.table is None:
            return envelope_ddl(options)
        from pgsluice.spark.lookup import table_columns

        return table_ddl(table_columns(options, options.table), options)

    def reader(self, schema: StructType) -> PgoutputReader:
        """A reader of the range (starting_lsn, ending_lsn] of the spool."""
        from pgsluice.spark.batch import PgoutputReader

        return PgoutputReader(SourceOptions.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> PgoutputStreamReader:  # noqa: N802 - Spark's name
        """A reader for one streaming query."""
        from pgsluice.spark.stream import PgoutputStreamReader

        options = SourceOptions.parse(self.options)
        if options.subscription is None:
            raise ConfigError(
                "a stream needs the option subscription",
                hint="choose a name for this query: the spool keeps what the name has not read "
                "yet, across restarts; no two queries may share one",
                option="subscription",
            )
        for name in ("starting_lsn", "ending_lsn"):
            if getattr(options, name) is not None:
                raise ConfigError(
                    f"option {name} is for spark.read",
                    hint="a stream starts where its subscription was registered",
                    option=name,
                )
        return PgoutputStreamReader(options, schema)
