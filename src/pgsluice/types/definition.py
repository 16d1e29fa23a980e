"""Definitions of types that are not built in: enums, domains, arrays, composites, ranges.

pgoutput sends only the OID and the name of such a type (message Y). The form of its values
follows from pg_type, which the catalog room reads and the spool stores beside the relation.
Source: the manual, chapter "System Catalogs", pg_type and pg_enum.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TypeField:
    """One attribute of a composite type."""

    name: str
    type_oid: int
    typmod: int


@dataclass(frozen=True, slots=True)
class TypeDefinition:
    """One row of pg_type, with its enum labels or attributes.

    Attributes:
        name: its name (``_mood`` for the array of ``mood``).
        kind: pg_type.typtype: ``b`` base, ``c`` composite, ``d`` domain, ``e`` enum,
            ``r`` range, ``m`` multirange, ``p`` pseudo.
        element_oid: for an array type its element's OID, else 0.
        delimiter: the character between the elements of an array of this type in text form.
        base_oid: for a domain its base type (which can be a domain), else 0.
        base_typmod: for a domain the type modifier of its base type, else -1.
        fields: a composite's attributes in their order.
        subtype_oid: for a range the type of its bounds, for a multirange its range, else 0.
    """

    oid: int
    namespace: str
    name: str
    kind: str
    element_oid: int = 0
    delimiter: str = ","
    base_oid: int = 0
    base_typmod: int = -1
    enum_labels: tuple[str, ...] = ()
    fields: tuple[TypeField, ...] = ()
    subtype_oid: int = 0
