"""``format("pgoutput")``: the object that Spark asks for a schema and for readers.

Spark creates this object in a short-lived process, pickles it, and creates readers from it in other
processes; so it contains only the options. Spark imports this module in every session that looks
for Python data sources, so heavy modules are imported inside the methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from pgsluice.errors import ConfigError, PgsluiceError
from pgsluice.spark.source.options import SnapshotOptions, SourceOptions
from pgsluice.spark.source.schema import ENVELOPE_COLUMNS, table_ddl

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pgsluice.spark.source.batch import PgoutputReader
    from pgsluice.spark.source.snapshot.reader import SnapshotReader
    from pgsluice.spark.source.streaming.stream import PgoutputStreamReader, RefusedStreamReader


class PgoutputDataSource(DataSource):
    """PostgreSQL's changes from a spool, and the rows of a table."""

    @classmethod
    def name(cls) -> str:
        """The data source's name for ``format(...)``."""
        return "pgoutput"

    def schema(self) -> str:
        """The columns: those of the table in the option ``table``, or without it those of envelope
        rows.

        Raises:
            ConfigError: an option is wrong, or the table is unknown.
        """
        snapshot = SnapshotOptions.asked_for(self.options)
        if snapshot is not None:
            from pgsluice.spark.source.snapshot.table import table_columns_now

            return table_ddl(table_columns_now(snapshot), snapshot)
        options = SourceOptions.parse(self.options)
        if options.table is None:
            return table_ddl(ENVELOPE_COLUMNS, options)
        from pgsluice.spark.source.lookup import table_columns

        return table_ddl(table_columns(options, options.table), options)

    def reader(self, schema: StructType) -> PgoutputReader | SnapshotReader:
        """A reader of a table's snapshot, or of the range (starting_lsn, ending_lsn]."""
        snapshot = SnapshotOptions.asked_for(self.options)
        if snapshot is not None:
            from pgsluice.spark.source.snapshot.reader import snapshot_reader

            return snapshot_reader(snapshot, schema)
        from pgsluice.spark.source.batch import PgoutputReader

        return PgoutputReader(SourceOptions.parse(self.options), schema)

    def streamReader(  # noqa: N802 - Spark's name
        self, schema: StructType
    ) -> PgoutputStreamReader | RefusedStreamReader:
        """A reader for one streaming query. Errors in the options are raised when Spark uses it."""
        from pgsluice.spark.source.streaming.stream import PgoutputStreamReader, RefusedStreamReader

        try:
            return PgoutputStreamReader(_stream_options(self.options), schema)
        except PgsluiceError as error:
            return RefusedStreamReader(error)


def _stream_options(given: Mapping[str, str]) -> SourceOptions:
    if SnapshotOptions.asked_for(given) is not None:
        raise ConfigError(
            "the option snapshot works with spark.read only, not with spark.readStream",
            hint="set the option starting_position to snapshot, to start a stream with the "
            "table's rows",
            option="snapshot",
        )
    options = SourceOptions.parse(given)
    if options.subscription is None:
        raise ConfigError(
            "a streaming query needs the option subscription",
            hint="set the option subscription to a name that no other query uses: under this name "
            "the spool keeps the changes that the query has not read yet, also across restarts",
            option="subscription",
        )
    for name in ("starting_lsn", "ending_lsn"):
        if getattr(options, name) is not None:
            raise ConfigError(
                f"the option {name} works with spark.read only, not with spark.readStream",
                hint=f"remove the option {name}; use starting_position to choose where a new "
                "stream starts",
                option=name,
            )
    return options
