"""Facts of a relation that are not on the wire.

pgoutput's Relation message has names, types and the replica identity. What an applier needs
beyond it (the partition root, the primary key, the value that rows from before an ADD COLUMN
have, how a user's type is made) is looked up when a relation's OID first comes, and kept in
the spool beside the messages, so that a segment decodes without the server.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from pgsluice.types.definition import TypeDefinition, TypeField

_REMEMBERED = 2000
"""Relations whose facts a process does not read from JSON again."""


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """One row of pg_attribute.

    Attributes:
        missing: pg_attribute.attmissingval's one element in text form: what rows from before
            the column was added have; None when there is none.
        generated: ``""``, ``"s"`` stored, ``"v"`` virtual.
        identity: ``""``, ``"a"`` always, ``"d"`` by default.
        row_version: xmin of the pg_attribute row: changes when the column's definition does.
    """

    name: str
    attnum: int
    type_oid: int
    typmod: int
    not_null: bool = False
    generated: str = ""
    identity: str = ""
    missing: str | None = None
    row_version: int = 0


class LeafBound(NamedTuple):
    """The bound of a partition among the rows of the partitioned table right above it.

    Attributes:
        parent: the OID of that table.
        condition: SQL that is true for the partition's rows; empty if that cannot be said, or
            depends on which other partitions there are.
        columns: those that the condition names.
        is_only: the partition has had no other bound, as far as the catalog tells.
    """

    parent: int
    condition: str = ""
    columns: tuple[str, ...] = ()
    is_only: bool = False


@dataclass(frozen=True, slots=True)
class DroppedColumn:
    """The row of a dropped column in pg_attribute: its name and its type are gone.

    Attributes:
        length, align: pg_type.typlen and typalign of the type that it had.
    """

    attnum: int
    length: int
    align: str


@dataclass(frozen=True, slots=True)
class RelationFacts:
    """What the catalog says of one relation.

    Attributes:
        kind: pg_class.relkind: ``r`` table, ``p`` partitioned table.
        root_oid: of a leaf, the OID of the topmost partitioned table above it; of any other
            relation its own.
        primary_key: the primary key's columns in index order, else empty.
        identity_key: the columns of the index that the replica identity names (``d``: the
            primary key's, ``i``: that index's), else empty.
        replica_identity: pg_class.relreplident: ``d``, ``n``, ``f`` or ``i``.
        filenode: pg_class.relfilenode, 0 for a partitioned table.
        columns: not dropped ones, in attnum order.
        dropped: the others, likewise; None: not known, in facts of earlier versions.
        above: of a leaf, each partitioned table above it, and the attnums that ``columns`` have
            there.
        types: every type that is not built in and that the columns need, also indirectly.
        bound: of a leaf, as far as it is known: when its rows come, the leaf may be gone.
    """

    oid: int
    namespace: str
    name: str
    kind: str
    root_oid: int
    root_namespace: str
    root_name: str
    primary_key: tuple[str, ...]
    identity_key: tuple[str, ...]
    replica_identity: str
    filenode: int
    columns: tuple[ColumnFacts, ...]
    types: tuple[TypeDefinition, ...] = ()
    dropped: tuple[DroppedColumn, ...] | None = None
    above: tuple[tuple[int, tuple[int, ...]], ...] = ()
    bound: LeafBound | None = None

    def type_definitions(self) -> dict[int, TypeDefinition]:
        """The types by OID, as the type registry takes them."""
        return {definition.oid: definition for definition in self.types}

    def with_published_keys(self, columns: Collection[str]) -> RelationFacts:
        """Without a primary key or identity of which a column is not among those published."""
        published = frozenset(columns)
        return replace(
            self,
            primary_key=self.primary_key if published.issuperset(self.primary_key) else (),
            identity_key=self.identity_key if published.issuperset(self.identity_key) else (),
        )

    def without_numbers(self) -> RelationFacts:
        """Without anything that tells columns apart beside their names."""
        columns = tuple(replace(column, attnum=0) for column in self.columns)
        return replace(self, columns=columns, dropped=None, above=())

    def to_json(self) -> str:
        """One line of JSON; :meth:`from_json` reads it back."""
        raw = asdict(self)
        if self.dropped is None:
            del raw["dropped"]
        if not self.above:
            del raw["above"]
        if self.bound is None:
            del raw["bound"]
        return json.dumps(raw, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> RelationFacts:
        """Read what :meth:`to_json` wrote.

        Raises:
            ValueError: the text is not such JSON.
        """
        return _facts_of(text)


@lru_cache(_REMEMBERED)
def _facts_of(text: str) -> RelationFacts:
    """Facts from JSON; each segment repeats those of its relations."""
    try:
        raw: dict[str, Any] = json.loads(text)
        columns = tuple(ColumnFacts(**column) for column in raw.pop("columns"))
        types = tuple(
            TypeDefinition(
                **{
                    **one,
                    "enum_labels": tuple(one["enum_labels"]),
                    "fields": tuple(TypeField(**field) for field in one["fields"]),
                }
            )
            for one in raw.pop("types")
        )
        if "bound" in raw:
            parent, condition, names, is_only = raw["bound"]
            raw["bound"] = LeafBound(parent, condition, tuple(names), is_only)
        raw["primary_key"] = tuple(raw["primary_key"])
        raw["identity_key"] = tuple(raw["identity_key"])
        raw["above"] = tuple((oid, tuple(numbers)) for oid, numbers in raw.pop("above", ()))
        if (dropped := raw.pop("dropped", None)) is not None:
            raw["dropped"] = tuple(DroppedColumn(**column) for column in dropped)
        return RelationFacts(**raw, columns=columns, types=types)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("not the JSON of a relation's metadata") from error
