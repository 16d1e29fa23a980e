"""Stages the rows of a copy as Parquet files that no version of the table refers to yet.

Tasks write files into the table's folder; one commit in the driver adds them all. The files of a
failed copy are deleted. If a process was killed, maintenance deletes its files after a day, but not
while the table is being copied.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pgsluice.failpoints import failpoint
from pgsluice.sinks.contract import StagedRows
from pgsluice.sinks.lake.attempt import attempt, writes
from pgsluice.sinks.lake.keys.index import KeyIndex, with_sidecars
from pgsluice.sinks.lake.layout import bounds
from pgsluice.sinks.lake.layout.layout import NO_LAYOUT, Layout, arranged
from pgsluice.sinks.lake.snapshot import PREFIX, NewFile
from pgsluice.stores.contract import Folder
from pgsluice.system.freed_memory import give_back_freed_memory
from pgsluice.types.nested.variants import ARROW as VARIANT
from pgsluice.types.nested.variants import STORED, stored

TARGET_FILE_BYTES = 16 * 2**20
"""The target size of a file in bytes; small, so that a merge of few keys rewrites little of the
table."""
MOST_ROWS = 4 * 2**20
"""Rows of one file, however well they are compressed: its keys are in memory meanwhile."""
_SAMPLED_ROWS = 16 * 1024
"""How many rows of a file's first batch are checked for repeating values."""
_FEW_ROWS = 1024
"""The minimum number of rows of a batch for that check."""
_SHORT_BYTES = 1024
"""Columns with a larger average size of values, in bytes, get neither bounds nor dictionaries: each
bound is a copy of a value, and values may have hundreds of megabytes."""
HUGE_ROW_BYTES = 64 * 2**20
"""A larger row, in bytes, gets a separate file: Parquet's pages are two copies of it in memory,
which are freed with the file."""
UNCOMPRESSED_BYTES = 512 * 2**20
"""A larger row, in bytes, is not compressed: that would need a third copy of it in memory."""
_GIVEN_BACK_BYTES = 16 * 2**20
"""After this many bytes of rows, a worker returns free memory; allocating it again takes time."""
_INDEXED_COLUMNS = 32
"""How many of a table's first columns get statistics, in addition to the key, as in files of
Delta's other writers (property ``dataSkippingNumIndexedCols``). Statistics of all columns would
cost a fifth of the CPU of writing rows with 200 columns."""


def stage(
    folder: Folder,
    schema: pa.Schema,
    rows: Iterable[pa.RecordBatch],
    index: KeyIndex | None = None,
    *,
    prefix: str = PREFIX,
    layout: Layout = NO_LAYOUT,
) -> StagedRows:
    """Write rows durably as files of about TARGET_FILE_BYTES; arguments as of
    :func:`write_files`."""
    with attempt():
        files = write_files(folder, schema, rows, index, prefix=prefix, layout=layout)
        folder.settle()
    return StagedRows(
        rows=sum(file.recorded_rows or 0 for file in files),
        bytes_written=sum(file.size for file in files),
        payload=json.dumps([file.as_json() for file in files]).encode(),
    )


def staged_files(staged: Iterable[StagedRows]) -> list[NewFile]:
    """The data files that tasks of a copy have written, which no version has yet."""
    parts = (json.loads(part.payload or "[]") for part in staged)
    return [NewFile.from_json(file) for files in parts for file in files]


def discard(folder: Folder, staged: Sequence[StagedRows]) -> None:
    """Delete staged files that nothing commits.

    Raises:
        OSError, StoreError: a file cannot be deleted.
    """
    folder.delete(*with_sidecars(folder, staged_files(staged)))


def write_files(
    folder: Folder,
    schema: pa.Schema,
    rows: Iterable[pa.RecordBatch],
    index: KeyIndex | None = None,
    *,
    prefix: str = PREFIX,
    layout: Layout = NO_LAYOUT,
) -> list[NewFile]:
    """Write rows, in the table's types, as files of about TARGET_FILE_BYTES.

    Args:
        folder: the table's, which need not exist; the files are durable after its ``settle``.
        index: gets the keys of each file.
        prefix: what the files' names begin with.
        layout: which rows share files; it may add columns.

    Raises:
        TableError: the table cannot be partitioned by a row's values.
    """
    schema = layout.with_parts(schema)
    written: list[NewFile] = []
    for partition, batches in arranged(filter(len, rows), layout, folder.uri):
        following = list(islice(batches, 1))
        while following:
            file, keys = _write_file(folder, schema, following, batches, index, prefix)
            if index is not None and keys is not None:
                index.add(file, keys)
            written.append(replace(file, partition=partition))
            failpoint("delta.written")
            following = following or list(islice(batches, 1))
    return written


def _write_file(
    folder: Folder,
    schema: pa.Schema,
    following: list[pa.RecordBatch],
    batches: Iterator[pa.RecordBatch],
    index: KeyIndex | None,
    prefix: str,
) -> tuple[NewFile, pa.Table | None]:
    """Write one file until it is large enough; returns the file, and what ``index`` keeps of its
    rows (None: nothing).

    Args:
        following: the next batch, which is taken out: its only row may have hundreds of megabytes.
            Afterwards the one that the next file begins with, if it has been read already.
    """
    row_bytes = _bytes_of_one_row(following[0])
    if row_bytes >= _GIVEN_BACK_BYTES:  # what decoded it is free
        give_back_freed_memory()
    codec = "snappy" if row_bytes < UNCOMPRESSED_BYTES else "none"
    path = f"{prefix}-{uuid.uuid4()}.{codec}.parquet"
    writes(partial(folder.delete, path))
    statistics = _Statistics(schema)
    keys = []
    with (
        folder.write(path) as stream,
        pq.ParquetWriter(
            stream,
            stored_schema(schema),
            compression=codec,
            use_dictionary=_repeating(following[0]),
            write_statistics=_indexed_columns(following[0]),
        ) as writer,
    ):
        is_full, size = False, 0
        while following and not is_full:
            writer.write_batch(stored_rows(following[0]))
            size += following[0].nbytes
            if index is not None and (some := index.keys_of(following[0])) is not None:
                keys.append(some)
            statistics.add(following.pop())
            if size >= _GIVEN_BACK_BYTES:
                give_back_freed_memory()
                size = 0
            is_full = (
                row_bytes >= HUGE_ROW_BYTES
                or stream.tell() >= TARGET_FILE_BYTES
                or statistics.rows >= MOST_ROWS
            )
            if not is_full:
                following += islice(batches, 1)
                is_full = bool(following) and _bytes_of_one_row(following[0]) >= HUGE_ROW_BYTES
        writer.close()
        size = stream.tell()
        # A metadata_collector would raise an error of its own in the place of a disk's.
        metadata = writer.writer.metadata
    file = NewFile(path, size, recorded_rows=statistics.rows, known=statistics.as_json(metadata))
    return file, pa.Table.from_batches(keys) if keys else None


def stored_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows in the types that they have in a data file: VARIANT as its two parts."""
    for place, field in enumerate(batch.schema):
        if field.type == VARIANT:
            values = stored(batch.column(place))
            batch = batch.set_column(place, field.with_type(STORED), values)
    return batch


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Columns in the types that they have in a data file: VARIANT as its two parts."""
    fields = (field.with_type(STORED) if field.type == VARIANT else field for field in schema)
    return pa.schema(list(fields), schema.metadata)


def _bytes_of_one_row(batch: pa.RecordBatch) -> int:
    """The size of the batch's only row; 0 if it has several rows, which together are not large."""
    return int(batch.nbytes) if len(batch) == 1 else 0


def _repeating(batch: pa.RecordBatch) -> bool | list[str]:
    """The Parquet names of the columns that get dictionaries: those with repeating values.

    A dictionary of distinct values makes a file larger, and takes most of the writing time.
    """
    if len(batch) < _FEW_ROWS:
        short = _short_columns(batch)
        return True if len(short) == batch.num_columns else short
    sample = batch.slice(0, _SAMPLED_ROWS)
    paths = []
    for field, values in zip(sample.schema, sample.columns, strict=True):
        path = field.name
        while pa.types.is_list(values.type):
            path, values = f"{path}.list.element", values.flatten()
        if values.type == VARIANT:  # values with the same keys
            path, values = f"{path}.metadata", values.field("metadata")
        if not pa.types.is_nested(values.type):
            paths += [path] if _repeats(values) else []
    return paths


def _repeats(values: pa.Array) -> bool:
    """Whether each value occurs twice on average. If nearly all of the first values are distinct,
    the others are not checked."""
    few = values.slice(0, len(values) // 8)
    if pc.count_distinct(few).as_py() > 0.95 * len(few):
        return False
    return bool(2 * pc.count_distinct(values).as_py() <= len(values))


def _short_columns(batch: pa.RecordBatch) -> list[str]:
    most_bytes = _SHORT_BYTES * max(len(batch), 1)
    columns = zip(batch.schema.names, batch.columns, strict=True)
    return [name for name, values in columns if values.nbytes <= most_bytes]


def _indexed_columns(batch: pa.RecordBatch) -> list[str]:
    """The columns with statistics in the Parquet file: the short ones among those that may have
    them. Those of floats do not count NaN: Spark, for which NaN is the largest number, would skip
    rows with it."""
    indexed = {
        field.name for field in _indexed(batch.schema) if not pa.types.is_floating(field.type)
    }
    return [name for name in _short_columns(batch) if name in indexed]


def _indexed(schema: pa.Schema) -> list[pa.Field]:
    """The columns that may have statistics; key columns are those that are never NULL."""
    return [
        field
        for place, field in enumerate(schema)
        if (place < _INDEXED_COLUMNS or not field.nullable) and not pa.types.is_nested(field.type)
    ]


class _Statistics:
    """The statistics of one file; smallest and largest values let readers skip it.

    Each column with an order gets both, or readers miss rows: a reader that uses deltalake's
    PyArrow dataset takes a file without them for one without rows that its condition holds for.
    Parquet's writer has already computed them for each row group.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._nulls = {field.name: 0 for field in _indexed(schema)}
        self._ordered: list[tuple[int, pa.Field]] = []
        self._floats: dict[str, bounds.FloatBounds] = {}
        place = 0
        for field in schema:
            if field.name in self._nulls and pa.types.is_floating(field.type):
                self._floats[field.name] = bounds.FloatBounds()
            elif field.name in self._nulls and bounds.has_order(field.type):
                self._ordered.append((place, field))
            place += _leaves(field.type)
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Count a batch."""
        self.rows += len(batch)
        for name in self._nulls:
            self._nulls[name] += batch.column(name).null_count
        for name, floats in self._floats.items():
            floats.add(batch.column(name))

    def as_json(self, metadata: pq.FileMetaData) -> dict[str, Any]:
        """The statistics in the form of :meth:`.DataFile.statistics`, from the Parquet file's
        metadata."""
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        found = {name: floats.bounds() for name, floats in self._floats.items()}
        for place, field in self._ordered:
            if self._nulls[field.name] < self.rows:
                chunks = [group.column(place) for group in groups]
                found[field.name] = bounds.of(field.type, chunks)
        known = {name: pair for name, pair in found.items() if pair is not None}
        return {
            "numRecords": self.rows,
            "minValues": {name: smallest for name, (smallest, _) in known.items()},
            "maxValues": {name: largest for name, (_, largest) in known.items()},
            "nullCount": self._nulls,
        }


def _leaves(kind: pa.DataType) -> int:
    """The number of Parquet columns for a column of a table."""
    if not pa.types.is_nested(kind):
        return 1
    return sum(_leaves(kind.field(number).type) for number in range(kind.num_fields))
