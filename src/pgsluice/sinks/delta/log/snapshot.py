"""A Delta table at one version, with the content of its log.

:mod:`.reading` reads it, and :mod:`.commit` makes the next one.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pgsluice.sinks.contract import TargetContent
from pgsluice.sinks.delta.log import columns, commit_marker
from pgsluice.sinks.delta.log.deletion_vectors import Descriptor
from pgsluice.sinks.delta.log.layout import layout_of
from pgsluice.sinks.identity import TargetIdentity
from pgsluice.sinks.lake.snapshot import DataFile, Snapshot
from pgsluice.stores.contract import Folder

FOLLOWS = "pgsluice.follows"
"""In our ``commitInfo``: the ``txnId`` of the commit before it, or null if that has none."""
_TAGS = 20
"""How many commits' tags are compared in each listing: those that may be made between a check of a
name and a write there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaFile(DataFile):
    """A live file of a table, with the ``add`` action that added it."""

    vector: Descriptor | None = None
    action: Mapping[str, Any] = field(compare=False, repr=False)

    def statistics(self) -> Mapping[str, Any]:
        """The statistics in the file's ``add`` action; empty if it has none."""
        text = self.action.get("stats")
        return json.loads(text) if text else {}


@dataclass(frozen=True, slots=True)
class NewestCommits:
    """The newest commits of a table, to notice that another program has overwritten one.

    Attributes:
        tags: distinguish commits' files from others with the same names, by version.
        newest_id: the ``txnId`` of the newest one; None if it has none.
        is_id_known: whether its file was read; a checkpoint has no such ID.
        has_lost_one: whether another program has overwritten a commit of ours below a later one of
            ours. The table then lacks changes before its position.
    """

    tags: Mapping[int, Hashable] = field(default_factory=dict)
    newest_id: str | None = None
    is_id_known: bool = True
    has_lost_one: bool = False

    def with_tags(self, tags: Mapping[int, Hashable], newest: int) -> NewestCommits:
        """The commits with more tags, up to the newest version."""
        known = {**self.tags, **tags}
        kept = {each: tag for each, tag in known.items() if newest - _TAGS < each <= newest}
        return replace(self, tags=kept)

    def followed_by(
        self, information: Mapping[str, Any], *, is_another_copy: bool
    ) -> NewestCommits:
        """The commits after one more, by its ``commitInfo``, and whether it has replaced all
        rows."""
        follows = information.get(FOLLOWS, self.newest_id)
        is_broken = self.is_id_known and follows != self.newest_id
        return replace(
            self,
            newest_id=information.get("txnId"),
            is_id_known=True,
            has_lost_one=not is_another_copy and (self.has_lost_one or is_broken),
        )

    def as_information(self) -> dict[str, Any]:
        """The fields of the next commit's ``commitInfo`` that name the newest commit."""
        return {FOLLOWS: self.newest_id} if self.is_id_known else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSnapshot(Snapshot):
    """A table at one version, with its ``txn`` actions, identifier -> version, and its newest
    commits."""

    files: Mapping[str, DeltaFile]
    protocol: Mapping[str, Any]
    metadata: Mapping[str, Any]
    transactions: Mapping[str, int]
    commits: NewestCommits = field(default_factory=lambda: NewestCommits(), compare=False)

    def transaction_version(self, name: str) -> int | None:
        """The version of a transaction identifier; None if no commit had it."""
        return self.transactions.get(name)

    def having_lost_a_commit(self) -> DeltaSnapshot:
        """The same table, of which another program has overwritten a commit of ours."""
        return replace(self, commits=replace(self.commits, has_lost_one=True))

    @property
    def configuration(self) -> Mapping[str, str]:
        """The properties of the Delta table, name -> value."""
        return self.metadata.get("configuration") or {}

    @property
    def has_vectors(self) -> bool:
        """Whether deletion vectors are enabled for the table."""
        listed = self.protocol.get("writerFeatures") or ()
        wanted = self.configuration.get("delta.enableDeletionVectors")
        return "deletionVectors" in listed and wanted == "true"


def no_table(folder: Folder) -> DeltaSnapshot:
    """The state of a folder without a table: version -1, so the first commit creates version 0."""
    return DeltaSnapshot(
        folder, -1, pa.schema([]), {}, files={}, protocol={}, metadata={}, transactions={}
    )


def content_of(
    folder: Folder, version: int, identity: TargetIdentity, rewrites_files: bool
) -> TargetContent | None:
    """A table at a version; None if it cannot be read (any more). For the arguments see
    :class:`.TargetContent`."""
    try:
        options = folder.storage_options() or None
        delta = DeltaTable(folder.uri, version=version, storage_options=options)
    except DeltaError:
        return None
    layout = layout_of(delta.metadata().configuration)
    schema = layout.without_parts(columns.existing_schema(delta))
    marker = commit_marker.read_marker(delta.transaction_version, identity)
    return TargetContent(marker, schema, columns.rows(delta, schema), rewrites_files)
