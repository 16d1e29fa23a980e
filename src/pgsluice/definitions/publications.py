"""A publication: its tables, which of their rows and columns it sends, and its actions.

The names are those of ``CREATE PUBLICATION``. A publication is printed as the statement that
creates it. A table's filter is SQL text; after the statement was executed, it is PostgreSQL's form
of the filter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pgsluice.sql import parenthesised, quote_identifier, quote_literal

Action = Literal["insert", "update", "delete", "truncate"]

ACTIONS: tuple[Action, ...] = ("insert", "update", "delete", "truncate")
"""The actions of a publication, in PostgreSQL's order."""
GeneratedColumns = Literal["none", "stored"]


@dataclass(frozen=True, slots=True)
class PublicationTable:
    """One table of a publication.

    Attributes:
        name: its name without the schema.
        columns: the column list; None: all.
        where: the row filter without its outer parentheses; None: all rows.
        only: ONLY: without inheriting tables.
        oid: its OID in pg_class, once the publication is executed; 0 before.
    """

    name: str
    namespace: str = "public"
    columns: tuple[str, ...] | None = None
    where: str | None = None
    only: bool = False
    oid: int = field(default=0, compare=False)

    @property
    def sql(self) -> str:
        """``[ONLY] s.t [(columns)] [WHERE (…)]``."""
        text = f"{quote_identifier(self.namespace)}.{quote_identifier(self.name)}"
        if self.only:
            text = f"ONLY {text}"
        if self.columns is not None:
            text += f" ({', '.join(map(quote_identifier, self.columns))})"
        if self.where is not None:
            text += f" WHERE {parenthesised(self.where)}"
        return text


@dataclass(frozen=True, slots=True)
class Publication:
    """One of pgsluice's own publications.

    Attributes:
        tables: the listed tables, in order.
        schemas: the schemas of TABLES IN SCHEMA.
        publish: some of :data:`ACTIONS`, in that order.
        publish_via_partition_root: changes of partitions are sent under their root's name, with its
            filter and columns.
        publish_generated_columns: ``none`` or ``stored``; a column list overrides it.

    Example:
        >>> print(Publication("eu", [PublicationTable("orders", where="region = 'EU'")]))
        CREATE PUBLICATION eu FOR TABLE public.orders WHERE (region = 'EU');
    """

    name: str
    tables: tuple[PublicationTable, ...] = ()
    schemas: tuple[str, ...] = ()
    all_tables: bool = False
    publish: tuple[Action, ...] = ACTIONS
    publish_via_partition_root: bool = False
    publish_generated_columns: GeneratedColumns = "none"

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", tuple(self.tables))
        object.__setattr__(self, "schemas", tuple(self.schemas))
        ordered = tuple(action for action in ACTIONS if action in self.publish)
        if unknown := sorted(set(self.publish) - set(ordered)):
            raise ValueError(f"a publication publishes {', '.join(ACTIONS)}, not {unknown[0]!r}")
        object.__setattr__(self, "publish", ordered)
        if self.all_tables and (self.tables or self.schemas):
            raise ValueError("a publication of all tables names no table and no schema")

    @property
    def sql(self) -> str:
        """The statement that creates this publication, with its semicolon."""
        text = f"CREATE PUBLICATION {quote_identifier(self.name)}"
        if self.all_tables:
            text += " FOR ALL TABLES"
        objects = []
        if self.tables:
            objects.append("TABLE " + ", ".join(table.sql for table in self.tables))
        if self.schemas:
            objects.append("TABLES IN SCHEMA " + ", ".join(map(quote_identifier, self.schemas)))
        if objects:
            text += " FOR " + ", ".join(objects)
        if parameters := ", ".join(self._parameters()):
            text += f" WITH ({parameters})"
        return text + ";"

    def __str__(self) -> str:
        return self.sql

    def table(self, oid: int) -> PublicationTable | None:
        """The table with this OID, if the publication lists it."""
        return next((table for table in self.tables if table.oid == oid), None)

    def _parameters(self) -> Iterator[str]:
        """The parameters that differ from their defaults."""
        if self.publish != ACTIONS:
            yield f"publish = {quote_literal(', '.join(self.publish))}"
        if self.publish_via_partition_root:
            yield "publish_via_partition_root = true"
        if self.publish_generated_columns != "none":
            yield f"publish_generated_columns = {self.publish_generated_columns}"


@dataclass(frozen=True, slots=True)
class OwnedPublication:
    """A publication and its owner."""

    publication: Publication
    owner: str


@dataclass(frozen=True, slots=True)
class Publications:
    """All of pgsluice's own publications, by name: the result of a file of statements."""

    by_name: Mapping[str, Publication] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Publication]:
        """Iterate in the order of the names, as PostgreSQL lists them."""
        return iter(
            sorted(self.by_name.values(), key=lambda publication: publication.name.encode())
        )

    def __contains__(self, name: object) -> bool:
        return name in self.by_name

    def get(self, name: str) -> Publication | None:
        """The publication with this name; None if there is none."""
        return self.by_name.get(name)

    def with_publication(self, publication: Publication) -> Publications:
        """Add a publication; it replaces one of the same name."""
        return Publications({**self.by_name, publication.name: publication})

    def without(self, names: Iterable[str]) -> Publications:
        """The same without the publications of some names."""
        dropped = frozenset(names)
        return Publications(
            {name: publication for name, publication in self.by_name.items() if name not in dropped}
        )

    @property
    def sql(self) -> str:
        """The statements that create all of them."""
        return "".join(f"{publication.sql}\n" for publication in self)
