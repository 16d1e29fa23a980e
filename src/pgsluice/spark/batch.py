"""``spark.read.format("pgoutput")``: the changes of a range of the spool."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pgsluice.errors import ConfigError
from pgsluice.spark.options import SourceOptions
from pgsluice.spark.reading import ChangePartition, RowReader, plan
from pgsluice.spark.walsender_options import refuse_other_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class PgoutputReader(DataSourceReader):
    """Reads (starting_lsn, ending_lsn]; without them from the first segment to the last.

    Raises:
        ConfigError: the range is upside down, or an option of the walsender differs from what
            the spool was written with.
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
        """Neighbouring segments share a task."""
        from pgsluice.spool import SpoolReader

        reader = SpoolReader(self._options.spool)
        refuse_other_options(self._options, reader.spool.identity)
        start = self._options.starting_lsn
        if start is None:
            start = reader.start()
        end = self._options.ending_lsn
        if end is None:
            end = reader.position()
        elif end > reader.frontier():
            raise ConfigError(
                f"ending_lsn {end} is past what the spool has, {reader.frontier()}",
                hint="wait until capture has received it, or leave ending_lsn out",
                option="ending_lsn",
            )
        partitions = plan(reader.segments(start, end), start, end) if start < end else []
        # Spark makes one partition of None where there is none.
        return list(partitions) or [ChangePartition(0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One partition's rows."""
        assert isinstance(partition, ChangePartition)
        if partition.through > partition.after:
            yield from self._rows.read(partition)
