"""Functions that are computed on whole columns at once.

They only make filters faster. Each returns the same values as the kernel with the same signature,
or raises ``NoColumn`` or an ArrowException; then the rows are computed one by one.

Its figure: rows that a row filter evaluates on one core in a second.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.row_filter.kernels.arrow import documents, networks, texts, times
from pgsluice.row_filter.kernels.arrow.texts import without_blanks
from pgsluice.row_filter.kernels.comparison import COMPARED, COMPARISONS
from pgsluice.row_filter.kernels.hashes import hash_integers, hash_texts
from pgsluice.row_filter.kernels.kernel import Site
from pgsluice.row_filter.kernels.scalars import ColumnCompute as Compute
from pgsluice.row_filter.kernels.scalars import Datum, NoColumn, boolean_array, make_scalar
from pgsluice.row_filter.values import NAMES, Value
from pgsluice.row_filter.values import datetimes as m
from pgsluice.row_filter.values.numbers import INTEGER_PAIRS, INTEGERS, numeric_key, parse_numeric

_MOST_DIGITS: Final = 38
_COMMON_DECIMAL: Final = pa.decimal128(18, 6)
"""Two of these can be multiplied; the cast of a value with more digits is an ArrowException."""
ARROW_TYPES: Final[dict[str, pa.DataType]] = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "oid": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "text": pa.large_string(),
    "varchar": pa.large_string(),
    "bpchar": pa.large_string(),
    "name": pa.large_string(),
    "uuid": pa.large_string(),
    "bytea": pa.large_binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "json": pa.large_string(),
    "jsonb": pa.large_string(),
    "inet": pa.large_string(),
    "cidr": pa.large_string(),
}
"""The Arrow type of each PostgreSQL type; numeric comes as decimal of any precision, or as text."""


#: Types whose columns are their text, and whose constants only computations of a site know.
_ONLY_TEXT: Final = ("json", "jsonb", "inet", "cidr")


def scalar(value: Value, type_oid: int) -> pa.Scalar:
    """A constant as a scalar of its type's Arrow type; raises NoColumn."""
    name = NAMES.get(type_oid, "")
    if name == "numeric" and value is not None and value.is_finite():
        return _decimal(value)
    arrow_type = ARROW_TYPES.get(name)
    if arrow_type is None or name in _ONLY_TEXT:
        raise NoColumn
    if value is None:
        return make_scalar(None, arrow_type)
    if name == "date":
        if value in (m.DATE_INFINITY, m.DATE_MINUS_INFINITY):
            raise NoColumn
        value += m.EPOCH_DAYS
    elif name in ("timestamp", "timestamptz"):
        if value in (m.INFINITY, m.MINUS_INFINITY):
            raise NoColumn
        value += m.EPOCH_DAYS * m.DAY
    elif name == "bpchar":
        value = value.rstrip(" ")
    return make_scalar(value, arrow_type)


def _decimal(value: Decimal) -> pa.Scalar:
    scale = -int(value.as_tuple().exponent)
    precision = max(len(value.as_tuple().digits), scale, 1)
    if precision > _MOST_DIGITS:
        raise NoColumn
    return make_scalar(value, pa.decimal128(precision, scale))


_COMPARE: Final[dict[str, Compute]] = {
    "eq": pc.equal,
    "ne": pc.not_equal,
    "lt": pc.less,
    "le": pc.less_equal,
    "gt": pc.greater,
    "ge": pc.greater_equal,
}
_ORDERED: Final = (
    "int2", "int4", "int8", "oid", "text", "name", "bytea", "uuid", "date", "timestamp",
    "timestamptz",
)  # fmt: skip
"""Types whose columns Arrow compares as PostgreSQL does."""


def _compare_floats(name: str) -> Compute:
    """Only constants other than NaN, which in PostgreSQL equals itself and is above all."""
    compare = _COMPARE[name]

    def run(a: Datum, b: Datum) -> Datum:
        if not isinstance(b, pa.Scalar) or not b.is_valid or math.isnan(b.as_py()):
            raise NoColumn
        b = b.cast(pa.float64())
        result = compare(a.cast(pa.float64()), b)
        return pc.or_(result, pc.is_nan(a)) if name in ("gt", "ge") else result

    return run


def _compare_numerics(name: str) -> Compute:
    """Decimals, or text: the nearest doubles decide where they differ."""
    compare = _COMPARE[name]

    def run(a: Datum, b: Datum) -> Datum:
        if not pa.types.is_large_string(a.type):
            return compare(a, b)
        if not isinstance(b, pa.Scalar):
            raise NoColumn
        exact = b.as_py()
        near, wanted = a.cast(pa.float64()), make_scalar(float(exact), pa.float64())
        truth = compare(near, wanted)
        close = pc.or_(pc.equal(near, wanted), pc.is_nan(near))
        if not pc.any(close).as_py():
            return truth
        encoded = a.filter(close).dictionary_encode()
        key = numeric_key(exact)
        truths = [
            COMPARISONS[name](numeric_key(parse_numeric(text)), key)
            for text in encoded.dictionary.to_pylist()
        ]
        places = encoded.indices.to_numpy()
        return pc.replace_with_mask(truth, close, boolean_array(np.array(truths)[places]))

    return run


def _of_decimals(compute: Compute) -> Compute:
    """Arithmetic; a numeric without a scale comes as text, and has few digits in most tables."""

    def run(*numbers: Datum) -> Datum:
        return compute(
            *(
                number if pa.types.is_decimal(number.type) else number.cast(_COMMON_DECIMAL)
                for number in numbers
            )
        )

    return run


def _widened(compute: Compute) -> Compute:
    """A rounding, with room for one more digit: 99.5 becomes 100."""

    def run(number: Datum) -> Datum:
        kind = number.type
        if kind.precision > _MOST_DIGITS - 1:
            raise NoColumn
        return compute(number.cast(pa.decimal128(kind.precision + 1, kind.scale)))

    return run


def _hash_column(text: Datum) -> Datum:
    return _int32_array(hash_texts(text.cast(pa.large_binary())), text)


def _hash_integer_column(is_wide: bool) -> Compute:
    def run(numbers: Datum) -> Datum:
        values = numbers.cast(pa.int64()).fill_null(0).to_numpy()
        return _int32_array(hash_integers(values, is_wide=is_wide), numbers)

    return run


def _int32_array(values: npt.NDArray[np.int32], like: Datum) -> Datum:
    """An array with NULL where another one has it."""
    array = pa.Array.from_buffers(pa.int32(), len(values), [None, pa.py_buffer(values)])
    null = make_scalar(None, pa.int32())
    return pc.if_else(like.is_valid(), array, null) if like.null_count else array


def _compare_blanked(name: str) -> Compute:
    compare = _COMPARE[name]

    def run(a: Datum, b: Datum) -> Datum:
        return compare(without_blanks(a), without_blanks(b))

    return run


_COMPARE_OTHERS: Final = {
    "float4": _compare_floats,
    "float8": _compare_floats,
    "numeric": _compare_numerics,
    "bpchar": _compare_blanked,
}


def _integers(compute: Compute, arrow_type: pa.DataType) -> Compute:
    def run(*arguments: Datum) -> Datum:
        return compute(*(argument.cast(arrow_type) for argument in arguments))

    return run


def _remainder(a: Datum, b: Datum) -> Datum:
    if pc.any(pc.equal(b, make_scalar(-1, b.type))).as_py():
        raise NoColumn  # the smallest integer divided by -1 has no result
    quotient = pc.divide_checked(a, b)
    return pc.subtract(a, pc.multiply(quotient, b))


def _shift(compute: Compute) -> Compute:
    def run(number: Datum, by: Datum) -> Datum:
        if not isinstance(by, pa.Scalar) or not by.is_valid:
            raise NoColumn
        if not 0 <= by.as_py() < number.type.bit_width - 1:
            raise NoColumn
        return compute(number, by.cast(number.type))

    return run


def _cast(arrow_type: pa.DataType) -> Compute:
    return lambda value: value.cast(arrow_type)


def _register() -> dict[str, Compute]:
    kernels: dict[str, Compute] = {}
    for signature, name in COMPARED.items():
        left = signature.partition("(")[2].partition(",")[0]
        if left in _ORDERED or (left == "bool" and name in ("eq", "ne")):
            kernels[signature] = _COMPARE[name]
        elif make := _COMPARE_OTHERS.get(left):
            kernels[signature] = make(name)
    for name, compute in (("add", pc.add), ("sub", pc.subtract), ("mul", pc.multiply)):
        kernels[f"numeric_{name}(numeric,numeric)"] = _of_decimals(compute)
    for name, compute in (
        ("round", lambda number: pc.round(number, round_mode="half_towards_infinity")),
        ("trunc", pc.trunc),
        ("floor", pc.floor),
        ("ceil", pc.ceil),
        ("ceiling", pc.ceil),
    ):
        kernels[f"{name}(numeric)"] = _of_decimals(_widened(compute))
    for name, digits in (("int2", 5), ("int4", 10), ("int8", 19)):
        kernels[f"numeric({name})"] = _cast(pa.decimal128(digits, 0))
        kernels[f"abs({name})"] = kernels[f"{name}abs({name})"] = pc.abs_checked
        kernels[f"hash{name}({name})"] = _hash_integer_column(name == "int8")
    for prefix, left, right, wider in INTEGER_PAIRS:
        for name, compute in (
            ("pl", pc.add_checked),
            ("mi", pc.subtract_checked),
            ("mul", pc.multiply_checked),
            ("div", pc.divide_checked),
        ):
            kernels[f"{prefix}{name}({left},{right})"] = _integers(compute, ARROW_TYPES[wider])
        if left != right:
            kernels[f"{right}({left})"] = _cast(ARROW_TYPES[right])
    for left in INTEGERS:
        left_type = ARROW_TYPES[left]
        kernels[f"{left}mod({left},{left})"] = _integers(_remainder, left_type)
        kernels[f"mod({left},{left})"] = kernels[f"{left}mod({left},{left})"]
        kernels[f"{left}um({left})"] = pc.negate_checked
        for name, compute in (
            ("and", pc.bit_wise_and),
            ("or", pc.bit_wise_or),
            ("xor", pc.bit_wise_xor),
        ):
            kernels[f"{left}{name}({left},{left})"] = _integers(compute, left_type)
        kernels[f"{left}shl({left},int4)"] = _shift(pc.shift_left)
        kernels[f"{left}shr({left},int4)"] = _shift(pc.shift_right)
        if left != "int8":
            kernels[f"float8({left})"] = _cast(pa.float64())
    return kernels | texts.KERNELS


_KERNELS: Final = _register()

#: Functions whose computation is made for each call, with the call's constants.
SITED: Final[dict[str, Callable[[Site], Compute | None]]] = {
    **times.MAKERS,
    **documents.MAKERS,
    **networks.MAKERS,
    **texts.MAKERS,
    "hashtext(text)": lambda site: _hash_column if site.text_rules.encoding == "UTF8" else None,
}


def arrow_kernel(signature: str, site: Site) -> Compute | None:
    """The computation of a call on columns; None if there is none."""
    make = SITED.get(signature)
    return _KERNELS.get(signature) if make is None else make(site)


def cannot_fail(signature: str) -> bool:
    """Whether a function, given by its signature, has a result for all values of its types."""
    head = signature.partition("(")[0]
    is_like = head.endswith("like") and not head.endswith("iclike")
    return is_like or signature in COMPARED or signature in _SAFE


_SAFE: Final = (
    "length(text)", "char_length(text)", "text(bpchar)", "starts_with(text,text)",
)  # fmt: skip
