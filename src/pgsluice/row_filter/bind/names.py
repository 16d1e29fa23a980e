"""Look up the names of columns, types and collations.

Source: src/backend/parser/parse_expr.c (transformColumnRef), parse_type.c.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pgsluice.row_filter import catalog as c
from pgsluice.row_filter import nodes as n
from pgsluice.row_filter.bind import type_names
from pgsluice.row_filter.bind.check import SYSTEM_TYPES
from pgsluice.row_filter.parse import syntax as s
from pgsluice.row_filter.values.canonical import canonical
from pgsluice.row_filter.values.value_type import BadLiteral
from pgsluice.sql import SqlRefused

ROW_TYPE = 0xFFFFFFFF
"""The type of the relation's rows; its real OID does not matter."""


@dataclass(frozen=True, slots=True)
class ColumnBinder:
    """Binds names of columns."""

    catalog: c.Catalog
    columns: Mapping[str, c.FilterColumn]
    relation: str
    schema: str

    def bind(self, node: s.ColumnRef) -> n.Node:
        """transformColumnRef."""
        *qualifiers, name = node.names
        shown = ".".join(str(part) for part in node.names)
        if name is None:
            self._check_table(qualifiers, node)
            return self._whole_row(node)
        if qualifiers:
            self._check_table(qualifiers, node)
        elif name == self.relation and name not in self.columns:
            return self._whole_row(node)
        if column := self.columns.get(name):
            collation = column.collation
            if collation is None:
                collation = self.catalog.type(column.type_oid).collation
            return n.Column(name, column.type_oid, column.typmod, collation, location=node.location)
        if name in SYSTEM_TYPES:
            return n.Column(name, SYSTEM_TYPES[name], location=node.location)
        shown = f"column {shown}" if qualifiers else f'column "{name}"'
        raise SqlRefused(f"{shown} does not exist", node.location)

    def _whole_row(self, node: s.ColumnRef) -> n.Node:
        """A row of the table's own type, which is a user-defined type."""
        return n.Column(self.relation, ROW_TYPE, location=node.location)

    def _check_table(self, qualifiers: Sequence[str | None], node: s.ColumnRef) -> None:
        table = str(qualifiers[-1])
        if len(qualifiers) > 2:
            shown = ".".join(str(part) for part in node.names)
            raise SqlRefused(
                f"cross-database references are not implemented: {shown}", node.location
            )
        if table == self.relation and len(qualifiers) == 2 and qualifiers[0] != self.schema:
            raise SqlRefused(
                f'invalid reference to FROM-clause entry for table "{table}"',
                node.location,
                detail=f'There is an entry for table "{table}", but it cannot be referenced from'
                " this part of the query.",
            )
        if table != self.relation:
            raise SqlRefused(f'missing FROM-clause entry for table "{table}"', node.location)


@dataclass(frozen=True, slots=True)
class NameBinder:
    """Looks up types and collations; user-defined types may be in the relation's ``schema``."""

    catalog: c.Catalog
    schema: str

    def type(self, name: s.TypeName) -> tuple[int, int]:
        """typenameTypeIdAndMod: the type's OID and modifier."""
        row = self.catalog.type_named(name.name)
        is_known = name.schema in (None, "pg_catalog") or (
            row is not None and row.oid >= c.FIRST_NORMAL_OID
        )
        shown = name.name if name.schema is None else f"{name.schema}.{name.name}"
        if row is None or not is_known:
            shown += "[]" if name.dimensions else ""
            if name.schema not in (None, "pg_catalog", self.schema, "public"):
                raise SqlRefused(f'schema "{name.schema}" does not exist', name.location)
            raise SqlRefused(f'type "{shown}" does not exist', name.location)
        if name.is_setof:
            raise SqlRefused("cannot cast to setof", name.location)
        typmod = -1
        if name.modifiers is not None:
            try:
                typmod = type_names.make_typmod(row, self._modifiers(name), name.location)
            except SqlRefused as error:
                location = name.location if error.position is None else error.position
                raise SqlRefused(error.message, location) from None
        if not name.dimensions:
            return row.oid, typmod
        if not row.array:
            raise SqlRefused(f'type "{shown}[]" does not exist', name.location)
        return row.array, typmod

    def _modifiers(self, name: s.TypeName) -> list[int]:
        numbers: list[int] = []
        for modifier in name.modifiers or ():
            if not isinstance(modifier, s.Literal | s.ColumnRef):
                raise SqlRefused(
                    "type modifiers must be simple constants or identifiers", name.location
                )
            text = modifier.value if isinstance(modifier, s.Literal) else str(modifier.names[-1])
            try:
                numbers.append(int(canonical(self.catalog, c.INT4, text)))
            except BadLiteral as error:
                raise SqlRefused(error.message) from None
        return numbers

    def collation(self, node: s.CollateClause) -> int:
        *schema, name = node.names
        rows = self.catalog.rows.collations
        if not schema or schema == ["pg_catalog"]:
            for oid, known in rows.items():
                if known == name:
                    return oid
        shown = ".".join(node.names)
        raise SqlRefused(f'collation "{shown}" for encoding "UTF8" does not exist', node.location)
