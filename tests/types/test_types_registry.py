"""Which Arrow and Spark type each PostgreSQL type maps to, and what is refused."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_type

from pgsluice.errors import ConfigError, ConversionError
from pgsluice.types import ENTRIES, TypeDefinition, TypeOptions, resolve_type

NUMERIC, INT4, TEXT = 1700, 23, 25


def typmod(precision: int, scale: int) -> int:
    return ((precision << 16) | (scale & 0x7FF)) + 4


def texts(*values: str | None) -> pa.Array:
    return pa.array([v if v is None else v.encode() for v in values], pa.large_binary())


WAYS = [
    (16, pa.bool_(), "boolean"),
    (21, pa.int16(), "smallint"),
    (23, pa.int32(), "int"),
    (20, pa.int64(), "bigint"),
    (26, pa.int64(), "bigint"),
    (700, pa.float32(), "float"),
    (701, pa.float64(), "double"),
    (17, pa.binary(), "binary"),
    (1082, pa.date32(), "date"),
    (1114, pa.timestamp("us"), "timestamp_ntz"),
    (1184, pa.timestamp("us", "UTC"), "timestamp"),
    (1007, pa.list_(pa.int32()), "array<int>"),
    (1185, pa.list_(pa.timestamp("us", "UTC")), "array<timestamp>"),
    *((oid, pa.string(), "string") for oid in (25, 1043, 1042, 19, 18, 2950, 114, 3802, 142)),
    *((oid, pa.string(), "string") for oid in (1083, 1266, 1186, 790, 869, 3904, 603, 1700)),
]


@pytest.mark.parametrize(("oid", "arrow_type", "spark_ddl"), WAYS)
def test_a_type_travels_as(oid: int, arrow_type: pa.DataType, spark_ddl: str) -> None:
    column = resolve_type(oid, -1, {})
    assert (column.arrow_type, column.spark_ddl) == (arrow_type, spark_ddl)


@pytest.mark.parametrize("numeric", ["string", "double", "decimal(38,6)"])
def test_spark_reads_every_arrow_type_as_the_ddl_says(numeric: str) -> None:
    options = TypeOptions(numeric=numeric)
    columns = [resolve_type(o, -1, {}, options) for e in ENTRIES for o in (e.oid, e.array_oid)]
    in_spark = [from_arrow_type(one.arrow_type, prefer_timestamp_ntz=True) for one in columns]
    assert [one.simpleString() for one in in_spark] == [one.spark_ddl for one in columns]


@pytest.mark.parametrize(
    ("declared", "spark_ddl"),
    [
        ((10, 2), "decimal(10,2)"),
        ((38, 38), "decimal(38,38)"),
        ((3, 5), "decimal(5,5)"),
        ((3, -2), "decimal(5,0)"),
        ((36, -2), "decimal(38,0)"),
        ((37, -2), "string"),
        ((2, 39), "string"),
        ((39, 0), "string"),
        ((1000, 1000), "string"),
    ],
)
def test_a_numeric_with_precision_is_a_decimal_where_38_digits_suffice(
    declared: tuple[int, int], spark_ddl: str
) -> None:
    assert resolve_type(NUMERIC, typmod(*declared), {}).spark_ddl == spark_ddl


@pytest.mark.parametrize(
    ("options", "declared", "spark_ddl"),
    [
        (TypeOptions("double"), -1, "double"),
        (TypeOptions("decimal(38,10)"), -1, "decimal(38,10)"),
        (TypeOptions("decimal(38,10)"), typmod(40, 2), "decimal(38,10)"),
        (TypeOptions("double"), typmod(10, 2), "decimal(10,2)"),
        (TypeOptions("decimal(20,4)", for_column=True), typmod(10, 2), "decimal(20,4)"),
        (TypeOptions("string", for_column=True), typmod(10, 2), "string"),
    ],
)
def test_the_choice_for_numeric(options: TypeOptions, declared: int, spark_ddl: str) -> None:
    assert resolve_type(NUMERIC, declared, {}, options).spark_ddl == spark_ddl


def test_a_column_of_any_type_can_be_text() -> None:
    chosen = TypeOptions("string", for_column=True)
    for oid in (oid for entry in ENTRIES for oid in (entry.oid, entry.array_oid) if oid):
        assert resolve_type(oid, -1, {}, chosen).spark_ddl == "string"


@pytest.mark.parametrize("choice", ["decimal", "decimal(39,0)", "decimal(5,6)", "decimal(0,0)", ""])
def test_a_choice_that_is_none(choice: str) -> None:
    with pytest.raises(ConfigError, match="is not a type for numeric columns"):
        TypeOptions(choice)


def test_types_that_are_not_built_in() -> None:
    definitions = {
        one.oid: one
        for one in (
            TypeDefinition(20001, "public", "mood", "e", enum_labels=("sad",)),
            TypeDefinition(20002, "public", "_mood", "b", element_oid=20001),
            TypeDefinition(
                20003, "public", "price", "d", base_oid=NUMERIC, base_typmod=typmod(6, 2)
            ),
            TypeDefinition(20004, "public", "gift", "d", base_oid=20003),
            TypeDefinition(20005, "public", "pair", "c"),
            TypeDefinition(20006, "public", "dotted", "b", delimiter=";"),
            TypeDefinition(20007, "public", "_dotted", "b", element_oid=20006),
            TypeDefinition(20008, "public", "loop", "d", base_oid=20008),
        )
    }
    spark_ddl = {oid: resolve_type(oid, -1, definitions).spark_ddl for oid in definitions}
    assert spark_ddl == {
        20001: "string",
        20002: "array<string>",
        20003: "decimal(6,2)",
        20004: "decimal(6,2)",
        20005: "string",
        20006: "string",
        20007: "array<string>",
        20008: "string",
    }
    assert resolve_type(29999, -1, {}).spark_ddl == "string"
    dotted = resolve_type(20007, -1, definitions).decode_text(texts("{a;b}"))
    assert dotted.values.to_pylist() == [["a", "b"]]


MALFORMED = {
    16: ["true", "x", "", "T"],
    21: ["32768", "-32769"],
    23: ["", "-", "0x1F", "1.0", " 1", "1e3", "2147483648", "١"],
    20: ["9223372036854775808"],
    26: ["-1", "4294967296"],
    700: ["", "1e39", "1e-50", "x", "1,5"],
    701: ["", "1e400", "1e-400", "0x10", "--1"],
    1700: ["", "abc", "1e", "--1", "1 "],
    17: ["\\x0", "\\x0g", "\\xzz", "\\", "a\\b", "\\400"],
    1082: ["", "2024-02-30", "2024-1-1", "31/01/2024", "0000-01-01", "2024-01-01 AD", "2023-02-29"],
    1114: [
        "2024-01-01",
        "2024-01-01T00:00:00",
        "2024-01-01 00:00",
        "2024-01-01 24:00:00",
        "2024-01-01 00:00:00.1234567",
        "2024-01-01 00:00:00+00",
        "0000-01-01 00:00:00",
    ],
    1184: [
        "2024-01-01 00:00:00",
        "2024-01-01 00:00:00Z",
        "2024-01-01 00:00+05:30",
        "2024-01-01 00:00:60+00",
        "2024-01-01 00:00:00+0",
        "0000-01-01 00:00:00+00",
    ],
    1009: [
        "",
        "{",
        "a",
        "{a",
        "a}",
        "{a,}",
        "{,a}",
        "{a,,b}",
        '{"a}',
        '{a"b"}',
        '{"a"b}',
        "{a}b",
        "{a\\b}",
        "{a}{b}",
        '{"a""b"}',
        "{a,{b}}",
        "}{",
    ],
    1007: ["{1,x}", '{1,""}'],
}


@pytest.mark.parametrize(("oid", "text"), [(o, t) for o, ts in MALFORMED.items() for t in ts])
def test_what_is_not_of_the_type_is_refused_with_its_row(oid: int, text: str) -> None:
    column = resolve_type(oid, -1, {})
    good = {16: "t", 17: "\\x00", 1082: "2024-01-01", 1114: "2024-01-01 00:00:00"}
    good |= {1184: "2024-01-01 00:00:00+00", 1009: '{"a b",c}', 1007: "{1}"}
    with pytest.raises(ConversionError) as caught:
        column.decode_text(texts(good.get(oid, "1"), None, text, good.get(oid, "1")))
    assert caught.value.facts["type_name"] is not None
    assert oid == 1007 or caught.value.facts["row"] == 2
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("text", ["1.005", "1000", "abc", "1e9"])
def test_a_decimal_is_never_rounded(text: str) -> None:
    column = resolve_type(NUMERIC, typmod(5, 2), {})
    with pytest.raises(ConversionError):
        column.decode_text(texts("1.25", text))


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(ConversionError, match="row 1 "):
        resolve_type(TEXT, -1, {}).decode_text(pa.array([b"a", b"\xff"], pa.large_binary()))


def test_an_error_never_shows_the_value() -> None:
    for oid in MALFORMED.keys() - {17}:  # it is a bytea
        with pytest.raises(ConversionError) as caught:
            resolve_type(oid, -1, {}).decode_text(texts("s3cret"))
        assert "s3cret" not in f"{caught.value} {caught.value.facts}"


def test_a_binary_form_without_a_way_is_refused_with_advice() -> None:
    column = resolve_type(2205, -1, {})  # regclass
    with pytest.raises(ConversionError, match="binary = false"):
        column.decode_binary(pa.array([None, b"\0\0\x40\0"], pa.large_binary()))
    assert column.decode_binary(pa.array([None], pa.large_binary())).values.to_pylist() == [None]


def test_types_go_to_spark_workers() -> None:
    for entry in ENTRIES:
        column = resolve_type(entry.array_oid or entry.oid, -1, {})
        assert pickle.loads(pickle.dumps(column)) == column
