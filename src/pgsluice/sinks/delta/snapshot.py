"""A Delta table at one version, with the content of its log.

:mod:`.log` reads it, and :mod:`.commit` makes the next one.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pgsluice.sinks.contract import TargetContent, TargetIdentity
from pgsluice.sinks.delta import columns, commit_marker
from pgsluice.sinks.delta.deletion_vectors import Descriptor
from pgsluice.sinks.lake.snapshot import DataFile, Snapshot
from pgsluice.stores.contract import Folder


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaFile(DataFile):
    """A live file of a table.

    Attributes:
        vector: its deletion vector.
        action: the ``add`` action that added it.
    """

    vector: Descriptor | None = None
    action: Mapping[str, Any] = field(compare=False, repr=False)

    def statistics(self) -> Mapping[str, Any]:
        """The statistics in the action."""
        text = self.action.get("stats")
        return json.loads(text) if text else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSnapshot(Snapshot):
    """A table at one version.

    Attributes:
        transactions: the ``txn`` actions, identifier -> version.
        tag: distinguishes the newest commit's file from another one with the same name.
    """

    files: Mapping[str, DeltaFile]
    protocol: Mapping[str, Any]
    metadata: Mapping[str, Any]
    transactions: Mapping[str, int]
    tag: Hashable = field(default=None, compare=False)

    def transaction_version(self, name: str) -> int | None:
        """The version of a transaction identifier; None if no commit had it."""
        return self.transactions.get(name)

    @property
    def configuration(self) -> Mapping[str, str]:
        """The table's properties."""
        return self.metadata.get("configuration") or {}

    @property
    def has_vectors(self) -> bool:
        """Whether deletion vectors are enabled for the table."""
        listed = self.protocol.get("writerFeatures") or ()
        wanted = self.configuration.get("delta.enableDeletionVectors")
        return "deletionVectors" in listed and wanted == "true"


def no_table(folder: Folder) -> DeltaSnapshot:
    """The place for a new table, as its version -1."""
    return DeltaSnapshot(
        folder, -1, pa.schema([]), {}, files={}, protocol={}, metadata={}, transactions={}
    )


def content_of(folder: Folder, version: int, identity: TargetIdentity) -> TargetContent | None:
    """A table at a version; None if it cannot be read (any more)."""
    try:
        options = folder.storage_options() or None
        delta = DeltaTable(folder.uri, version=version, storage_options=options)
    except DeltaError:
        return None
    schema = columns.existing_schema(delta)
    marker = commit_marker.read_marker(delta, identity)
    return TargetContent(marker, schema, columns.rows(delta, schema))
