"""Equality and order of all types that have them.

The functions' names are pg_proc's, which follow no single rule: int4lt, text_lt, byteale, date_lt.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

from pgsluice.row_filter.kernels.kernel import (
    KERNELS,
    Compute,
    Kernel,
    Refused,
    Site,
    require_code_point_order,
)
from pgsluice.row_filter.values import VALUE_TYPES, Value, ValueType
from pgsluice.row_filter.values import datetimes as m
from pgsluice.row_filter.values.jsonb import Jsonb, is_equal

COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}

#: (prefix of the function's name, left type, right type)
_FAMILIES: Final = (
    ("bool", "bool", "bool"),
    ("char", "char", "char"),
    ("int2", "int2", "int2"),
    ("int4", "int4", "int4"),
    ("int8", "int8", "int8"),
    ("int24", "int2", "int4"),
    ("int28", "int2", "int8"),
    ("int42", "int4", "int2"),
    ("int48", "int4", "int8"),
    ("int82", "int8", "int2"),
    ("int84", "int8", "int4"),
    ("oid", "oid", "oid"),
    ("xid8", "xid8", "xid8"),
    ("float4", "float4", "float4"),
    ("float8", "float8", "float8"),
    ("float48", "float4", "float8"),
    ("float84", "float8", "float4"),
    ("numeric_", "numeric", "numeric"),
    ("name", "name", "name"),
    ("bpchar", "bpchar", "bpchar"),
    ("bytea", "bytea", "bytea"),
    ("bit", "bit", "bit"),
    ("varbit", "varbit", "varbit"),
    ("uuid_", "uuid", "uuid"),
    ("macaddr_", "macaddr", "macaddr"),
    ("macaddr8_", "macaddr8", "macaddr8"),
    ("network_", "inet", "inet"),
    ("pg_lsn_", "pg_lsn", "pg_lsn"),
    ("date_", "date", "date"),
    ("time_", "time", "time"),
    ("timetz_", "timetz", "timetz"),
    ("timestamp_", "timestamp", "timestamp"),
    ("timestamptz_", "timestamptz", "timestamptz"),
    ("interval_", "interval", "interval"),
    ("array_", "anyarray", "anyarray"),
    ("range_", "anyrange", "anyrange"),
)

#: Functions of text, whose names follow no rule.
_TEXT: Final = {
    **{f"text{name}(text,text)": name for name in ("eq", "ne")},
    **{f"text_{name}(text,text)": name for name in ("lt", "le", "gt", "ge")},
    **{f"name{name}text(name,text)": name for name in COMPARISONS},
    **{f"text{name}name(text,name)": name for name in COMPARISONS},
}
#: Operators such as ~<~: byte order under any collation.
_PATTERN: Final = ("lt", "le", "gt", "ge")


def value_key(type_oid: int) -> Callable[[Value], Any]:
    """The key that a type's values are compared by; raises Refused for a type without an order."""
    return _key_of(VALUE_TYPES.get(type_oid))


def _key_of(value_type: ValueType | None) -> Callable[[Value], Any]:
    if value_type is None or value_type.key is None:
        raise Refused("values of this type cannot be compared exactly")
    return value_type.key


def is_collatable(type_oid: int) -> bool:
    """Whether the type's order depends on a collation."""
    value_type = VALUE_TYPES.get(type_oid)
    return value_type is not None and value_type.is_collatable


def comparing(name: str, site: Site) -> Compute:
    """``eq``, ``lt`` and the others of a type, by its keys."""
    # the empty text comes first under every collation
    if name not in ("eq", "ne") and is_collatable(site.types[0]) and "" not in site.constants:
        require_code_point_order(site, "this comparison")
    compare = COMPARISONS[name]
    left, right = value_key(site.types[0]), value_key(site.types[1])
    if left is right and _keeps(left):
        return compare
    return lambda a, b: compare(left(a), right(b))


def _keeps(key: Callable[[Value], Any]) -> bool:
    """Whether the key is the value itself."""
    return key is VALUE_TYPES[23].key


def _comparison(name: str) -> Callable[[Site], Compute]:
    return lambda site: comparing(name, site)


def _register() -> None:
    names: dict[str, str] = dict(_TEXT)
    for prefix, left, right in _FAMILIES:
        for name in COMPARISONS:
            names[f"{prefix}{name}({left},{right})"] = name
    for signature, name in names.items():
        KERNELS[signature] = Kernel(signature, _comparison(name))
    for type_name in ("text", "bpchar"):
        for name in _PATTERN:
            signature = f"{type_name}_pattern_{name}({type_name},{type_name})"
            KERNELS[signature] = Kernel(signature, _bytewise(name))
    for left, right in (("date", "timestamp"), ("timestamp", "date")):
        for name in COMPARISONS:
            signature = f"{left}_{name}_{right}({left},{right})"
            KERNELS[signature] = Kernel(signature, _mixed(name, left == "date"))
    for name, compare in (("eq", is_equal), ("ne", lambda a, b: not is_equal(a, b))):
        signature = f"jsonb_{name}(jsonb,jsonb)"
        KERNELS[signature] = Kernel(signature, _of_documents(compare))
    for signature in ("xideq(xid,xid)", "xideqint4(xid,int4)"):
        KERNELS[signature] = Kernel(signature, _modulo_xid("eq"))
        negated = signature.replace("xideq", "xidneq")
        KERNELS[negated] = Kernel(negated, _modulo_xid("ne"))


def _bytewise(name: str) -> Callable[[Site], Compute]:
    compare = COMPARISONS[name]

    def make(site: Site) -> Compute:
        key = value_key(site.types[0])
        return lambda a, b: compare(key(a), key(b))

    return make


def _mixed(name: str, is_date_first: bool) -> Callable[[Site], Compute]:
    """A date as its midnight; a date beyond timestamp's range lies between it and infinity."""
    compare = COMPARISONS[name]

    def left(a: int, b: int) -> bool:
        return compare(midnight_key(a), _moment_key(b))

    def right(a: int, b: int) -> bool:
        return compare(_moment_key(a), midnight_key(b))

    return lambda site: left if is_date_first else right


def midnight_key(day: int) -> float | int:
    """A date in microseconds, of any size."""
    if day in (m.DATE_INFINITY, m.DATE_MINUS_INFINITY):
        return float("inf") if day > 0 else float("-inf")
    return day * m.DAY


def _moment_key(moment: int) -> float | int:
    if moment in (m.INFINITY, m.MINUS_INFINITY):
        return float("inf") if moment > 0 else float("-inf")
    return moment


def _of_documents(compare: Callable[[Any, Any], bool]) -> Callable[[Site], Compute]:
    def run(a: Jsonb, b: Jsonb) -> bool:
        return compare(a.content, b.content)

    return lambda site: run


def _modulo_xid(name: str) -> Callable[[Site], Compute]:
    """An int4 compared with an xid means the xid with the same bits."""
    compare = COMPARISONS[name]
    return lambda site: lambda a, b: compare(a % 2**32, b % 2**32)


_register()


def order_key(type_oid: int, site: Site) -> Callable[[Value], Any]:
    """The key that GREATEST, LEAST and row comparisons use; raises Refused."""
    if is_collatable(type_oid):
        require_code_point_order(site, "this comparison")
    return value_key(type_oid)


__all__ = ["COMPARISONS", "comparing", "is_collatable", "order_key", "value_key"]
