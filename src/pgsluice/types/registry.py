"""The registry that maps each PostgreSQL type to Arrow and Spark.

An entry has a pg_type row's name, its OID, its array's OID, and the factory of its column type.
A type without an entry is resolved from its definition (enum, domain, array). Any other type
maps to a string: the text that the server prints.
Source: src/include/catalog/pg_type.dat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from pgsluice.types.arrays import ListType
from pgsluice.types.binary_to_text import (
    Printer,
    datetimes,
    floats,
    geometry,
    network,
    scalars,
    textsearch,
)
from pgsluice.types.binary_to_text.containers import (
    ArrayPrinter,
    MultirangePrinter,
    RangePrinter,
    RecordPrinter,
    VectorPrinter,
)
from pgsluice.types.binary_to_text.extensions import EXTENSION_PRINTERS
from pgsluice.types.bytea import ByteaType
from pgsluice.types.codec import ColumnType
from pgsluice.types.datetimes import DATE, TIMESTAMP, TIMESTAMPTZ, TimeType
from pgsluice.types.definition import TypeDefinition, TypeField
from pgsluice.types.nested.composites import CompositeType
from pgsluice.types.nested.maps import MapType
from pgsluice.types.nested.ranges import RANGE_FIELDS, MultirangeType, RangeType
from pgsluice.types.nested.variants import ARROW as VARIANT
from pgsluice.types.nested.variants import VariantType
from pgsluice.types.numbers import BoolType, FloatType, IntegerType
from pgsluice.types.numeric import numeric_type
from pgsluice.types.options import TypeOptions
from pgsluice.types.text import JsonbType, MaskedType, PrintedType, TextType, UuidType

TypeFactory = Callable[[int, TypeOptions], ColumnType]
"""Makes a column's type from its type modifier (-1 for none) and the options."""

_MAX_DEPTH: Final = 64


@dataclass(frozen=True, slots=True)
class Entry:
    """One built-in type: a row of pg_type.

    Attributes:
        make_type: makes the type of a column.
        printer: prints the text of a value from its binary form, for values inside others; None
            when that cannot be done.
        delimiter: the character between elements of an array in text form.
        subtype_oid: for a range the type of its bounds, for a multirange its range, else 0.
    """

    name: str
    oid: int
    array_oid: int
    make_type: TypeFactory
    printer: Printer | None
    delimiter: str = ","
    subtype_oid: int = 0


def _always(column_type: ColumnType) -> TypeFactory:
    return lambda typmod, options: column_type


def _text(name: str, oid: int, array_oid: int) -> Entry:
    return Entry(name, oid, array_oid, _always(TextType(name)), scalars.print_text)


def _printed(
    name: str,
    oid: int,
    array_oid: int,
    printer: Printer | None,
    delimiter: str = ",",
    subtype_oid: int = 0,
) -> Entry:
    factory = _always(PrintedType(name, printer=printer))
    return Entry(name, oid, array_oid, factory, printer, delimiter, subtype_oid)


def _ranges(
    of: str, subtype_oid: int, bound: Printer, oids: tuple[int, int], multi_oids: tuple[int, int]
) -> tuple[Entry, Entry]:
    printer, many = RangePrinter(bound), f"{of}multirange"
    return (
        _printed(f"{of}range", *oids, printer, subtype_oid=subtype_oid),
        _printed(many, *multi_oids, MultirangePrinter(printer), subtype_oid=oids[0]),
    )


def _fixed(name: str, oid: int, array_oid: int, column_type: ColumnType, printer: Printer) -> Entry:
    return Entry(name, oid, array_oid, _always(column_type), printer)


ENTRIES: Final[tuple[Entry, ...]] = (
    _fixed("bool", 16, 1000, BoolType(), scalars.print_bool),
    _fixed(
        "int2", 21, 1005, IntegerType("int2", pa.int16(), "smallint", ">i2"), scalars.print_int2
    ),
    _fixed("int4", 23, 1007, IntegerType("int4", pa.int32(), "int", ">i4"), scalars.print_int4),
    _fixed("int8", 20, 1016, IntegerType("int8", pa.int64(), "bigint", ">i8"), scalars.print_int8),
    _fixed(
        "oid", 26, 1028, IntegerType("oid", pa.int64(), "bigint", ">u4"), scalars.print_unsigned4
    ),
    _fixed("float4", 700, 1021, FloatType("float4", pa.float32(), "float"), floats.print_float4),
    _fixed("float8", 701, 1022, FloatType("float8", pa.float64(), "double"), floats.print_float8),
    Entry("numeric", 1700, 1231, numeric_type, scalars.print_numeric),
    _text("text", 25, 1009),
    _text("varchar", 1043, 1015),
    _text("bpchar", 1042, 1014),
    _text("name", 19, 1003),
    _printed("char", 18, 1002, scalars.print_char),
    _fixed("bytea", 17, 1001, ByteaType(), scalars.print_bytea),
    _fixed("date", 1082, 1182, DATE, datetimes.print_date),
    _fixed("timestamp", 1114, 1115, TIMESTAMP, datetimes.print_timestamp),
    _fixed("timestamptz", 1184, 1185, TIMESTAMPTZ, datetimes.print_timestamptz),
    _fixed("uuid", 2950, 2951, UuidType("uuid"), scalars.print_uuid),
    _text("json", 114, 199),
    _fixed("jsonb", 3802, 3807, JsonbType("jsonb"), scalars.print_versioned),
    _text("xml", 142, 143),
    _text("refcursor", 1790, 2201),
    _fixed("time", 1083, 1183, TimeType("time"), datetimes.print_time),
    _printed("timetz", 1266, 1270, datetimes.print_timetz),
    _printed("interval", 1186, 1187, datetimes.print_interval),
    _printed("money", 790, 791, scalars.print_money),
    _printed("inet", 869, 1041, network.print_inet),
    _printed("cidr", 650, 651, network.print_inet),
    _printed("macaddr", 829, 1040, network.print_macaddr),
    _printed("macaddr8", 774, 775, network.print_macaddr8),
    _printed("bit", 1560, 1561, scalars.print_bits),
    _printed("varbit", 1562, 1563, scalars.print_bits),
    _printed("tsvector", 3614, 3643, textsearch.print_tsvector),
    _printed("tsquery", 3615, 3645, textsearch.print_tsquery),
    _fixed("jsonpath", 4072, 4073, JsonbType("jsonpath"), scalars.print_versioned),
    _printed("point", 600, 1017, geometry.print_point),
    _printed("lseg", 601, 1018, geometry.print_lseg),
    _printed("path", 602, 1019, geometry.print_path),
    _printed("box", 603, 1020, geometry.print_box, ";"),
    _printed("polygon", 604, 1027, geometry.print_polygon),
    _printed("line", 628, 629, geometry.print_line),
    _printed("circle", 718, 719, geometry.print_circle),
    *_ranges("int4", 23, scalars.print_int4, (3904, 3905), (4451, 6150)),
    *_ranges("num", 1700, scalars.print_numeric, (3906, 3907), (4532, 6151)),
    *_ranges("ts", 1114, datetimes.print_timestamp, (3908, 3909), (4533, 6152)),
    *_ranges("tstz", 1184, datetimes.print_timestamptz, (3910, 3911), (4534, 6153)),
    *_ranges("date", 1082, datetimes.print_date, (3912, 3913), (4535, 6155)),
    *_ranges("int8", 20, scalars.print_int8, (3926, 3927), (4536, 6157)),
    _printed("pg_lsn", 3220, 3221, scalars.print_lsn),
    _printed("xid", 28, 1011, scalars.print_unsigned4),
    _printed("cid", 29, 1012, scalars.print_unsigned4),
    _printed("tid", 27, 1010, scalars.print_tid),
    _printed("xid8", 5069, 271, scalars.print_unsigned8),
    _printed("txid_snapshot", 2970, 2949, scalars.print_snapshot),
    _printed("pg_snapshot", 5038, 5039, scalars.print_snapshot),
    _printed("int2vector", 22, 1006, VectorPrinter(scalars.print_int2)),
    _printed("oidvector", 30, 1013, VectorPrinter(scalars.print_unsigned4)),
    # It has no send function, so the server sends it as text in binary mode too.
    _printed("aclitem", 1033, 1034, None),
    # Their binary form is an OID, their text form a name that only the server can look up.
    _printed("regclass", 2205, 2210, None),
    _printed("regtype", 2206, 2211, None),
    _printed("regproc", 24, 1008, None),
    _printed("regprocedure", 2202, 2207, None),
    _printed("regoper", 2203, 2208, None),
    _printed("regoperator", 2204, 2209, None),
    _printed("regconfig", 3734, 3735, None),
    _printed("regdictionary", 3769, 3770, None),
    _printed("regnamespace", 4089, 4090, None),
    _printed("regrole", 4096, 4097, None),
    _printed("regcollation", 4191, 4192, None),
)

_BY_OID: Final = {entry.oid: entry for entry in ENTRIES}
_BUILT_IN: Final = {
    **{
        entry.array_oid: TypeDefinition(
            entry.array_oid, "pg_catalog", f"_{entry.name}", "b", entry.oid
        )
        for entry in ENTRIES
    },
    **{
        entry.oid: TypeDefinition(
            entry.oid,
            "pg_catalog",
            entry.name,
            "m" if entry.name.endswith("multirange") else "r",
            subtype_oid=entry.subtype_oid,
        )
        for entry in ENTRIES
        if entry.subtype_oid
    },
}
"""The definitions of built-in arrays, ranges and multiranges, by OID."""


def resolve_type(
    type_oid: int,
    typmod: int,
    definitions: Mapping[int, TypeDefinition],
    options: TypeOptions = TypeOptions(),  # noqa: B008 - frozen
) -> ColumnType:
    """The Arrow and Spark type that a column maps to.

    Args:
        type_oid: the column's type, as the Relation message has it.
        typmod: its modifier, -1 for none.
        definitions: the pg_type rows of types that are not built in, by OID.
        options: the user's choices.
    """
    resolved = _resolve(type_oid, typmod, definitions, options, _MAX_DEPTH)
    if options.nested:
        nested = {"map": _map, "struct": _column, "variant": _variant}[options.nested]
        resolved = nested(type_oid, definitions) or resolved
    if options.is_text and not pa.types.is_string(resolved.arrow_type):
        resolved = printed_type(type_oid, definitions)
    if options.mask is None:
        return resolved
    return MaskedType(resolved.name, resolved, options.mask)


def _map(type_oid: int, definitions: Mapping[int, TypeDefinition]) -> ColumnType | None:
    """The map of a column of hstore; None: its type is another one."""
    definition = definitions.get(_base_oid(type_oid, definitions))
    is_hstore = definition is not None and (definition.name, definition.kind) == ("hstore", "b")
    return MapType("hstore") if is_hstore else None


def _variant(type_oid: int, definitions: Mapping[int, TypeDefinition]) -> ColumnType | None:
    """The VARIANT of a column of json or jsonb; None: its type is another one, such as an array."""
    entry = _BY_OID.get(_base_oid(type_oid, definitions))
    if entry is None or entry.name not in ("json", "jsonb"):
        return None
    return VariantType(entry.name, entry.make_type(-1, TypeOptions()))


def _column(type_oid: int, definitions: Mapping[int, TypeDefinition]) -> ColumnType | None:
    """The struct of a column's type, or the list of them for an array; None: it has none."""
    element, delimiter = _element_of(type_oid, definitions)
    if not element:
        return _struct(type_oid, definitions, _MAX_DEPTH)
    inner = _struct(element, definitions, _MAX_DEPTH)
    return None if inner is None else ListType.of(inner, delimiter)


def _struct(
    type_oid: int, definitions: Mapping[int, TypeDefinition], depth: int
) -> ColumnType | None:
    """The struct of a range or composite, or the list of them for a multirange; None: the type is
    none of these, or has no struct."""
    definition = _defined(_base_oid(type_oid, definitions), definitions)
    if definition is None or not depth:
        return None
    match definition.kind:
        case "r":
            bound = _resolve(definition.subtype_oid, -1, definitions, TypeOptions(), depth - 1)
            return RangeType.of(definition.name, bound)
        case "m":
            of = _struct(definition.subtype_oid, definitions, depth - 1)
            return (
                MultirangeType.of_ranges(definition.name, of) if isinstance(of, RangeType) else None
            )
        case "c" if _has_struct(definition):
            fields = [_attribute(field, definitions, depth - 1) for field in definition.fields]
            made = CompositeType.of(definition.name, [f.name for f in definition.fields], fields)
            return None if made.arrow_type == VARIANT else made
    return None


def _has_struct(composite: TypeDefinition) -> bool:
    """Whether a struct can have a composite's attributes: at least one, whose names differ by more
    than upper and lower case, and which are not those of a range's struct."""
    names = [field.name.casefold() for field in composite.fields]
    return len(set(names)) == len(names) > 0 and names != list(RANGE_FIELDS)


def _attribute(
    field: TypeField, definitions: Mapping[int, TypeDefinition], depth: int
) -> ColumnType:
    """The type of a composite's attribute: composites, ranges and multiranges are structs again.
    Arrays of ranges are text there: as lists of structs, they would look like multiranges."""
    inner = _struct(field.type_oid, definitions, depth)
    if inner is not None:
        return inner
    element, delimiter = _element_of(field.type_oid, definitions)
    inner = _struct(element, definitions, depth) if element else None
    if isinstance(inner, CompositeType):
        return ListType.of(inner)
    resolved = _resolve(field.type_oid, field.typmod, definitions, TypeOptions(), depth)
    if inner is None and delimiter == ",":
        return resolved
    return printed_type(field.type_oid, definitions)


def _element_of(type_oid: int, definitions: Mapping[int, TypeDefinition]) -> tuple[int, str]:
    """The type of an array's elements, and the delimiter between them; (0, ",") for other types."""
    definition = _defined(_base_oid(type_oid, definitions), definitions)
    if definition is None or not definition.element_oid:
        return 0, ","
    return definition.element_oid, _delimiter(definition, definitions)


def _base_oid(type_oid: int, definitions: Mapping[int, TypeDefinition]) -> int:
    """The type below a domain, or below domains of domains; any other type itself."""
    while (definition := definitions.get(type_oid)) is not None and definition.kind == "d":
        type_oid = definition.base_oid
    return type_oid


def _defined(type_oid: int, definitions: Mapping[int, TypeDefinition]) -> TypeDefinition | None:
    return _BUILT_IN.get(type_oid) or definitions.get(type_oid)


def printed_type(type_oid: int, definitions: Mapping[int, TypeDefinition]) -> PrintedType:
    """A column of any type mapped to a string, regardless of the options."""
    name = resolve_type(type_oid, -1, definitions).name
    return PrintedType(name, printer=_printer(type_oid, definitions, _MAX_DEPTH))


def _resolve(
    type_oid: int,
    typmod: int,
    definitions: Mapping[int, TypeDefinition],
    options: TypeOptions,
    depth: int,
) -> ColumnType:
    entry = _BY_OID.get(type_oid)
    if entry is not None:
        return entry.make_type(typmod, options)
    definition = _defined(type_oid, definitions)
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
    return PrintedType(definition.name, printer=_printer(type_oid, definitions, depth))


def _printer(
    type_oid: int, definitions: Mapping[int, TypeDefinition], depth: int
) -> Printer | None:
    """The printer from a type's binary form to its text; None when there is none."""
    entry = _BY_OID.get(type_oid)
    if entry is not None:
        return entry.printer
    definition = _defined(type_oid, definitions)
    if definition is None or not depth:
        return None
    if definition.kind == "c":
        return _record_printer(definition, definitions, depth - 1)
    if definition.kind == "e":
        return scalars.print_text
    below = definition.element_oid or definition.base_oid or definition.subtype_oid
    if not below:
        return EXTENSION_PRINTERS.get(definition.name)
    inner = _printer(below, definitions, depth - 1)
    if inner is None or definition.kind == "d":
        return inner
    if definition.kind == "r":
        return RangePrinter(inner)
    if definition.kind == "m":
        return MultirangePrinter(inner)
    return ArrayPrinter(inner, _delimiter(definition, definitions))


def _record_printer(
    composite: TypeDefinition, definitions: Mapping[int, TypeDefinition], depth: int
) -> RecordPrinter:
    oids = {field.type_oid for field in composite.fields}
    return RecordPrinter(
        composite.name,
        {oid: _printer(oid, definitions, depth) for oid in oids},
        {oid: _resolve(oid, -1, definitions, TypeOptions(), depth).name for oid in oids},
    )


def _delimiter(array: TypeDefinition, definitions: Mapping[int, TypeDefinition]) -> str:
    """An array's delimiter is its element type's."""
    element = definitions.get(array.element_oid)
    if element is not None:
        return element.delimiter
    built_in = _BY_OID.get(array.element_oid)
    return built_in.delimiter if built_in is not None else array.delimiter
