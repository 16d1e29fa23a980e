"""Names of types and collations -> OIDs.

Source: src/backend/parser/parse_type.c.
"""

from __future__ import annotations

from dataclasses import dataclass

from pgsluice.row_filter import catalog as c
from pgsluice.row_filter import literals, type_names
from pgsluice.row_filter import syntax as s
from pgsluice.row_filter.bad_literals import BadLiteral
from pgsluice.sql import SqlRefused


@dataclass(frozen=True, slots=True)
class NameBinder:
    """Looks names up; ``schema`` is the relation's, where its user-defined types may be."""

    catalog: c.Catalog
    schema: str

    def type(self, name: s.TypeName) -> tuple[int, int]:
        """typenameTypeIdAndMod."""
        row = self.catalog.type_named(name.name)
        is_known = name.schema in (None, "pg_catalog") or (
            row is not None and row.oid >= c.FIRST_NORMAL_OID
        )
        shown = name.name if name.schema is None else f"{name.schema}.{name.name}"
        if row is None or not is_known:
            shown += "[]" if name.dimensions else ""
            if name.schema not in (None, "pg_catalog", self.schema, "public"):
                raise SqlRefused(f'schema "{name.schema}" does not exist', position=name.location)
            raise SqlRefused(f'type "{shown}" does not exist', position=name.location)
        if name.is_setof:
            raise SqlRefused("cannot cast to setof", position=name.location)
        typmod = -1
        if name.modifiers is not None:
            try:
                typmod = type_names.make_typmod(row, self._modifiers(name), name.location)
            except SqlRefused as error:
                location = name.location if error.position is None else error.position
                raise SqlRefused(error.message, position=location) from None
        if not name.dimensions:
            return row.oid, typmod
        if not row.array:
            raise SqlRefused(f'type "{shown}[]" does not exist', position=name.location)
        return row.array, typmod

    def _modifiers(self, name: s.TypeName) -> list[int]:
        found: list[int] = []
        for modifier in name.modifiers or ():
            if not isinstance(modifier, s.Literal | s.ColumnRef):
                raise SqlRefused(
                    "type modifiers must be simple constants or identifiers", position=name.location
                )
            text = modifier.value if isinstance(modifier, s.Literal) else str(modifier.names[-1])
            try:
                found.append(int(literals.canonical(self.catalog, c.INT4, text)))
            except BadLiteral as error:
                raise SqlRefused(error.message) from None
        return found

    def collation(self, node: s.CollateClause) -> int:
        *schema, name = node.names
        rows = self.catalog.rows.collations
        if not schema or schema == ["pg_catalog"]:
            for oid, known in rows.items():
                if known == name:
                    return oid
        shown = ".".join(node.names)
        raise SqlRefused(
            f'collation "{shown}" for encoding "UTF8" does not exist', position=node.location
        )
