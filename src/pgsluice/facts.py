"""Relation metadata that pgoutput does not send.

pgoutput's Relation message has names, types and the replica identity. To apply changes, pgsluice
also needs the partition root, the primary key, the values of added columns in older rows, and the
definitions of user-defined types. Capture reads them from the catalog when it first receives a
relation's OID, and stores them in the spool beside the messages. So a segment can be decoded
without the server.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from pgsluice.types.definition import TypeDefinition, TypeField

_REMEMBERED = 2000
"""How many relations' parsed metadata a process keeps in memory."""


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """One row of pg_attribute.

    Attributes:
        missing: the element of pg_attribute.attmissingval in text form, which is the value of rows
            that are older than the column; None if there is none.
        generated: ``""``, ``"s"`` stored, ``"v"`` virtual.
        identity: ``""``, ``"a"`` always, ``"d"`` by default.
        row_version: xmin of the pg_attribute row; it changes with the column's definition.
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
    """The partition bound of a leaf partition or of a partitioned table above it.

    Attributes:
        parent: the OID of the partitioned table directly above it.
        condition: an SQL condition on rows of the parent that is true for the partition's rows;
            empty if there is none, or if it depends on other partitions (DEFAULT).
        columns: the columns in the condition.
        is_only: the partition has had no other bound, as far as the catalog tells.
    """

    parent: int
    condition: str = ""
    columns: tuple[str, ...] = ()
    is_only: bool = False


@dataclass(frozen=True, slots=True)
class DroppedColumn:
    """The row of a dropped column in pg_attribute, which has no name and no type any more.

    Attributes:
        length, align: pg_type.typlen and typalign of the column's former type.
    """

    attnum: int
    length: int
    align: str


@dataclass(frozen=True, slots=True)
class RelationFacts:
    """The metadata of one relation, from the catalog.

    Attributes:
        kind: pg_class.relkind: ``r`` table, ``p`` partitioned table.
        root_oid: for a leaf, the OID of the topmost partitioned table above it; of any other
            relation its own.
        primary_key: the primary key's columns in index order, else empty.
        identity_key: the columns of the index that the replica identity names (``d``: the
            primary key's, ``i``: that index's), else empty.
        replica_identity: pg_class.relreplident: ``d``, ``n``, ``f`` or ``i``.
        filenode: pg_class.relfilenode, 0 for a partitioned table.
        columns: the columns that are not dropped, in attnum order.
        dropped: the dropped columns, in attnum order; None: unknown, in metadata of earlier
            versions.
        above: for a leaf partition, each partitioned table above it, with the attnums of
            ``columns`` there.
        types: all types that are not built in and that the columns use, directly or indirectly.
        bound: a leaf partition's bound, if it is known; the partition may be dropped before its
            rows are applied.
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
        """The user-defined types by OID, in the form of the type registry."""
        return {definition.oid: definition for definition in self.types}

    def with_published_keys(self, columns: Collection[str]) -> RelationFacts:
        """These facts without a primary key or replica identity that has an unpublished column."""
        published = frozenset(columns)
        return replace(
            self,
            primary_key=self.primary_key if published.issuperset(self.primary_key) else (),
            identity_key=self.identity_key if published.issuperset(self.identity_key) else (),
        )

    def without_numbers(self) -> RelationFacts:
        """These facts without attribute numbers: only names tell columns apart then."""
        columns = tuple(replace(column, attnum=0) for column in self.columns)
        return replace(self, columns=columns, dropped=None, above=())

    def to_json(self) -> str:
        """A relation's metadata as one line of JSON; :meth:`from_json` reads it back."""
        raw = {
            name: value
            for name, value in asdict(self).items()
            if value is not None and (value or name != "above")
        }
        return json.dumps(raw, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> RelationFacts:
        """Read what :meth:`to_json` wrote; raises ValueError for anything else."""
        return _facts_of(text)


@lru_cache(_REMEMBERED)
def _facts_of(text: str) -> RelationFacts:
    """Parse facts from JSON, with a cache: each segment repeats the facts of its relations."""
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
