"""The columns and the name that changes are published with.

Source: src/backend/replication/logical/proto.c (logicalrep_should_publish_column);
src/backend/replication/pgoutput/pgoutput.c (init_tuple_slot: columns of a partition are its
root's by name).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from pgsluice.columnar.changes import RelationChanges
from pgsluice.facts import RelationFacts
from pgsluice.publication.resolution import Resolution
from pgsluice.publication.row_pool import project
from pgsluice.wire import Relation


@dataclass(frozen=True, slots=True)
class Projection:
    """How changes under one definition of their relation look when they are published.

    Attributes:
        relation: with the name and OID that it is published under, and the published columns.
        facts: likewise; its root is the relation that it is published as. A key whose columns
            are not all published is none.
        schema: of the published columns.
        places: which columns of the relation these are.
    """

    relation: Relation
    facts: RelationFacts | None
    schema: pa.Schema
    places: list[int]

    @classmethod
    def of(cls, resolution: Resolution, changes: RelationChanges) -> Projection:
        """What a resolution makes of the definition in force."""
        relation, root = changes.relation, resolution.published_as
        order = {column.name: number for number, column in enumerate(root.columns)}
        column_indexes = _published(resolution, changes)
        if root.oid != resolution.table.oid:
            column_indexes.sort(
                key=lambda index: order.get(relation.columns[index].name, len(order))
            )
        return cls(
            relation=replace(
                relation,
                oid=root.oid,
                namespace=root.namespace,
                name=root.name,
                columns=tuple(relation.columns[index] for index in column_indexes),
            ),
            facts=_facts(
                resolution, changes, {relation.columns[index].name for index in column_indexes}
            ),
            schema=pa.schema([changes.schema.field(index) for index in column_indexes]),
            places=column_indexes,
        )

    def cut(self, changes: RelationChanges) -> RelationChanges:
        """All changes, so published."""
        return replace(
            changes,
            relation=self.relation,
            facts=self.facts,
            schema=self.schema,
            new=project(changes.new, self.places),
            old=project(changes.old, self.places),
        )


def _published(resolution: Resolution, changes: RelationChanges) -> list[int]:
    """The places of the published columns, of those that the server sends.

    Without a list all are, but generated ones only where they are asked for. Whether a column
    is generated says what the catalog said when the relation came; else what it says now.
    """
    known = changes.facts.columns if changes.facts is not None else resolution.table.columns
    generated = {column.name: column.generated for column in known}
    sent = ("", "s") if resolution.generated_columns == "stored" else ("",)
    listed = resolution.columns
    return [
        index
        for index, column in enumerate(changes.relation.columns)
        if (generated.get(column.name, "") in sent if listed is None else column.name in listed)
    ]


def _facts(
    resolution: Resolution, changes: RelationChanges, published: set[str]
) -> RelationFacts | None:
    facts, root = changes.facts, resolution.published_as
    if facts is None:
        return None
    order = {column.name: number for number, column in enumerate(root.columns)}
    columns = facts.columns
    if root.oid != facts.oid:
        columns = tuple(sorted(columns, key=lambda column: order.get(column.name, len(order))))
    return replace(
        facts,
        oid=root.oid,
        namespace=root.namespace,
        name=root.name,
        kind=root.kind,
        root_oid=root.oid,
        root_namespace=root.namespace,
        root_name=root.name,
        columns=columns,
        primary_key=facts.primary_key if published.issuperset(facts.primary_key) else (),
        identity_key=facts.identity_key if published.issuperset(facts.identity_key) else (),
    )
