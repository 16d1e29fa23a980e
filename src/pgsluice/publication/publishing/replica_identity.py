"""Checks whether the replica identity is sufficient to publish updates and deletes.

An old tuple holds the replica identity's columns only. A filter on another column could not be
evaluated on it, and a column list without the identity would leave the target without a key. The
server refuses the application's UPDATE in that case. pgsluice sees the change only afterwards,
and parks the table with the server's message.

The identity is that of the changed relation: a partition's own, even if its root's rules apply.
Columns are matched by name.

Source: src/backend/executor/execReplication.c (CheckCmdReplicaIdentity);
src/backend/commands/publicationcmds.c (pub_rf_contains_invalid_column,
pub_contains_invalid_column).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from pgsluice.definitions.publications import Publication, PublicationTable
from pgsluice.definitions.source_tables import SourceCatalog, SourceTable
from pgsluice.definitions.text_rules import TextRules
from pgsluice.publication.publishing.resolution import has, topmost_ancestor
from pgsluice.publication.statements.filters import bind_filter
from pgsluice.sql import SqlRefused

_FULL = "f"
_VERBS = {"update": "cannot update table", "delete": "cannot delete from table"}


@dataclass(frozen=True, slots=True)
class ReplicaIdentity:
    """The columns in old tuples.

    Attributes:
        kind: pg_class.relreplident: ``d``, ``n``, ``f`` or ``i``.
        columns: those of the identity's index; none under FULL and NOTHING.
    """

    kind: str
    columns: frozenset[str]

    @classmethod
    def of(cls, table: SourceTable) -> ReplicaIdentity:
        """The replica identity in the catalog; that of a Relation message can be newer."""
        return cls(table.replica_identity, frozenset(table.identity_columns))


def check_replica_identity(
    action: Literal["update", "delete"],
    publications: Sequence[Publication],
    table: SourceTable,
    catalog: SourceCatalog,
    identity: ReplicaIdentity | None = None,
) -> None:
    """Refuse an action on a table that PostgreSQL could not publish.

    Args:
        publications: those of one subscription.
        identity: the replica identity of the current Relation message; None: the catalog's.

    Raises:
        SqlRefused: it cannot be published, with PostgreSQL's message.
    """
    identity = identity or ReplicaIdentity.of(table)
    verb = f'{_VERBS[action]} "{table.name}"'
    acting = [
        publication
        for publication in publications
        if action in publication.publish and _publishes(publication, table, catalog)
    ]
    rules = [
        (publication, deciding, publication.table(deciding.oid) or PublicationTable(""))
        for publication in acting
        for deciding in (_deciding(publication, table, catalog),)
    ]
    objections = chain(
        (_bad_filter(one, table, identity, catalog.text_rules) for _, table, one in rules),
        (_bad_columns(one, identity) for _, _, one in rules),
        (_bad_generated(publication, one, table, identity) for publication, _, one in rules),
    )
    if detail := next(filter(None, objections), None):
        raise SqlRefused(verb, detail=detail)
    if acting and identity.kind != _FULL and not identity.columns:
        to_do = "updating" if action == "update" else "deleting from"
        raise SqlRefused(
            f"{verb} because it does not have a replica identity and publishes {action}s",
            server_hint=f"To enable {to_do} the table, set REPLICA IDENTITY using ALTER TABLE.",
        )


def _publishes(publication: Publication, table: SourceTable, catalog: SourceCatalog) -> bool:
    if publication.all_tables:
        return table.is_publishable
    is_below = topmost_ancestor(publication, table, catalog) is not None
    return is_below or has(publication, table)


def _deciding(publication: Publication, table: SourceTable, catalog: SourceCatalog) -> SourceTable:
    """The relation whose filter and columns one publication uses for a table."""
    ancestor = topmost_ancestor(publication, table, catalog)
    if ancestor is None or not publication.publish_via_partition_root:
        return table
    return ancestor[1]


def _bad_filter(
    named: PublicationTable, table: SourceTable, identity: ReplicaIdentity, text_rules: TextRules
) -> str | None:
    if identity.kind == _FULL or named.where is None:
        return None
    if bind_filter(named.where, table, text_rules).columns <= identity.columns:
        return None
    return "Column used in the publication WHERE expression is not part of the replica identity."


def _bad_columns(named: PublicationTable, identity: ReplicaIdentity) -> str | None:
    if named.columns is None:
        return None
    if identity.kind != _FULL and identity.columns <= frozenset(named.columns):
        return None
    return "Column list used by the publication does not cover the replica identity."


def _bad_generated(
    publication: Publication, named: PublicationTable, table: SourceTable, identity: ReplicaIdentity
) -> str | None:
    if named.columns is not None and identity.kind != _FULL:
        return None
    sent = ("", "s") if publication.publish_generated_columns == "stored" else ("",)
    for column in table.columns:
        is_identity = identity.kind == _FULL or column.name in identity.columns
        if is_identity and column.generated not in sent:
            return "Replica identity must not contain unpublished generated columns."
    return None
