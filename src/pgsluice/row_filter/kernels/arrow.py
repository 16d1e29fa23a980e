"""Functions that are computed on whole columns at once.

They only make filters faster. Each gives for every row what the kernel of the same signature
gives, or raises ``NoColumn`` or an ArrowException; then the rows are computed one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.row_filter.kernels.kernel import Site
from pgsluice.row_filter.kernels.patterns import parse_like, read_regex
from pgsluice.row_filter.kernels.scalars import make_scalar
from pgsluice.row_filter.values import NAMES, Value
from pgsluice.row_filter.values import datetimes as m

Datum: TypeAlias = Any
"""An Arrow array, or a scalar for a constant."""
Compute: TypeAlias = Callable[..., Datum]


class NoColumn(Exception):
    """These values cannot be computed as a column."""


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
}
"""The Arrow type of each PostgreSQL type; numeric comes as decimal of any precision."""


def scalar(value: Value, type_oid: int) -> pa.Scalar:
    """A constant as a scalar of its type's Arrow type; raises NoColumn."""
    name = NAMES.get(type_oid, "")
    if name == "numeric" and value is not None and value.is_finite():
        return _decimal(value)
    arrow_type = ARROW_TYPES.get(name)
    if arrow_type is None:
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
    if precision > 38:
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
_COMPARED: Final = (
    *(f"int{a}{{}}({left},{right})" for a, left, right in (
        ("2", "int2", "int2"), ("4", "int4", "int4"), ("8", "int8", "int8"),
        ("24", "int2", "int4"), ("28", "int2", "int8"), ("42", "int4", "int2"),
        ("48", "int4", "int8"), ("82", "int8", "int2"), ("84", "int8", "int4"),
    )),
    "oid{}(oid,oid)",
    "text{}(text,text)",
    "text_{}(text,text)",
    "name{}(name,name)",
    "name{}text(name,text)",
    "text{}name(text,name)",
    "bytea{}(bytea,bytea)",
    "uuid_{}(uuid,uuid)",
    "numeric_{}(numeric,numeric)",
    "date_{}(date,date)",
    "timestamp_{}(timestamp,timestamp)",
    "timestamptz_{}(timestamptz,timestamptz)",
)  # fmt: skip
_FLOATS: Final = (
    "float4{}(float4,float4)",
    "float8{}(float8,float8)",
    "float48{}(float4,float8)",
    "float84{}(float8,float4)",
)


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


def _compare_blanked(name: str) -> Compute:
    compare = _COMPARE[name]

    def run(a: Datum, b: Datum) -> Datum:
        return compare(_without_blanks(a), _without_blanks(b))

    return run


def _without_blanks(text: Datum) -> Datum:
    return text if isinstance(text, pa.Scalar) else pc.utf8_rtrim(text, " ")


def _integers(compute: Compute, arrow_type: pa.DataType) -> Compute:
    def run(*arguments: Datum) -> Datum:
        return compute(*(argument.cast(arrow_type) for argument in arguments))

    return run


def _remainder(a: Datum, b: Datum) -> Datum:
    if pc.any(pc.equal(b, make_scalar(-1, b.type))).as_py():
        raise NoColumn  # the smallest integer divided by -1 has no result
    quotient = pc.divide_checked(a, b)
    return pc.subtract(a, pc.multiply(quotient, b))


def _cast(arrow_type: pa.DataType) -> Compute:
    return lambda value: value.cast(arrow_type)


def _ascii(compute: Compute) -> Compute:
    def run(text: Datum) -> Datum:
        if not pc.all(pc.string_is_ascii(text)).as_py():
            raise NoColumn
        return compute(text)

    return run


def _length(text: Datum) -> Datum:
    return pc.utf8_length(text).cast(pa.int32())


def _starts_with(text: Datum, prefix: Datum) -> Datum:
    if not isinstance(prefix, pa.Scalar):
        raise NoColumn
    return pc.starts_with(text, prefix.as_py())


def _division(a: Datum, b: Datum) -> Datum:
    return pc.divide_checked(a, b)


def _register() -> dict[str, Compute]:
    kernels: dict[str, Compute] = {}
    for name in _COMPARE:
        for form in _COMPARED:
            kernels[form.format(name)] = _COMPARE[name]
        for form in _FLOATS:
            kernels[form.format(name)] = _compare_floats(name)
        kernels[f"bpchar{name}(bpchar,bpchar)"] = _compare_blanked(name)
    sizes = {"int2": pa.int16(), "int4": pa.int32(), "int8": pa.int64()}
    for left, left_type in sizes.items():
        for right in sizes:
            wider = max(left, right)
            prefix = left if left == right else f"{left}{right[3:]}"
            for name, compute in (
                ("pl", pc.add_checked),
                ("mi", pc.subtract_checked),
                ("mul", pc.multiply_checked),
                ("div", _division),
            ):
                kernels[f"{prefix}{name}({left},{right})"] = _integers(compute, sizes[wider])
            if left != right:
                kernels[f"{right}({left})"] = _cast(sizes[right])
        kernels[f"{left}mod({left},{left})"] = _integers(_remainder, left_type)
        kernels[f"mod({left},{left})"] = kernels[f"{left}mod({left},{left})"]
        kernels[f"{left}um({left})"] = pc.negate_checked
        kernels[f"float8({left})"] = _cast(pa.float64()) if left != "int8" else _no_column
    kernels["lower(text)"] = _ascii(pc.ascii_lower)
    kernels["upper(text)"] = _ascii(pc.ascii_upper)
    for name in ("length", "char_length", "character_length", "textlen"):
        kernels[f"{name}(text)"] = _length
    kernels["text(bpchar)"] = _without_blanks
    kernels["starts_with(text,text)"] = _starts_with
    return kernels


def _no_column(*_: Datum) -> Datum:
    raise NoColumn


_KERNELS: Final = _register()

_PATTERNED: Final = {
    f"{name}{infix}({name},text)": infix == "nlike"
    for name in ("text", "name")
    for infix in ("like", "nlike")
}


#: For each function of regular expressions: whether it ignores case, and whether it negates.
_REGEXES: Final = {
    f"{name}{infix}regex{suffix}({name},text)": (infix == "ic", suffix == "ne")
    for name in ("text", "name")
    for infix in ("", "ic")
    for suffix in ("eq", "ne")
}


def arrow_kernel(signature: str, site: Site) -> Compute | None:
    """The computation of a call on columns; None if there is none."""
    if signature in _PATTERNED:
        pattern = site.constants[1]
        matcher = _like(pattern) if isinstance(pattern, str) else None
        if matcher is None or not _PATTERNED[signature]:
            return matcher
        return lambda text, wanted: pc.invert(matcher(text, wanted))
    if signature in _REGEXES:
        return _regex(site, *_REGEXES[signature])
    return _KERNELS.get(signature)


def _like(pattern: str) -> Compute | None:
    """LIKE with a constant pattern."""
    parts = parse_like(pattern)
    if parts is None:
        return None
    runs: list[str] = [""]
    for part in parts:
        if part is None:
            runs.append("")
        elif part == 1:
            return _like_by_regex(parts)
        else:
            runs[-1] += str(part)
    middle = [run for run in runs[1:-1] if run]
    if len(runs) == 1:
        whole = make_scalar(runs[0], pa.large_string())
        return lambda text, _: pc.equal(text, whole)
    if not middle and not (runs[0] and runs[-1]):
        if runs[-1]:
            return lambda text, _: pc.ends_with(text, runs[-1])
        return lambda text, _: pc.starts_with(text, runs[0])
    if len(middle) == 1 and not runs[0] and not runs[-1]:
        return lambda text, _: pc.match_substring(text, middle[0])
    return _like_by_regex(parts)


def _regex(site: Site, ignore_case: bool, is_negated: bool) -> Compute:
    regex = read_regex(site, ignore_case)

    def run(text: Datum, _: Datum) -> Datum:
        if regex.unknown is not None and not pc.all(pc.string_is_ascii(text)).as_py():
            raise NoColumn
        matches = pc.match_substring_regex(text, regex.source)
        return pc.invert(matches) if is_negated else matches

    return run


def _like_by_regex(parts: list[str | int | None]) -> Compute:
    source = "".join(
        ".*" if part is None else "." if part == 1 else f"\\x{{{ord(str(part)):x}}}"
        for part in parts
    )
    return lambda text, _: pc.match_substring_regex(text, rf"(?s)\A{source}\z")


def cannot_fail(signature: str) -> bool:
    """Whether a function has a result for all values."""
    head = signature.partition("(")[0]
    return signature in _SAFE or (head.endswith(("like",)) and not head.endswith("iclike"))


_SAFE: Final = frozenset(
    form.format(name)
    for name in _COMPARE
    for form in (*_COMPARED, *_FLOATS, "bpchar{}(bpchar,bpchar)")
) | {"length(text)", "char_length(text)", "text(bpchar)", "starts_with(text,text)"}
