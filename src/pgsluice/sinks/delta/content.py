"""The rows of a Delta table at any of its versions."""

from __future__ import annotations

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pgsluice.sinks.contract import TargetContent, TargetIdentity
from pgsluice.sinks.delta import columns, commit_marker
from pgsluice.stores.contract import Folder


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
