"""``spark.read.format("pgoutput")``: the changes of a range of the spool."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pgsluice.errors import ConfigError
from pgsluice.spark.source.lookup import warn_of_unknown_exclusions
from pgsluice.spark.source.options import SourceOptions
from pgsluice.spark.source.reading import ChangePartition, RowReader, plan
from pgsluice.spark.source.walsender_options import refuse_other_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class PgoutputReader(DataSourceReader):
    """Reads the changes in (starting_lsn, ending_lsn]; by default all changes in the spool.

    Raises:
        ConfigError: the range ends before it starts.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        start, end = options.starting_lsn, options.ending_lsn
        if start is not None and end is not None and end < start:
            raise ConfigError(
                f"ending_lsn {end} is before starting_lsn {start}", option="ending_lsn"
            )
        self._options = options
        self._rows = RowReader.of(options, schema)

    def partitions(self) -> list[InputPartition]:
        """The tasks of the query; small neighbouring segments share one.

        Raises:
            ConfigError: the spool does not have ``starting_lsn`` or ``ending_lsn``, or is
                written with other options of START_REPLICATION.
        """
        from pgsluice.spool import SpoolReader

        reader = SpoolReader(self._options.spool)
        refuse_other_options(self._options, reader.spool.identity)
        warn_of_unknown_exclusions(self._options)
        start = self._options.starting_lsn
        if start is None:
            start = reader.start()
        end = self._options.ending_lsn
        if end is None:
            end = reader.position()
        elif end > reader.frontier():
            raise ConfigError(
                f"the option ending_lsn is {end}, past the end of the spool at {reader.frontier()}",
                hint="wait until capture has received the changes up to ending_lsn, or remove the "
                "option",
                option="ending_lsn",
            )
        if start > reader.frontier():
            raise ConfigError(
                f"the option starting_lsn is {start}, past the end of the spool at "
                f"{reader.frontier()}",
                hint="remove the option starting_lsn to read from the start of the spool",
                option="starting_lsn",
            )
        if start < reader.start():
            raise ConfigError(
                f"the option starting_lsn is {start}, before the start of the spool at "
                f"{reader.start()}: pgsluice has deleted the changes between them",
                hint="remove the option starting_lsn to read from the start of the spool",
                option="starting_lsn",
            )
        partitions = plan(reader.segments(start, end), start, end) if start < end else []
        # For an empty list Spark would call read() with the partition None.
        return list(partitions) or [ChangePartition(0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of a partition of the query, as Spark's task reads them."""
        assert isinstance(partition, ChangePartition)
        if partition.through > partition.after:
            yield from self._rows.read(partition)
