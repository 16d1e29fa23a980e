"""A sink of another package: each version of a table is one Arrow file with all of its rows.

Of pgsluice it imports the contract and the values that the contract names. Its commit is the
link of a complete file to the next version's name, which fails if that version exists.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pyarrow import feather

from pgsluice.changes.lineage import find_rows
from pgsluice.changes.net import NetChanges
from pgsluice.changes.rekeyed import resolve_rekeyed
from pgsluice.changes.shared_keys import count_shared_keys
from pgsluice.changes.unique import shared_keys_error
from pgsluice.config import SinkConfig, TargetPath
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import AddedColumn, Applied, Overtaken, TableHandle, TargetTable
from pgsluice.sinks.identity import CommitMarker, TargetIdentity

Row = dict[str, Any]


class SnapshotSinkConfig(SinkConfig):
    """``sink = { type = "snapshots", path = "…/{schema}/{table}" }``."""

    type: Literal["snapshots"] = "snapshots"
    path: TargetPath

    @property
    def target(self) -> str:
        return self.path

    def make(self, *, foreign_writes: str, cut_retention_s: float) -> SnapshotSink:
        return SnapshotSink(self.path)


@dataclass(frozen=True)
class SnapshotSink:
    """A folder of Arrow files for each table."""

    path: str

    def location(self, namespace: str, name: str) -> str:
        fields = {"schema": namespace.encode().hex(), "table": name.encode().hex()}
        return self.path.format(**fields)

    def open(self, table: TargetTable, identity: TargetIdentity) -> SnapshotHandle:
        return SnapshotHandle(Path(self.location(table.namespace, table.name)), table, identity)


class SnapshotHandle(TableHandle):
    """The newest file of a table."""

    def __init__(self, folder: Path, table: TargetTable, identity: TargetIdentity) -> None:
        self._folder = folder
        self._table = table
        self._identity = identity
        self._version = max((int(path.stem) for path in folder.glob("*.arrow")), default=-1)
        self._rows = feather.read_table(self._file(self._version)) if self._version >= 0 else None

    @property
    def location(self) -> str:
        return str(self._folder)

    @property
    def version(self) -> int:
        return self._version

    def schema(self) -> pa.Schema | None:
        return None if self._rows is None else self._rows.schema.remove_metadata()

    def marker(self) -> CommitMarker | None:
        if self._rows is None:
            return None
        stored = json.loads(self._rows.schema.metadata[b"marker"])
        return CommitMarker(stored["owner"], stored["copy_number"], Lsn(stored["position"]))

    def refuse_foreign_changes(self) -> None:
        """Nobody else writes these files."""

    def load(self, rows: Iterable[pa.RecordBatch], position: Lsn) -> Applied:
        content = pa.Table.from_batches(list(rows), self._table.schema)
        if not self._table.is_key_proved:
            keys = content.select(self._table.key)
            if count := count_shared_keys(lambda: [keys], len(keys)):
                raise shared_keys_error(count, self._table.key, self._table.title, position)
        self._commit(content, position)
        return Applied(self._version, rows_inserted=len(content))

    def target_types(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def alter(
        self, added: Sequence[AddedColumn], widened: Sequence[pa.Field], position: Lsn
    ) -> Applied:
        rows = self._rows
        assert rows is not None
        for field in widened:
            index = rows.schema.get_field_index(field.name)
            rows = rows.set_column(index, field, rows.column(field.name).cast(field.type))
        for column in added:
            rows = rows.append_column(column.field, pa.repeat(column.value, len(rows)))
        self._commit(rows, position)
        return Applied(self._version)

    def apply(self, changes: NetChanges, position: Lsn) -> Applied:
        schema = self.schema() or changes.schema
        before = [] if self._rows is None else self._rows.to_pylist()
        if changes.unproved is not None and self._rows is not None:
            found = find_rows(self._rows.select(changes.key), changes.unproved.keys, changes.key)
            changes.unproved.refuse_shared(found[found >= 0], self._table.title)
        before = [{name: row.get(name) for name in schema.names} for row in before]
        rows, counts = _changed(before, changes, schema)
        self._commit(pa.Table.from_pylist(rows, schema=schema), position)
        return Applied(self._version, *counts)

    def maintain(self, keep_versions: Iterable[int]) -> bool:
        for path in self._folder.glob("*.arrow"):
            if int(path.stem) not in {*keep_versions, self._version, self._version - 1}:
                path.unlink(missing_ok=True)
        return False

    def _commit(self, rows: pa.Table, position: Lsn) -> None:
        marker = {
            "owner": self._identity.owner,
            "copy_number": self._identity.copy_number,
            "position": int(position),
        }
        rows = rows.replace_schema_metadata({"marker": json.dumps(marker)})
        self._folder.mkdir(parents=True, exist_ok=True)
        complete = self._folder / f"{uuid.uuid4()}.tmp"
        feather.write_feather(rows, complete)
        try:
            os.link(complete, self._file(self._version + 1))
        except FileExistsError:
            raise Overtaken(f"another commit came first in {self._table.title}") from None
        finally:
            complete.unlink()
        self._version, self._rows = self._version + 1, rows

    def _file(self, version: int) -> Path:
        return self._folder / f"{version}.arrow"


def _changed(
    before: list[Row], net: NetChanges, schema: pa.Schema
) -> tuple[list[Row], tuple[int, int, int, int]]:
    """The rows after net changes; and how many were inserted, updated, deleted and skipped."""
    kept = [] if net.truncated else before
    if not net.key:
        rows = [{**dict.fromkeys(schema.names), **row} for row in net.rows.to_pylist()]
        return kept + rows, (len(rows), 0, 0, 0)

    def key(row: Row) -> tuple[str, ...]:
        # Not the values: 0 and -0 are two keys, and a list cannot be looked up.
        return tuple(repr(row[name]) for name in net.key)

    net, skipped = resolve_rekeyed(net, pa.Table.from_pylist(kept, schema=schema))
    by_key = {key(row): row for row in kept}
    after = dict(by_key)
    gone = [after.pop(key(row), None) for row in net.deletes.to_pylist()]
    inserted = updated = 0
    for index, row in enumerate(net.rows.to_pylist()):
        present = by_key.get(key(row))
        if present is None and not net.inserted[index]:
            skipped += 1
            continue
        kept_names = [name for name, mask in net.absent.items() if mask[index]]
        # Columns that the table has and the source dropped turn NULL.
        own = {**dict.fromkeys(schema.names), **row}
        after[key(row)] = {**own, **{name: present[name] for name in kept_names if present}}
        inserted, updated = inserted + (present is None), updated + (present is not None)
    deleted = sum(map(bool, gone))
    skipped += net.skipped + max(0, net.expected_deletes - deleted)
    return list(after.values()), (inserted, updated, deleted, skipped)
