"""Refuses a copy in which several rows have the same key, before it is committed.

The keys are read back from the staged files, whoever has staged them: only a copy of a table whose
key nothing proves to be unique pays for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from pgsluice.changes.shared_keys import count_shared_keys
from pgsluice.changes.unique import shared_keys_error
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import StagedRows, TargetTable

_READ_ROWS = 2**16


def refuse_shared_keys(
    files: pyarrow.fs.FileSystem,
    table: TargetTable,
    types: pa.Schema,
    staged: Sequence[StagedRows],
    position: Lsn,
    cache_dir: str | None,
) -> None:
    """Make sure that no two rows of a copy have the same key, if nothing proves it.

    Args:
        files: the table's folder.
        types: the table's columns in the target's types.
        position: of the copy, for the message.
        cache_dir: a folder on a local disk for numbers of keys; None: the temporary files'.

    Raises:
        TableError: some rows share a key.
    """
    # A target without its key's columns (a column list of inserts only) is only appended to.
    if table.is_key_proved or not table.key or not {*table.key} <= {*types.names}:
        return
    keys = pa.schema([types.field(name) for name in table.key])
    names = [file["path"] for part in staged for file in json.loads(part.payload or "[]")]
    count = count_shared_keys(
        lambda: _keys_of(files, names, keys),
        sum(part.rows for part in staged),
        None if cache_dir is None else Path(cache_dir),
    )
    if count:
        raise shared_keys_error(count, table.key, table.title, position)


def _keys_of(
    files: pyarrow.fs.FileSystem, names: Iterable[str], keys: pa.Schema
) -> Iterator[pa.Table]:
    for name in names:
        with files.open_input_file(name) as opened, pq.ParquetFile(opened) as parquet:
            for batch in parquet.iter_batches(_READ_ROWS, columns=keys.names, use_threads=False):
                yield pa.Table.from_batches([batch]).select(keys.names).cast(keys)
