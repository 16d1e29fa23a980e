"""Formats Arrow values in PostgreSQL's text form, like its output functions.

This is an independent implementation: it follows PostgreSQL's rules and shares no code with the
decoder of the stream and the writer of targets. Whole columns are formatted at once if that is
simple, rare values (years before Christ, exponents) one at a time. Source: the manual, chapter
"Data Types"; ``d2s.c``, ``array_out`` and ``EncodeDateTime`` of PostgreSQL.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.errors import PgsluiceError
from pgsluice.verification.json_text import is_variant, variants
from pgsluice.verification.nested_text import escaped, hstores, in_braces, is_range, ranges, records

_TEXT = pa.large_string()
_DAY_US = 86_400_000_000
# Years 1 to 9999, for which ISO 8601 and PostgreSQL have the same form.
_FIRST_DAY = -719_162
_LAST_DAY = 2_932_896


@dataclass(frozen=True, slots=True)
class TextForm:
    """The properties of a column, other than its Arrow type, that decide its text form.

    Attributes:
        delimiter: the character between the elements of an array (``;`` for box).
        shortest_floats: floats have the fewest digits that identify them, as since PostgreSQL
            12; before, extra_float_digits = 3 printed 18 (float8) or 9 (float4).
        is_array: the column is an array: a list of ranges is not a multirange.
    """

    delimiter: str = ","
    shortest_floats: bool = True
    is_array: bool = False


def postgres_text(array: pa.Array, form: TextForm | None = None) -> pa.Array:
    """Format a column.

    Returns:
        large_string; null where the array is.

    Raises:
        PgsluiceError: the type is not supported.
    """
    form = form or TextForm()
    kind = array.type
    is_ = pa.types
    if kind in (pa.string(), _TEXT, pa.string_view()) or is_.is_integer(kind):
        return array.cast(_TEXT)
    if is_.is_boolean(kind):
        return pc.if_else(array, pa.scalar("t", _TEXT), pa.scalar("f", _TEXT))
    if is_.is_decimal(kind):
        return _decimals(array)
    if is_.is_float32(kind) or is_.is_float64(kind):
        return _floats(array, form)
    if kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        return _bytea(array)
    if is_.is_date32(kind):
        return _dates(array)
    if is_.is_timestamp(kind):
        return _timestamps(array)
    if is_.is_list(kind) or is_.is_large_list(kind):
        inner = replace(form, is_array=False)
        if is_range(kind.value_type) and not form.is_array:
            return in_braces(array, postgres_text(array.flatten(), inner), ",")
        return _arrays(array, inner)
    if is_.is_map(kind):
        return hstores(array)
    if is_variant(kind):
        return variants(array)
    if is_.is_struct(kind):
        inner = replace(form, is_array=False)
        fields = [postgres_text(array.field(index), inner) for index in range(kind.num_fields)]
        return ranges(array, *fields[:2]) if is_range(kind) else records(array, fields)
    raise PgsluiceError(f"values of the type {kind} cannot be compared with the source yet")


def _patched(texts: pa.Array, rows: npt.NDArray[np.bool_], values: list[str]) -> pa.Array:
    """Replace the texts of some rows."""
    if not values:
        return texts
    return pc.replace_with_mask(texts, pa.array(rows), pa.array(values, _TEXT))


def _decimals(array: pa.Array) -> pa.Array:
    texts = array.cast(_TEXT)
    # Arrow prints the smallest values with exponents; PostgreSQL never does.
    small = _mask(pc.match_substring(texts, "E"))
    values = [format(value, "f") for value in array.filter(pa.array(small)).to_pylist()]
    return _patched(texts, small, values)


def _bytea(array: pa.Array) -> pa.Array:
    """``\\x`` and two digits for each byte."""
    values = array.cast(pa.large_binary()).to_pylist()
    return pa.array([None if value is None else "\\x" + value.hex() for value in values], _TEXT)


# Floating point


def _floats(array: pa.Array, form: TextForm) -> pa.Array:
    numbers = array.fill_null(0).to_numpy(zero_copy_only=False)
    valid = _mask(array.is_valid())
    is_single = numbers.dtype == np.float32
    # Short integers are printed without fraction and exponent by all versions.
    plain = (np.abs(numbers) < (1e6 if is_single else 1e15)) & (numbers == np.trunc(numbers))
    plain &= ~((numbers == 0) & np.signbit(numbers))
    integers = np.where(plain, numbers, 0).astype(np.int64)
    texts = pa.array(integers, mask=~valid).cast(_TEXT)
    others = valid & ~plain
    printed = [_print_float(number, form.shortest_floats) for number in numbers[others]]
    return _patched(texts, others, printed)


def _print_float(number: np.floating, shortest: bool) -> str:
    is_single = isinstance(number, np.float32)
    value = float(number)
    if value != value:
        return "NaN"
    if value in (np.inf, -np.inf):
        return "Infinity" if value > 0 else "-Infinity"
    if not shortest:
        return f"{value:.{9 if is_single else 18}g}"
    if value == 0:
        return "-0"
    return _layout(_shortest(number), 6 if is_single else 15)


def _shortest(number: np.floating) -> str:
    """The shortest decimal that reads back as the number, in scientific form.

    Python and numpy use a decimal exactly half-way between two floats if it is rounded to the
    right one when it is read; PostgreSQL does not, so that its text does not depend on the
    reader's rounding. Such decimals exist only below 1e45 and where floats are about 1 apart or
    more: elsewhere the middle between two floats has more digits than any shortest text.
    """
    text = np.format_float_scientific(number, unique=True, trim="-")
    if not (2.0**20 if number.dtype == np.float32 else 2.0**50) < abs(float(number)) < 1e45:
        return text
    kind = type(number)
    value = Fraction(float(number))
    with np.errstate(over="ignore"):  # above the largest number there is infinity
        neighbours = [np.nextafter(number, kind(end)) for end in ("-inf", "inf")]
    low, high = ((value + _exact(neighbour)) / 2 for neighbour in neighbours)
    digits = len(text.partition("e")[0].replace("-", "").replace(".", ""))
    while not low < Fraction(text) < high:
        text = f"{float(number):.{digits}e}"
        digits += 1
    return text


def _exact(number: np.floating) -> Fraction:
    """A float's value; for infinity, the number that would follow the largest float4."""
    return Fraction(float(number) if np.isfinite(number) else math.copysign(2**128, number))


def _layout(scientific: str, limit: int) -> str:
    """Print as PostgreSQL does: in fixed notation from 1e-04 to below 1e``limit``."""
    mantissa, _, exponent_text = scientific.partition("e")
    exponent = int(exponent_text)
    sign = "-" if mantissa.startswith("-") else ""
    digits = mantissa.lstrip("-").replace(".", "").rstrip("0") or "0"
    if exponent < -4 or exponent >= limit:
        fraction = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{fraction}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    if len(digits) <= exponent + 1:
        return sign + digits + "0" * (exponent + 1 - len(digits))
    return f"{sign}{digits[: exponent + 1]}.{digits[exponent + 1 :]}"


# Dates and times


def _dates(array: pa.Array) -> pa.Array:
    days = array.cast(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    valid = _mask(array.is_valid())
    ordinary = (days >= _FIRST_DAY) & (days <= _LAST_DAY)
    texts = np.datetime_as_string(np.where(ordinary, days, 0).astype("datetime64[D]"))
    others = valid & ~ordinary
    patches = ["".join(_civil(int(day))) for day in days[others]]
    return _patched(pa.array(texts, _TEXT, mask=~valid), others, patches)


def _timestamps(array: pa.Array) -> pa.Array:
    """``2024-01-02 03:04:05.6``; with a time zone always at ``+00``."""
    zone = "" if array.type.tz is None else "+00"
    micros = array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64())
    numbers = micros.fill_null(0).to_numpy(zero_copy_only=False)
    valid = _mask(array.is_valid())
    days = numbers // _DAY_US
    ordinary = (days >= _FIRST_DAY) & (days <= _LAST_DAY)
    iso = np.datetime_as_string(np.where(ordinary, numbers, 0).astype("datetime64[us]"))
    texts = pc.replace_substring(pa.array(iso, _TEXT, mask=~valid), "T", " ")
    # There are always six digits after the point: remove trailing zeros, and then the point.
    texts = pc.utf8_rtrim(pc.utf8_rtrim(texts, characters="0"), characters=".")
    if zone:
        texts = pc.binary_join_element_wise(texts, pa.scalar(zone, _TEXT), pa.scalar("", _TEXT))
    others = valid & ~ordinary
    patches = []
    for number in numbers[others]:
        day, rest = divmod(int(number), _DAY_US)
        date, era = _civil(day)
        patches.append(f"{date} {_time(rest)}{zone}{era}")
    return _patched(texts, others, patches)


def _civil(day: int) -> tuple[str, str]:
    """The year, month and day of a day since 1970-01-01, and `` BC`` before the year 1."""
    cycles, of_cycle = divmod(day + 719_468, 146_097)  # days of 400 years, from 0000-03-01
    year = (of_cycle - of_cycle // 1460 + of_cycle // 36_524 - of_cycle // 146_096) // 365
    of_year = of_cycle - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    of_month = of_year - (153 * month + 2) // 5 + 1
    year += 400 * cycles + (month >= 10)
    month = month + 3 if month < 10 else month - 9
    is_bc = year <= 0
    return f"{1 - year if is_bc else year:04d}-{month:02d}-{of_month:02d}", " BC" * is_bc


def _time(micros: int) -> str:
    seconds, fraction = divmod(micros, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return text if not fraction else f"{text}.{fraction:06d}".rstrip("0")


# Arrays


def _arrays(array: pa.Array, form: TextForm) -> pa.Array:
    """``{1,NULL,"a b"}``, quoted as by ``array_out``."""
    elements = postgres_text(array.flatten(), form)
    special = '^$|^(?i:null)$|[{}"\\\\ \\t\\n\\r\\x0b\\x0c]'
    if form.delimiter in ",;:":
        special += f"|{form.delimiter}"
    needs = pc.match_substring_regex(elements, special)
    elements = pc.if_else(needs, escaped(elements), elements).fill_null("NULL")
    return in_braces(array, elements, form.delimiter)


def _mask(booleans: pa.Array) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = booleans.fill_null(False).to_numpy(zero_copy_only=False)
    return mask
