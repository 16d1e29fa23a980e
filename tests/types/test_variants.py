"""json and jsonb as VARIANT: Spark's own reader and the server say what is right."""

from __future__ import annotations

import json
from decimal import Decimal, localcontext
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql
from pyspark.sql.types import VariantVal
from tests.support.examples import examples
from tests.types.test_types_oracle import Oracle, binary_array
from tests.types.test_types_oracle import oracle as oracle

from pgsluice.errors import ConversionError
from pgsluice.types import TypeOptions, resolve_type
from pgsluice.types.nested.variants import MAX_DEPTH, SIZE_LIMIT
from pgsluice.verification.json_text import is_variant, json_as_jsonb, variants

VARIANT = TypeOptions(nested="variant")
JSON = resolve_type(114, -1, {}, VARIANT)
JSONB = resolve_type(3802, -1, {}, VARIANT)

NUMBERS = (
    *("0", "-0", "127", "-128", "128", "-129", "32767", "-32768", "32768", "2147483647"),
    *("-2147483648", "2147483648", "9223372036854775807", "-9223372036854775808"),
    *("9223372036854775808", "9" * 38, "-" + "9" * 38, "1.10", "-1.10", "0.0", "-0.0", "1e5"),
    *("1.5E+3", "12.340e1", "1e-7", "0e9", "0e-9", "1e37", "0." + "0" * 37 + "1", "0.000000001"),
    *("123456789.0", "1234567890.1", "12345678901234567.8", "123456789012345678.9"),
    "0." + "9" * 38,
)
STRINGS = ("", "a", "x" * 63, "x" * 64, "é" * 32, "🐘", "\x7f\u2028", '"\\/\b\f\n\r\t\x01\x1f')
VALUES = (
    *NUMBERS,
    *(json.dumps(text) for text in STRINGS),
    *("null", "true", "false", "[]", "{}", " [ 1 ,\n2 ] ", '{"b": 1, "aa": 2, "a": {"c": []}}'),
    *(
        '{"": {"": null}}',
        '{"é": 1, "z": 2, "🐘": 3, "\uffff": 4}',
        '"\\ud83d\\udc18"',
        '"\\\\u0000"',
    ),
    json.dumps({f"k{n}": "y" * n for n in range(300)}),
    json.dumps([*range(300)]),
    json.dumps({**dict.fromkeys(map(str, range(29))), "🐘": 1, "\uff5e": 2}, ensure_ascii=False),
    json.dumps({**dict.fromkeys(map(str, range(99))), "🐘": 1, "é": 2}, ensure_ascii=False),
    "[" * MAX_DEPTH + "]" * MAX_DEPTH,
)
HIGH = {"\U0001f418": 1, "\uff5e": 2}
"""Keys whose order as UTF-16 is not that as UTF-8."""
UNFIT_IN_JSONB = (
    "1" * 39,
    "1e38",
    "-" + "1" * 5000,
    "0." + "0" * 38 + "1",
    "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
    "[" * 2000 + "]" * 2000,
    json.dumps("x" * SIZE_LIMIT),
    json.dumps([{**HIGH, **dict.fromkeys(map(str, range(30)))}], ensure_ascii=False),
)
UNFIT_IN_JSON = (
    '{"a": 1, "b": 2, "a": 3}',
    '[{"a": 1, "\\u0061": 1}]',
    '"\\u0000"',
    '{"\\\\\\u0000": 1}',
    '"\\ud83d"',
    '"\\ud83d\\ud83d\\udc18"',
    '"\\udc18\\ud83d"',
    '"\\ud83d\\udc18\\udc18"',
    '{"\\uDC18": 1}',
    "1e100",
    "0e-100",
    "1e0000001",
    "1e1000000000000000000000",
    "1" * 140_000,
)


def encoded(texts: list[str] | tuple[str, ...], kind: Any = JSON) -> pa.Array:
    """The VARIANT of each text; all fit."""
    decoded = kind.decode_text(binary_array(texts))
    assert decoded.unfit is None
    decoded.values.validate(full=True)
    assert decoded.values.type == kind.arrow_type
    return decoded.values


def python(value: dict[str, bytes]) -> Any:
    with localcontext(prec=80):  # Spark's Python reader computes decimals with this precision
        return VariantVal(value["value"], value["metadata"]).toPython()


@pytest.mark.parametrize("name", ["json", "jsonb"])
def test_the_server_prints_what_a_variant_has(oracle: Oracle, name: str) -> None:
    listed = ", ".join("('" + text.replace("'", "''") + "')" for text in VALUES)
    query = f"SELECT v::{name} FROM (VALUES {listed}, (NULL)) AS given (v)"
    column, text, binary = oracle.both_forms(query, VARIANT)
    decoded = column.decode_text(text)
    assert decoded.unfit is None
    assert is_variant(column.arrow_type)
    assert column.decode_binary(binary).values.equals(decoded.values)
    assert column.decode_text(text.slice(3)).values.equals(decoded.values.slice(3))
    as_jsonb, _, _ = oracle.fetch(query.replace(f"::{name}", "::jsonb"))
    assert variants(decoded.values).cast("large_binary").to_pylist() == as_jsonb.to_pylist()


def test_equal_values_have_equal_bytes() -> None:
    one, other = encoded(['{"b": {"d": 1, "c": 2}, "a": 1e2}', '{"a":100,"b":{"c":2,"d":1}}'])
    assert one == other


def test_sql_null_and_the_null_of_json_are_two_values() -> None:
    values = JSONB.decode_text(binary_array([None, "null"])).values
    assert values.is_valid().to_pylist() == [False, True]
    assert python(values[1].as_py()) is None


@pytest.mark.parametrize("text", UNFIT_IN_JSONB, ids=range(len(UNFIT_IN_JSONB)))
def test_a_value_that_a_variant_cannot_hold_is_a_reject(text: str) -> None:
    for kind in (JSON, JSONB):
        decoded = kind.decode_text(binary_array(["1", text, None]))
        assert decoded.unfit is not None
        assert decoded.unfit.tolist() == [False, True, False]
        assert decoded.values.is_valid().to_pylist() == [True, False, False]


@pytest.mark.parametrize("text", UNFIT_IN_JSON, ids=range(len(UNFIT_IN_JSON)))
def test_what_only_json_has_is_a_reject(text: str) -> None:
    decoded = JSON.decode_text(binary_array([text]))
    assert decoded.unfit is not None
    assert decoded.unfit.all()


def test_verify_prints_each_json_as_jsonb_or_as_the_text_of_its_reject(oracle: Oracle) -> None:
    texts = [*VALUES, *UNFIT_IN_JSONB[:4], *UNFIT_IN_JSON]
    query = sql.SQL("SELECT {} FROM unnest(%s::text[]) WITH ORDINALITY AS g (t, n) ORDER BY n")
    rows = oracle.connection.execute(query.format(json_as_jsonb(sql.SQL("t::json"))), [texts])
    printed = [text for (text,) in rows]
    decoded = JSON.decode_text(binary_array(texts))
    assert decoded.unfit is not None
    for text, ours, is_unfit, theirs in zip(
        texts, variants(decoded.values).to_pylist(), decoded.unfit, printed, strict=True
    ):
        if not is_unfit:
            assert ours == theirs
        elif theirs != text:
            with psycopg.connect(oracle.connection.info.dsn) as plain:
                assert plain.execute("SELECT (%s::text)::jsonb::text", [text]).fetchone() == (
                    theirs,
                )


@pytest.mark.parametrize("text", ["", "x", "[1", "NaN", "-Infinity", '"\n"', "{1: 2}", "[1] 2"])
def test_other_texts_are_refused(text: str) -> None:
    for kind in (JSON, JSONB):
        with pytest.raises(ConversionError, match="row 1 is not a value"):
            kind.decode_text(binary_array(["1", text]))
    with pytest.raises(ConversionError, match="row 1 is not a value"):
        JSONB.decode_binary(binary_array([None, f"\x01{text}"]))


def test_only_json_and_jsonb_are_variants() -> None:
    for oid in (25, 199, 3807, 4072):  # text, json[], jsonb[], jsonpath
        assert resolve_type(oid, -1, {}, VARIANT) == resolve_type(oid, -1, {})


def test_bytes_that_are_no_variant_are_printed_as_something_else() -> None:
    good = encoded(['{"a": [1, 2.5, "x"]}'])[0].as_py()
    for length in range(len(good["value"])):
        cut = pa.array([{**good, "value": good["value"][:length]}], JSON.arrow_type)
        assert variants(cut).to_pylist() != variants(encoded(['{"a": [1, 2.5, "x"]}'])).to_pylist()
    double = {"metadata": b"\x11\x00\x00", "value": b"\x1c" + bytes(8)}
    assert variants(pa.array([double], JSON.arrow_type)).to_pylist() == ["<type 7>"]


_DIGITS = st.integers(-(10**38) + 1, 10**38 - 1)
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-300, 300)
    | _DIGITS
    | st.builds(
        lambda n, scale: Decimal(n).scaleb(-scale),
        st.integers(-(10**20), 10**20),
        st.integers(1, 38),
    )
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
)
_KEYS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5)
_DOCUMENTS = st.recursive(
    _LEAVES, lambda inner: st.lists(inner) | st.dictionaries(_KEYS, inner), max_leaves=20
)


def as_json(value: Any) -> str:
    """JSON with all digits of decimals."""
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, list):
        return f"[{','.join(map(as_json, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{as_json(v)}" for k, v in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(6))
@given(documents=st.lists(_DOCUMENTS, min_size=10, max_size=30))
def test_spark_and_the_server_read_what_was_written(oracle: Oracle, documents: list[Any]) -> None:
    texts = [as_json(document) for document in documents]
    values = encoded(texts)
    query = "SELECT (t::jsonb)::text FROM unnest(%s::text[]) WITH ORDINALITY AS g (t, n) ORDER BY n"
    printed = [text for (text,) in oracle.connection.execute(query, [texts])]
    assert [python(value) for value in values.to_pylist()] == documents
    assert variants(values).to_pylist() == printed
    assert encoded(printed, JSONB).equals(values)
    assert encoded(printed).equals(values)
