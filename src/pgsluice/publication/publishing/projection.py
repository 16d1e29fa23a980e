"""The relation name and the columns under which changes are published.

Source: src/backend/replication/logical/proto.c (logicalrep_should_publish_column);
src/backend/replication/pgoutput/pgoutput.c (init_tuple_slot: columns of a partition are its
root's by name).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from pgsluice.columnar.changes import RelationChanges
from pgsluice.facts import RelationFacts
from pgsluice.publication.publishing.resolution import Resolution
from pgsluice.wire import Relation


@dataclass(frozen=True, slots=True)
class Projection:
    """How changes with one definition of their relation are published.

    Attributes:
        relation: the relation with its published name, OID and columns.
        facts: its metadata in the same form; the root is the published relation. It has no key if a
            key column is not published.
        column_indexes: the indexes of the published columns in the relation.
    """

    relation: Relation
    facts: RelationFacts | None
    schema: pa.Schema
    column_indexes: list[int]

    @classmethod
    def of(cls, resolution: Resolution, changes: RelationChanges) -> Projection:
        """The projection of the current definition of a relation."""
        relation, facts, root = changes.relation, changes.facts, resolution.published_as
        order = {column.name: number for number, column in enumerate(root.columns)}
        column_indexes = _published(resolution, changes)
        if root.oid != resolution.table.oid:
            column_indexes.sort(
                key=lambda index: order.get(relation.columns[index].name, len(order))
            )
        columns = tuple(relation.columns[index] for index in column_indexes)
        named: dict[str, Any] = {"oid": root.oid, "namespace": root.namespace, "name": root.name}
        if facts is not None:
            facts = replace(
                facts.with_published_keys({column.name for column in columns}),
                kind=root.kind,
                root_oid=root.oid,
                root_namespace=root.namespace,
                root_name=root.name,
                columns=facts.columns
                if root.oid == facts.oid
                else tuple(sorted(facts.columns, key=lambda one: order.get(one.name, len(order)))),
                **named,
            )
        return cls(
            relation=replace(relation, columns=columns, **named),
            facts=facts,
            schema=pa.schema([changes.schema.field(index) for index in column_indexes]),
            column_indexes=column_indexes,
        )

    def cut(self, changes: RelationChanges) -> RelationChanges:
        """The same changes without the columns that the publication leaves out."""
        return replace(
            changes,
            relation=self.relation,
            facts=self.facts,
            schema=self.schema,
            new=changes.new.select(self.column_indexes),
            old=changes.old.select(self.column_indexes),
        )


def _published(resolution: Resolution, changes: RelationChanges) -> list[int]:
    """The indexes of the published columns among those that the server sends.

    Without a column list all columns are published, generated ones only if the publications ask for
    them. Whether a column is generated is known from the catalog at the time of the Relation
    message, or else from the catalog now.
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
