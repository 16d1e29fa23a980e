"""Refuses a copy in which several rows have the same key, before it is committed.

The keys are read back from all staged files. This is done only for tables whose keys are not proved
to be unique.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from pgsluice.changes.shared_keys import count_shared_keys
from pgsluice.changes.unique import shared_keys_error
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import StagedRows, TargetTable
from pgsluice.sinks.lake.snapshot import DataFile
from pgsluice.sinks.lake.staging import staged_files
from pgsluice.stores.contract import Folder

_READ_ROWS = 2**16


def refuse_shared_keys(
    folder: Folder,
    table: TargetTable,
    types: pa.Schema,
    staged: Sequence[StagedRows],
    position: Lsn,
    cache_dir: str | None,
) -> None:
    """Check that no two rows of a copy have the same key, if the source does not prove it.

    Args:
        folder: the table's folder.
        types: the table's columns in the target's types.
        position: the copy's position, for the message.
        cache_dir: a folder on a local disk for numbers of keys; None: the temporary files'.

    Raises:
        TableError: some rows have the same key.
    """
    # A target without its key's columns (a column list of inserts only) is only appended to.
    if table.is_key_proved or not table.key or not {*table.key} <= {*types.names}:
        return
    keys = pa.schema([types.field(name) for name in table.key])
    count = count_shared_keys(
        lambda: _keys_of(folder, staged_files(staged), keys),
        sum(part.rows for part in staged),
        None if cache_dir is None else Path(cache_dir),
    )
    if count:
        raise shared_keys_error(count, table.source_key, table.title, position)


def _keys_of(folder: Folder, files: Iterable[DataFile], keys: pa.Schema) -> Iterator[pa.Table]:
    for file in files:
        with file.open(folder) as parquet:
            for batch in parquet.iter_batches(_READ_ROWS, columns=keys.names, use_threads=False):
                yield pa.Table.from_batches([batch]).select(keys.names).cast(keys)
