"""Look up the names of columns, types and collations; print types with their modifiers.

Source: src/backend/parser/parse_expr.c (transformColumnRef), parse_type.c,
src/backend/utils/adt/format_type.c and the types' typmodin functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pgsluice.definitions.source_tables import FIRST_NORMAL_OID, SourceType
from pgsluice.row_filter import catalog as c
from pgsluice.row_filter import nodes as n
from pgsluice.row_filter.bind.check import SYSTEM_TYPES
from pgsluice.row_filter.parse import syntax as s
from pgsluice.row_filter.values.canonical import canonical
from pgsluice.sql import SqlRefused

ROW_TYPE = 0xFFFFFFFF
"""The type of the relation's rows; its real OID does not matter."""


@dataclass(frozen=True, slots=True)
class NameBinder:
    """Looks up columns, types and collations; user-defined types may be in the relation's
    ``schema``."""

    catalog: c.Catalog
    columns: Mapping[str, c.FilterColumn]
    relation: str
    schema: str

    def column(self, node: s.ColumnRef) -> n.Node:
        """The column that a name in the filter means (PostgreSQL's transformColumnRef)."""
        *qualifiers, name = node.names
        shown = ".".join(str(part) for part in node.names)
        if qualifiers:
            self._check_table(qualifiers, node)
        is_table = not qualifiers and name == self.relation and name not in self.columns
        if name is None or is_table:  # a row of the table's own type, which is a user-defined type
            return n.Column(self.relation, ROW_TYPE, location=node.location)
        if column := self.columns.get(name):
            collation = column.collation
            if collation is None:
                collation = self.catalog.type(column.type_oid).collation
            return n.Column(name, column.type_oid, column.typmod, collation, location=node.location)
        if name in SYSTEM_TYPES:
            return n.Column(name, SYSTEM_TYPES[name], location=node.location)
        shown = f"column {shown}" if qualifiers else f'column "{name}"'
        raise SqlRefused(f"{shown} does not exist", node.location)

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

    def type(self, name: s.TypeName) -> tuple[int, int]:
        """typenameTypeIdAndMod: the type's OID and modifier."""
        row = self.catalog.type_named(name.name)
        is_known = name.schema in (None, "pg_catalog") or (
            row is not None and row.oid >= FIRST_NORMAL_OID
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
                typmod = make_typmod(row, self._modifiers(name), name.location)
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
            numbers.append(int(canonical(self.catalog, c.INT4, text)))
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


_MAX_CHARACTERS = 10 * 1024 * 1024
_FIELD_NAMES = {
    1 << 2: " year", 1 << 1: " month", 1 << 3: " day", 1 << 10: " hour", 1 << 11: " minute",
    1 << 12: " second", 6: " year to month", 0x408: " day to hour", 0xC08: " day to minute",
    0x1C08: " day to second", 0xC00: " hour to minute", 0x1C00: " hour to second",
    0x1800: " minute to second", 0x7FFF: "",
}  # fmt: skip


def format_type(catalog: c.Catalog, oid: int, typmod: int = -1) -> str:
    """``character varying(3)``, as format_type() prints it."""
    row = catalog.type(oid)
    if row.element:
        return f"{format_type(catalog, row.element, typmod)}[]"
    if oid == c.BPCHAR and typmod < 0:
        return "bpchar"
    if oid == c.BIT and typmod < 0:
        return '"bit"'
    if typmod < 0:
        return row.display
    match oid:
        case c.BPCHAR:
            return f"character({typmod - 4})"
        case c.VARCHAR:
            return f"character varying({typmod - 4})"
        case c.NUMERIC:
            scale = ((typmod - 4) & 0x7FF ^ 1024) - 1024
            return f"numeric({(typmod - 4) >> 16 & 0xFFFF},{scale})"
        case c.BIT | c.VARBIT:
            return f"{row.display}({typmod})"
        case c.TIME | c.TIMETZ | c.TIMESTAMP | c.TIMESTAMPTZ:
            first, rest = row.display.split(" ", 1)
            return f"{first}({typmod}) {rest}"
        case c.INTERVAL:
            precision = typmod & 0xFFFF
            shown = "" if precision == 0xFFFF else f"({precision})"
            return f"interval{_FIELD_NAMES.get(typmod >> 16 & 0x7FFF, '')}{shown}"
    return row.display


def make_typmod(row: SourceType, values: Sequence[int], location: int) -> int:
    """The typmod of a type with modifiers.

    Raises:
        SqlRefused: the type's own function refuses them.
    """
    if row.oid == c.NUMERIC:
        return _numeric(values)
    if row.oid == c.INTERVAL:
        return _interval(values)
    is_time = row.oid in (c.TIME, c.TIMETZ, c.TIMESTAMP, c.TIMESTAMPTZ)
    if not is_time and row.oid not in _LENGTHS:
        raise SqlRefused(f'type modifier is not allowed for type "{row.name}"', location)
    if len(values) != 1:
        raise SqlRefused("invalid type modifier")
    (value,) = values
    if is_time:
        return min(value, 6)
    name, most, header = _LENGTHS[row.oid]
    if row.oid in (c.BIT, c.VARBIT) and value == -1:
        return -1
    if value < 1:
        raise SqlRefused(f"length for type {name} must be at least 1")
    if most is not None and value > most:
        raise SqlRefused(f"length for type {name} cannot exceed {most}")
    return value + header


#: Of types with a length: the name in errors, the greatest length, and what the typmod adds to it.
_LENGTHS = {
    c.BPCHAR: ("char", _MAX_CHARACTERS, 4), c.VARCHAR: ("varchar", _MAX_CHARACTERS, 4),
    c.BIT: ("bit", None, 0), c.VARBIT: ("varbit", None, 0),
}  # fmt: skip


def _numeric(values: Sequence[int]) -> int:
    if len(values) > 2:
        raise SqlRefused("invalid NUMERIC type modifier")
    precision, scale = (*values, 0)[:2]
    if not 1 <= precision <= 1000:
        raise SqlRefused(f"NUMERIC precision {precision} must be between 1 and 1000")
    if not -1000 <= scale <= 1000:
        raise SqlRefused(f"NUMERIC scale {scale} must be between -1000 and 1000")
    return (precision << 16 | scale & 0x7FF) + 4


def _interval(values: Sequence[int]) -> int:
    fields, precision = (*values, 0xFFFF)[:2]
    if fields not in _FIELD_NAMES:
        raise SqlRefused("invalid INTERVAL type modifier")
    precision = precision if precision == 0xFFFF else min(precision, 6)
    if fields == 0x7FFF and precision == 0xFFFF:
        return -1
    return fields << 16 | precision
