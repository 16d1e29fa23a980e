"""The one place that says how each PostgreSQL type travels.

An entry is a pg_type row's name, its OID, its array's OID, and the way of its values. A type
without an entry is found by its definition (enum, domain, array), and else travels as the
text that the server prints.
Source: src/include/catalog/pg_type.dat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from pgsluice.types.arrays import ListType
from pgsluice.types.bytea import ByteaType
from pgsluice.types.codec import ColumnType
from pgsluice.types.datetimes import DATE, TIMESTAMP, TIMESTAMPTZ
from pgsluice.types.definition import TypeDefinition
from pgsluice.types.numbers import BoolType, FloatType, IntegerType
from pgsluice.types.numeric import numeric_type
from pgsluice.types.options import TypeOptions
from pgsluice.types.text import CharType, JsonbType, PrintedType, TextType, UuidType

Way = Callable[[int, TypeOptions], ColumnType]
"""From a column's type modifier (-1 without one) and the options to its type."""

_MAX_DEPTH: Final = 64


@dataclass(frozen=True, slots=True)
class Entry:
    """One built-in type.

    Attributes:
        name: pg_type.typname.
        oid: pg_type.oid.
        array_oid: pg_type.typarray, 0 without one.
        way: how it travels.
        delimiter: pg_type.typdelim.
    """

    name: str
    oid: int
    array_oid: int
    way: Way
    delimiter: str = ","


def _always(column_type: ColumnType) -> Way:
    return lambda typmod, options: column_type


def _text(name: str, oid: int, array_oid: int) -> Entry:
    return Entry(name, oid, array_oid, _always(TextType(name)))


def _printed(name: str, oid: int, array_oid: int, delimiter: str = ",") -> Entry:
    return Entry(name, oid, array_oid, _always(PrintedType(name)), delimiter)


def _integer(name: str, oid: int, array_oid: int, arrow: pa.DataType, ddl: str, wire: str) -> Entry:
    return Entry(name, oid, array_oid, _always(IntegerType(name, arrow, ddl, wire)))


ENTRIES: Final[tuple[Entry, ...]] = (
    Entry("bool", 16, 1000, _always(BoolType())),
    _integer("int2", 21, 1005, pa.int16(), "smallint", ">i2"),
    _integer("int4", 23, 1007, pa.int32(), "int", ">i4"),
    _integer("int8", 20, 1016, pa.int64(), "bigint", ">i8"),
    _integer("oid", 26, 1028, pa.int64(), "bigint", ">u4"),
    Entry("float4", 700, 1021, _always(FloatType("float4", pa.float32(), "float"))),
    Entry("float8", 701, 1022, _always(FloatType("float8", pa.float64(), "double"))),
    Entry("numeric", 1700, 1231, numeric_type),
    _text("text", 25, 1009),
    _text("varchar", 1043, 1015),
    _text("bpchar", 1042, 1014),
    _text("name", 19, 1003),
    Entry("char", 18, 1002, _always(CharType("char"))),
    Entry("bytea", 17, 1001, _always(ByteaType())),
    Entry("date", 1082, 1182, _always(DATE)),
    Entry("timestamp", 1114, 1115, _always(TIMESTAMP)),
    Entry("timestamptz", 1184, 1185, _always(TIMESTAMPTZ)),
    Entry("uuid", 2950, 2951, _always(UuidType("uuid"))),
    _text("json", 114, 199),
    Entry("jsonb", 3802, 3807, _always(JsonbType("jsonb"))),
    _text("xml", 142, 143),
    _printed("time", 1083, 1183),
    _printed("timetz", 1266, 1270),
    _printed("interval", 1186, 1187),
    _printed("money", 790, 791),
    _printed("inet", 869, 1041),
    _printed("cidr", 650, 651),
    _printed("macaddr", 829, 1040),
    _printed("macaddr8", 774, 775),
    _printed("bit", 1560, 1561),
    _printed("varbit", 1562, 1563),
    _printed("tsvector", 3614, 3643),
    _printed("tsquery", 3615, 3645),
    _printed("jsonpath", 4072, 4073),
    _printed("point", 600, 1017),
    _printed("lseg", 601, 1018),
    _printed("path", 602, 1019),
    _printed("box", 603, 1020, ";"),
    _printed("polygon", 604, 1027),
    _printed("line", 628, 629),
    _printed("circle", 718, 719),
    _printed("int4range", 3904, 3905),
    _printed("numrange", 3906, 3907),
    _printed("tsrange", 3908, 3909),
    _printed("tstzrange", 3910, 3911),
    _printed("daterange", 3912, 3913),
    _printed("int8range", 3926, 3927),
    _printed("int4multirange", 4451, 6150),
    _printed("nummultirange", 4532, 6151),
    _printed("tsmultirange", 4533, 6152),
    _printed("tstzmultirange", 4534, 6153),
    _printed("datemultirange", 4535, 6155),
    _printed("int8multirange", 4536, 6157),
    _printed("pg_lsn", 3220, 3221),
    _printed("xid", 28, 1011),
    _printed("cid", 29, 1012),
    _printed("tid", 27, 1010),
    _printed("xid8", 5069, 271),
    _printed("int2vector", 22, 1006),
    _printed("oidvector", 30, 1013),
    _printed("regclass", 2205, 2210),
    _printed("regtype", 2206, 2211),
    _printed("regproc", 24, 1008),
    _printed("regprocedure", 2202, 2207),
    _printed("regoper", 2203, 2208),
    _printed("regoperator", 2204, 2209),
    _printed("regconfig", 3734, 3735),
    _printed("regdictionary", 3769, 3770),
    _printed("regnamespace", 4089, 4090),
    _printed("regrole", 4096, 4097),
    _printed("regcollation", 4191, 4192),
)

_BY_OID: Final = {entry.oid: entry for entry in ENTRIES}
_BY_ARRAY_OID: Final = {entry.array_oid: entry for entry in ENTRIES if entry.array_oid}


def resolve_type(
    type_oid: int,
    typmod: int,
    definitions: Mapping[int, TypeDefinition],
    options: TypeOptions = TypeOptions(),  # noqa: B008 - frozen
) -> ColumnType:
    """How a column travels.

    Args:
        type_oid: the column's type, as the Relation message has it.
        typmod: its modifier, -1 for none.
        definitions: by OID, what pg_type says of types that are not built in.
        options: the user's choices.
    """
    return _resolve(type_oid, typmod, definitions, options, _MAX_DEPTH)


def _resolve(
    type_oid: int,
    typmod: int,
    definitions: Mapping[int, TypeDefinition],
    options: TypeOptions,
    depth: int,
) -> ColumnType:
    entry = _BY_OID.get(type_oid)
    if entry is not None:
        return entry.way(typmod, options)
    entry = _BY_ARRAY_OID.get(type_oid)
    if entry is not None:
        return ListType.of(entry.way(typmod, options), entry.delimiter)
    definition = definitions.get(type_oid)
    if definition is None or not depth:
        return PrintedType(f"type {type_oid}" if definition is None else definition.name)
    if definition.kind == "e":
        return TextType(definition.name)
    if definition.kind == "d":
        base_typmod = definition.base_typmod if definition.base_typmod != -1 else typmod
        return _resolve(definition.base_oid, base_typmod, definitions, options, depth - 1)
    if definition.element_oid:
        element = _resolve(definition.element_oid, typmod, definitions, options, depth - 1)
        return ListType.of(element, _delimiter(definition, definitions))
    return PrintedType(definition.name)


def _delimiter(array: TypeDefinition, definitions: Mapping[int, TypeDefinition]) -> str:
    """An array's delimiter is its element type's."""
    element = definitions.get(array.element_oid)
    if element is not None:
        return element.delimiter
    built_in = _BY_OID.get(array.element_oid)
    return built_in.delimiter if built_in is not None else array.delimiter
