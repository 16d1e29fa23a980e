"""Reads the rows of one data file: those with given row numbers, or all live ones."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from pgsluice.sinks.joined_columns import with_all_columns
from pgsluice.sinks.lake.layout.layout import ROWS_IN_A_GROUP, Partition, with_partition
from pgsluice.sinks.lake.snapshot import DataFile
from pgsluice.stores.contract import Folder, Span, at_once

_HELD_BYTES = 16 * 2**20
"""Larger batches, in bytes, are neither joined nor kept in memory beside others."""
DECODED_BYTES = 8 * 2**20
"""The size of rows that are decoded together, in bytes: a task merges four small tables at a
time."""
_ROWS_OF_DICTIONARIES = 4096
"""The number of rows that are decoded together if their size is unknown."""
_THREADS_FROM_BYTES = 2**20
"""Several threads decode row groups of at least this size, in bytes before compression; for smaller
ones, they cost more than they save."""
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8}
"""The bytes of a value, by Parquet's types."""

Piece = TypeVar("Piece")


def rows_at(
    folder: Folder, file: DataFile, rows: npt.NDArray[np.int64], schema: pa.Schema
) -> Iterator[pa.Table]:
    """Some rows of a file in order, in parts that fit into memory; only their row groups are read.

    Args:
        rows: ascending row numbers in the file, maybe with duplicates.
        schema: the columns to read, in the table's types; columns that the file does not have are
            NULL.
    """
    return joined(_pieces(folder, file, rows, schema))


def joined(pieces: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The same rows in parts that fit into memory; scattered rows are together, in one chunk: what
    is done for each chunk would cost more than the copy."""
    for group in grouped(pieces, DECODED_BYTES):
        yield pa.Table.from_batches(group).combine_chunks()


def grouped(
    pieces: Iterable[Piece],
    most_bytes: int,
    most_rows: float = math.inf,
    rows_of: Callable[[Piece], pa.Table | pa.RecordBatch] = lambda piece: piece,
) -> Iterator[list[Piece]]:
    """Pieces in groups that fit into memory, each as large as possible; a piece that is as large as
    a group is alone."""
    held: list[Piece] = []
    count = size = 0
    for piece in pieces:
        rows = rows_of(piece)
        piece_bytes = rows.nbytes
        if held and piece_bytes >= most_bytes:
            yield held
            held, count, size = [], 0, 0
        held.append(piece)
        count, size = count + len(rows), size + piece_bytes
        if count >= most_rows or size >= most_bytes:
            yield held
            held, count, size = [], 0, 0
    if held:
        yield held


def _pieces(
    folder: Folder, file: DataFile, rows: npt.NDArray[np.int64], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    with file.open(folder) as parquet:
        starts = starts_of_groups(parquet)
        bounds = np.searchsorted(rows, starts)
        for number in np.flatnonzero(np.diff(bounds)).tolist():
            places = rows[bounds[number] : bounds[number + 1]] - starts[number]
            yield from pieces_of_group(parquet, number, places, file.partition, schema)


def starts_of_groups(parquet: pq.ParquetFile) -> npt.NDArray[np.int64]:
    """The first row of each row group, and the number of all rows."""
    metadata = parquet.metadata
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    return np.cumsum([0, *(group.num_rows for group in groups)])


def pieces_of_group(
    parquet: pq.ParquetFile,
    number: int,
    places: npt.NDArray[np.int64],
    partition: Partition,
    schema: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    """Some rows of a row group, by ascending row numbers, maybe with duplicates, in parts that fit
    into memory; other arguments as of :func:`rows_at`."""
    names = [name for name in schema.names if name in parquet.schema_arrow.names]
    start = 0
    for batch in group_batches(parquet, number, names):
        first, end = np.searchsorted(places, (start, start + len(batch)))
        if first < end:
            # deltalake writes text as views, which pyarrow cannot take by index yet.
            batch = with_all_columns(with_partition(batch, partition, schema), schema)
            yield batch.take(pa.array(places[first:end] - start))
        start += len(batch)


def all_batches(folder: Folder, file: DataFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """These columns of all rows of a file in order, in batches that fit into memory; columns that
    the file does not have are ignored."""
    with file.open(folder) as parquet:
        names = [name for name in schema.names if name in parquet.schema_arrow.names]
        for number in range(parquet.num_row_groups):
            for batch in group_batches(parquet, number, names):
                yield with_partition(batch, file.partition, schema)


def group_batches(
    parquet: pq.ParquetFile, number: int, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """These columns of a row group's rows in order, in batches that fit into memory."""
    group = parquet.metadata.row_group(number)
    yield from parquet.iter_batches(
        _rows_at_once(group, names),
        row_groups=[number],
        columns=names,
        use_threads=group.total_byte_size >= _THREADS_FROM_BYTES,
    )


def _rows_at_once(group: pq.RowGroupMetaData, names: Sequence[str]) -> int:
    """How many rows of a row group to decode together, so that these columns fit into memory."""
    size, has_dictionary = 0, False
    for column in map(group.column, range(group.num_columns)):
        path = column.path_in_schema
        if any(path == name or path.startswith(f"{name}.") for name in names):
            width = _WIDTHS.get(column.physical_type)
            size += max(column.total_uncompressed_size, (width or 0) * column.num_values)
            has_dictionary |= column.has_dictionary_page and width is None
    # A value that comes often is in a dictionary once, whatever its size is.
    most = _ROWS_OF_DICTIONARIES if has_dictionary else ROWS_IN_A_GROUP
    return max(1, min(most, int(DECODED_BYTES * group.num_rows // max(size, 1))))


def dead_rows(folder: Folder, file: DataFile) -> BitMap:
    """The row numbers of a data file's deleted rows; empty if it has no deletion vector."""
    return BitMap() if file.vector is None else file.vector.read(folder)


def fetch_vectors(folder: Folder, files: Iterable[DataFile]) -> None:
    """Get the dead rows of several files from an object store, those in one file by one request:
    the store's client keeps them for :func:`dead_rows`."""
    if folder.path is not None:
        return
    spans: dict[str, list[Span]] = {}
    with suppress(OSError, ValueError):  # dead_rows says which is missing or damaged
        for file in files:
            if file.vector is not None and (place := file.vector.place(folder)) is not None:
                spans.setdefault(place[0], []).append(place[1])
        deque(at_once(folder, lambda name: folder.read_spans(name, spans[name]), spans), 0)


def live_batches(
    folder: Folder, files: Iterable[tuple[DataFile, BitMap]], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The live rows of files, each with its deleted rows, file by file. Columns that a file does
    not have are NULL. If there are many rows, the next ones are read while the caller uses the last
    ones."""
    files = list(files)
    batches = chain.from_iterable(_live_batches(folder, *each, schema) for each in files)
    is_one_group = sum(file.rows(folder) for file, _ in files) <= ROWS_IN_A_GROUP
    return batches if is_one_group else _read_ahead(batches)


def _read_ahead(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same batches, read ahead; a large batch is not kept in memory beside the next one."""
    with ThreadPoolExecutor(1) as reader:
        batch = next(batches, None)
        while batch is not None:
            is_large = batch.nbytes > _HELD_BYTES
            following = None if is_large else reader.submit(next, batches, None)
            yield batch
            batch = next(batches, None) if following is None else following.result()


def whole_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of the size of a row group; for very wide rows, limited by
    memory."""
    parts = (
        batch.slice(start, ROWS_IN_A_GROUP)
        for batch in batches
        for start in range(0, len(batch), ROWS_IN_A_GROUP)
    )
    for group in grouped(parts, _HELD_BYTES, ROWS_IN_A_GROUP):
        if len(group) == 1:
            yield group[0]
        else:
            yield from pa.Table.from_batches(group).combine_chunks().to_batches()


def _live_batches(
    folder: Folder, file: DataFile, dead: BitMap, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for _, rows in numbered_rows(folder, file, dead, schema):
        yield from rows.combine_chunks().to_batches()


def numbered_rows(
    folder: Folder, file: DataFile, dead: BitMap, schema: pa.Schema
) -> Iterator[tuple[npt.NDArray[np.int64], pa.Table]]:
    """The live rows of a file with their row numbers, in order, one row group at a time; arguments
    as of :func:`live_batches`."""
    dead_places = np.asarray(dead.to_array(), np.int64)
    start = 0
    with file.open(folder) as parquet:
        names = [name for name in schema.names if name in parquet.schema_arrow.names]
        for group in range(parquet.num_row_groups):
            rows = parquet.read_row_group(group, columns=names)
            rows = with_partition(rows, file.partition, schema)
            count = parquet.metadata.row_group(group).num_rows
            is_live = np.ones(count, np.bool_)
            first, end = np.searchsorted(dead_places, (start, start + count))
            is_live[dead_places[first:end] - start] = False
            live = with_all_columns(rows, schema).filter(pa.array(is_live))
            yield start + np.flatnonzero(is_live), live
            start += count
