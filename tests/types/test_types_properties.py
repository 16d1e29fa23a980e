"""What holds for any value, and for any bytes."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Sequence
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.examples import examples

from pgsluice.errors import ConversionError
from pgsluice.types import ENTRIES, TypeOptions, resolve_type
from pgsluice.types.calendar import civil_from_days, days_from_civil
from pgsluice.verification.postgres_text import postgres_text as formatted

OIDS = [16, 21, 23, 20, 26, 700, 701, 1700, 25, 18, 17, 1082, 1114, 1184, 2950, 3802, 1007, 1009]
OIDS += [1182, 1020, 869, 1231]
PRINTED = sorted({entry.oid for entry in ENTRIES} - set(OIDS))
CHOICES = [TypeOptions(numeric=one) for one in ("string", "double", "decimal(10,2)")]

# Bytes that come near to the forms of types, so that parsers get past their first check.
near = st.text('{}[]=,;:"\\ 0123456789-+.eTZxNULaifntyBC', max_size=24).map(str.encode)
anything = st.lists(st.none() | near | st.binary(max_size=24), max_size=6)


def raw(values: Sequence[bytes | None]) -> pa.Array:
    return pa.array(values, pa.large_binary())


@pytest.mark.parametrize("oid", OIDS)
@settings(max_examples=examples(30))
@given(values=anything, options=st.sampled_from(CHOICES))
def test_any_bytes_decode_or_are_refused(
    oid: int, values: list[bytes | None], options: TypeOptions
) -> None:
    column = resolve_type(oid, -1, {}, options)
    for decode in (column.decode_text, column.decode_binary):
        try:
            decoded = decode(raw(values))
        except ConversionError:
            continue
        decoded.values.validate(full=True)
        assert decoded.values.type == column.arrow_type
        nulls = [value is None for value in values]
        unfit = decoded.unfit.tolist() if decoded.unfit is not None else [False] * len(values)
        assert decoded.values.is_null().to_pylist() == [
            null or bad for null, bad in zip(nulls, unfit, strict=True)
        ]
        assert not any(null and bad for null, bad in zip(nulls, unfit, strict=True))


@settings(max_examples=examples(60))
@given(value=st.binary(max_size=40))
def test_any_bytes_in_binary_form_print_or_are_refused(value: bytes) -> None:
    for oid in PRINTED:
        column = resolve_type(oid, -1, {})
        try:
            decoded = column.decode_binary(raw([None, value]))
        except ConversionError:
            continue
        assert decoded.values.is_valid().to_pylist() == [False, True]


elements = st.none() | st.text(max_size=8) | st.sampled_from(["NULL", "null", "", " ", "\\", '"'])


def array_out(values: list[str | None], delimiter: str = ",") -> str:
    """An array as the server writes it: quotes only where they are needed."""
    return "{" + delimiter.join(_element_out(one, delimiter) for one in values) + "}"


def _element_out(value: str | None, delimiter: str) -> str:
    if value is None:
        return "NULL"
    special = set('{}"\\' + delimiter + " \t\n\r\v\f")
    if value and value.upper() != "NULL" and not special & set(value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


@given(rows=st.lists(st.none() | st.lists(elements, max_size=5), max_size=8))
@example(rows=[["a,b", None], [], None, ["\\\\", '\\"', "{}"], ["NULL"]])
def test_text_arrays(rows: list[list[str | None] | None]) -> None:
    column = resolve_type(1009, -1, {})
    values = raw([None if row is None else array_out(row).encode() for row in rows])
    decoded = column.decode_text(values)
    assert decoded.unfit is None
    assert decoded.values.to_pylist() == rows
    again = formatted(decoded.values).cast(pa.large_binary())
    assert column.decode_text(again).values.equals(decoded.values)


@given(rows=st.lists(st.none() | st.lists(st.none() | st.integers(-9, 99), max_size=4)))
@example(rows=[[1, None] * 100, [], [2], None, list(range(99)), [None]])
def test_binary_arrays(rows: list[list[int | None] | None]) -> None:
    column = resolve_type(1007, -1, {})
    values = raw([None if row is None else array_send(row) for row in rows])
    assert column.decode_binary(values).values.to_pylist() == rows


def outcome(oid: int, value: bytes, form: str) -> object:
    """What becomes of an array: its values, that it is unfit, or that it is refused."""
    column = resolve_type(oid, -1, {})
    try:
        decoded = (column.decode_text if form == "text" else column.decode_binary)(raw([value]))
    except ConversionError as error:
        return str(error)
    return decoded.values.to_pylist(), decoded.unfit is not None


def outcome_in_pieces(oid: int, value: bytes, form: str) -> object:
    """The same, if the array is taken for a long one, and read a few elements at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pgsluice.types.arrays.LONG_BYTES", 3)
        patch.setattr("pgsluice.types.arrays.PIECE_BYTES", 3)
        patch.setattr("pgsluice.types.array_binary.LONG_BYTES", 20)
        patch.setattr("pgsluice.types.array_binary.PIECE_ELEMENTS", 2)
        return outcome(oid, value, form)


@given(value=near.map(lambda inner: b"{" + inner + b"}") | near)
@example(value=b"{a,}")
@example(value=b"{,a,b}")
@example(value=b"{aaaa,,bbbb}")
@example(value=b"{aaaa,{bbbb}}")
@example(value=rb"""{"a\\",\",NULL,"\"","}","aaaa\\\",b",""}""")
def test_texts_of_arrays_in_pieces(value: bytes) -> None:
    assert outcome_in_pieces(1009, value, "text") == outcome(1009, value, "text")


@given(rows=st.lists(elements, min_size=1, max_size=9))
def test_text_arrays_in_pieces(rows: list[str | None]) -> None:
    assert outcome_in_pieces(1009, array_out(rows).encode(), "text") == ([rows], False)


@given(
    values=st.lists(st.none() | st.integers(-9, 99), min_size=1, max_size=9),
    at=st.integers(0, 60),
    byte=st.integers(0, 255),
    end=st.integers(0, 100),
)
@example(values=[None, None, None, 0, 0, 0], at=51, byte=0, end=53)
def test_binary_arrays_in_pieces(values: list[int | None], at: int, byte: int, end: int) -> None:
    whole = array_send(values)
    assert outcome_in_pieces(1007, whole, "binary") == ([values], False)
    wrong = bytearray(whole[:end])
    wrong[at : at + 1] = bytes([byte])
    expected = outcome(1007, bytes(wrong), "binary")
    assert outcome_in_pieces(1007, bytes(wrong), "binary") == expected


def test_an_unfit_element_of_a_piece_makes_the_array_unfit() -> None:
    value = b"{1,2,3,4,99999999999999999999999,6,7,8}"
    column = resolve_type(1231, -1, {}, TypeOptions(numeric="decimal(10,2)", for_column=True))
    assert column.decode_text(raw([value])).unfit is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pgsluice.types.arrays.LONG_BYTES", 3)
        patch.setattr("pgsluice.types.arrays.PIECE_BYTES", 3)
        decoded = column.decode_text(raw([value]))
    assert decoded.values.to_pylist() == [None]
    assert decoded.unfit is not None


def test_an_error_in_an_array_names_the_arrays_row() -> None:
    column = resolve_type(1007, -1, {})
    cases = [
        (column.decode_text, [b"{1,2,3}", None, b"{4,x}"]),
        (
            column.decode_binary,
            [array_send([1, 2, 3]), None, array_send([1]).replace(b"\0\4", b"\0\3")],
        ),
    ]
    for decode, values in cases:
        with pytest.raises(ConversionError) as caught:
            decode(raw(values))
        assert caught.value.facts["row"] == 2


def array_send(values: list[int | None]) -> bytes:
    if not values:
        return struct.pack(">iiI", 0, 0, 23)
    head = struct.pack(">iiIii", 1, int(None in values), 23, len(values), 1)
    return head + b"".join(
        struct.pack(">i", -1) if one is None else struct.pack(">ii", 4, one) for one in values
    )


@given(
    st.lists(
        st.none()
        | st.decimals(
            allow_nan=False, allow_infinity=False, places=4, max_value=10**12, min_value=-(10**12)
        )
    )
)
def test_decimals(values: list[Decimal | None]) -> None:
    column = resolve_type(1700, ((20 << 16) | 4) + 4, {})
    texts = raw([None if value is None else f"{value:f}".encode() for value in values])
    decoded = column.decode_text(texts).values
    assert decoded.to_pylist() == values
    assert formatted(decoded).cast(pa.large_binary()).to_pylist() == texts.to_pylist()


@given(st.lists(st.none() | st.floats(width=32)))
def test_float4_is_exact(values: list[float | None]) -> None:
    column = resolve_type(700, -1, {})
    texts = formatted(pa.array(values, pa.float32())).cast(pa.large_binary())
    assert repr(column.decode_text(texts).values.to_pylist()) == repr(values)


@given(st.lists(st.none() | st.dates()))
def test_dates(values: list[dt.date | None]) -> None:
    column = resolve_type(1082, -1, {})
    texts = raw([None if value is None else value.isoformat().encode() for value in values])
    assert column.decode_text(texts).values.to_pylist() == values


offsets = st.integers(-57599, 57599).map(lambda s: dt.timezone(dt.timedelta(seconds=s)))


@given(
    st.lists(
        st.none() | st.tuples(st.datetimes(dt.datetime(2, 1, 1), dt.datetime(9998, 1, 1)), offsets)
    )
)
def test_timestamptz_under_any_offset(values: list[tuple[dt.datetime, dt.timezone] | None]) -> None:
    column = resolve_type(1184, -1, {})
    moments = [None if one is None else one[0].replace(tzinfo=one[1]) for one in values]
    texts = raw([None if one is None else postgres_text(one).encode() for one in moments])
    expected = [None if one is None else one.astimezone(dt.UTC) for one in moments]
    decoded = column.decode_text(texts).values.cast(pa.int64()).to_pylist()
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert decoded == [
        None if one is None else (one - epoch) // dt.timedelta(microseconds=1) for one in expected
    ]


def postgres_text(moment: dt.datetime) -> str:
    """As the server writes it: no trailing zeros, the offset as short as it can be."""
    text = moment.replace(tzinfo=None).isoformat(sep=" ")
    text = text.rstrip("0") if "." in text else text
    offset = moment.utcoffset()
    assert offset is not None
    seconds = int(offset.total_seconds())
    sign, seconds = ("-", -seconds) if seconds < 0 else ("+", seconds)
    zone = f"{sign}{seconds // 3600:02}"
    if seconds % 3600:
        zone += f":{seconds // 60 % 60:02}"
    if seconds % 60:
        zone += f":{seconds % 60:02}"
    return text + zone


@given(st.integers(-2_500_000, 100_000_000))
def test_the_calendar(days: int) -> None:
    year, month, day = civil_from_days(days)
    assert days_from_civil(year, month, day) == days
    if 1 <= year <= 9999:
        assert (dt.date(year, month, day) - dt.date(1970, 1, 1)).days == days


TEXTS = {
    16: ["t", None, "f"],
    23: ["1", None, "-22"],
    1700: ["1.5", None, "NaN"],
    25: ["a", None, "ü"],
    17: ["\\x0102", None, "ab\\000"],
    1082: ["2024-01-01", None, "infinity", "0001-01-01 BC"],
    1184: ["2024-01-01 00:00:00+00", None, "2024-01-01 00:00:00.5+00:00:01"],
    1009: ["{a,NULL}", None, '{"b c"}', "{{a}}", "{}"],
}


@pytest.mark.parametrize("oid", TEXTS)
@given(data=st.data())
def test_a_slice_decodes_as_the_slice_of_the_decoded(oid: int, data: st.DataObject) -> None:
    column = resolve_type(oid, -1, {}, TypeOptions("decimal(10,2)"))
    values = raw([None if one is None else one.encode() for one in TEXTS[oid]] * 4)
    start = data.draw(st.integers(0, len(values)))
    length = data.draw(st.integers(0, len(values) - start))
    part = column.decode_text(values.slice(start, length))
    whole = column.decode_text(values)
    assert part.values.equals(whole.values.slice(start, length))
    expected = whole.unfit[start : start + length] if whole.unfit is not None else []
    assert list(part.unfit if part.unfit is not None else []) in (list(expected), [])


@pytest.mark.parametrize("oid", TEXTS)
def test_bytes_behind_a_null_mean_nothing(oid: int) -> None:
    column = resolve_type(oid, -1, {}, TypeOptions("decimal(10,2)"))
    good = TEXTS[oid][0]
    assert good is not None
    hidden = raw([good.encode(), b'\xff{"\\x0 nonsense', good.encode()])
    validity = pa.py_buffer(bytes([0b101]))
    values = pa.Array.from_buffers(pa.large_binary(), 3, [validity, *hidden.buffers()[1:]])
    expected = column.decode_text(raw([good.encode(), None, good.encode()]))
    assert column.decode_text(values).values.equals(expected.values)
    nothing = values.slice(1, 1)
    assert column.decode_text(nothing).values.to_pylist() == [None]
