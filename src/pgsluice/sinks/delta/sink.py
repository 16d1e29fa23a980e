"""The sink that keeps Delta tables, and the paths of its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pgsluice.sinks.contract import TableHandle, TargetTable
from pgsluice.sinks.delta.config import Merge
from pgsluice.sinks.delta.handle import DeltaHandle
from pgsluice.sinks.delta.keeping import DeltaHistoryHandle, DeltaLogHandle
from pgsluice.sinks.delta.log.features import (
    has_rules_of_others,
    refuse_partitioned,
    refuse_renamed_columns,
    was_merged_on_read,
)
from pgsluice.sinks.delta.log.reading import newest_snapshot
from pgsluice.sinks.delta.log.snapshot import no_table
from pgsluice.sinks.delta.ruled.handle import RuledHandle
from pgsluice.sinks.identity import TargetIdentity
from pgsluice.sinks.lake.layout.layout import Layout
from pgsluice.stores.contract import Folder
from pgsluice.stores.places import folder_at


@dataclass(frozen=True, slots=True)
class DeltaSink:
    """Delta tables under one path; picklable.

    Attributes:
        path: a folder or URL with ``{table}`` and perhaps ``{schema}``.
        foreign_writes: ``park`` a table whose data others changed, or ``allow`` it.
        cut_retention_s: how long readers may use a version of a consistent checkpoint, in seconds.
        history_retention_s: how long readers may use any other version, in seconds.
        storage_options: for object stores, as deltalake takes them.
        merge: how changes get into a table: ``on_write`` rewrites files, ``on_read`` lets their
            rows die by deletion vectors, ``auto`` decides it by the table's size when it is made.
        merge_tables: the same for single tables, by ``schema.table``.
        partition_by: which rows share files, by ``schema.table``: columns, and parts of times such
            as ``month(created_at)``.
        cluster_by: columns by which new files are sorted, by ``schema.table``.
        table_properties: properties of targets, by ``schema.table``.
        cache_dir: a local folder for what finds the rows of keys; None: among the temporary files.
    """

    path: str
    foreign_writes: Literal["park", "allow"] = "park"
    cut_retention_s: float = 600
    history_retention_s: float = 0
    storage_options: dict[str, str] = field(default_factory=dict, repr=False)
    merge: Merge = "auto"
    merge_tables: dict[str, Merge] = field(default_factory=dict)
    partition_by: Mapping[str, Sequence[str]] = field(default_factory=dict)
    cluster_by: Mapping[str, Sequence[str]] = field(default_factory=dict)
    table_properties: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    cache_dir: str | None = None

    def location(self, namespace: str, name: str) -> str:
        """The path or URL of the Delta table of a source table, given by schema and name."""
        encoded = {"{schema}": encode_name(namespace), "{table}": encode_name(name)}
        head, rest = "", self.path
        while field := min((f for f in encoded if f in rest), key=rest.index, default=None):
            before, _, rest = rest.partition(field)
            head += before + encoded[field]
        return head + rest

    def folder(self, namespace: str, name: str) -> Folder:
        """Access to the files of a source table's Delta table, which need not exist yet."""
        return folder_at(self.location(namespace, name), self.storage_options)

    def layout(self, title: str) -> Layout:
        """The configured partition and sort columns of ``schema.table``; empty if not set."""
        return Layout.parse(self.partition_by.get(title, ()), self.cluster_by.get(title, ()))

    def open(self, table: TargetTable, identity: TargetIdentity) -> TableHandle:
        """Open a table at its newest version, even if it does not exist yet."""
        way = self.merge_tables.get(table.title, self.merge)
        folder = self.folder(table.namespace, table.name)
        snapshot = newest_snapshot(folder) or no_table(folder)
        is_there = snapshot.version >= 0
        if way == "auto" and is_there:
            way = "on_read" if was_merged_on_read(snapshot.configuration) else "on_write"
        if identity.mode.log is not None:
            return DeltaLogHandle(self, table, identity, snapshot, "on_write")
        if identity.mode.history is not None and not (is_there and has_rules_of_others(snapshot)):
            return DeltaHistoryHandle(self, table, identity, snapshot, way)
        is_ruled = is_there and way == "on_write" and has_rules_of_others(snapshot)
        if is_ruled and (snapshot.layout.partition_by or self.partition_by.get(table.title)):
            refuse_partitioned(snapshot, table.title)
        if is_ruled:
            refuse_renamed_columns(snapshot, table.title)
        kind = RuledHandle if is_ruled else DeltaHandle
        return kind(self, table, identity, snapshot, way)


def encode_name(name: str) -> str:
    """A schema's or table's name as one path segment; different names stay different.

    Letters and digits of any script, ``_``, ``-`` and inner dots stay. Every other character
    becomes ``~`` and the hex digits of its UTF-8 bytes. ``%`` is not used: deltalake decodes a
    ``%`` in a path twice, and then does not find the table. ``_delta_log`` would make its parent
    folder look like a Delta table.
    """
    encoded = "".join(
        c if c.isalnum() or c in "_-." else "".join(f"~{byte:02X}" for byte in c.encode())
        for c in name
    )
    if encoded.lower() == "_delta_log":
        return f"~5F{encoded[1:]}"
    return f"~2E{encoded[1:]}" if encoded.startswith(".") else encoded
