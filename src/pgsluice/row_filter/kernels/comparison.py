"""Equality and order of all types that have them.

The functions' names are pg_proc's, which follow no single rule: int4lt, text_lt, byteale, date_lt.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from pgsluice.row_filter import catalog as c
from pgsluice.row_filter.kernels.kernel import (
    Compute,
    Refused,
    Site,
    register,
    require_code_point_order,
    sited,
)
from pgsluice.row_filter.values import VALUE_TYPES, Value
from pgsluice.row_filter.values import datetimes as m
from pgsluice.row_filter.values.jsonb import is_equal
from pgsluice.row_filter.values.numbers import INTEGER_PAIRS
from pgsluice.row_filter.values.value_type import same

COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}

#: Types of whose functions the names begin with the type's, with and without a hyphen.
_PLAIN: Final = (
    "bool", "char", "oid", "xid8", "float4", "float8", "name", "bpchar", "bytea", "bit", "varbit",
)  # fmt: skip
_HYPHENED: Final = (
    "numeric", "uuid", "macaddr", "macaddr8", "pg_lsn", "date", "time", "timetz", "timestamp",
    "timestamptz", "interval",
)  # fmt: skip
#: (prefix of the function's name, left type, right type)
_FAMILIES: Final = (
    *((name, name, name) for name in _PLAIN),
    *((f"{name}_", name, name) for name in _HYPHENED),
    *(pair[:3] for pair in INTEGER_PAIRS),
    ("float48", "float4", "float8"),
    ("float84", "float8", "float4"),
    ("network_", "inet", "inet"),
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


COMPARED: Final[dict[str, str]] = _TEXT | {
    f"{prefix}{name}({left},{right})": name
    for prefix, left, right in _FAMILIES
    for name in COMPARISONS
}
"""How each function compares: ``eq``, ``lt`` and the others."""


def value_key(type_oid: int) -> Callable[[Value], Any]:
    """The key that a type's values are compared by; raises Refused for a type without an order."""
    value_type = VALUE_TYPES.get(type_oid)
    if value_type is None or value_type.key is None:
        raise Refused("values of this type cannot be compared exactly")
    return value_type.key


def _is_collatable(type_oid: int) -> bool:
    """Whether the type's order depends on a collation."""
    value_type = VALUE_TYPES.get(type_oid)
    return value_type is not None and value_type.is_collatable


def _comparing(name: str, site: Site) -> Compute:
    """``eq``, ``lt`` and the others of a type, by its keys."""
    # the empty text comes first under every collation
    if name not in ("eq", "ne") and _is_collatable(site.types[0]) and "" not in site.constants:
        require_code_point_order(site)
    compare = COMPARISONS[name]
    left, right = value_key(site.types[0]), value_key(site.types[1])
    if left is right is same:
        return compare
    return _mixed(compare, left, right)


def _register() -> None:
    for signature, name in COMPARED.items():
        sited(signature)(partial(_comparing, name))
    # operators such as ~<~: byte order under any collation
    for type_name, key in (("text", value_key(c.TEXT)), ("bpchar", value_key(c.BPCHAR))):
        for name in ("lt", "le", "gt", "ge"):
            compute = _mixed(COMPARISONS[name], key, key)
            register(f"{type_name}_pattern_{name}({type_name},{type_name})", compute)
    for name, compare in COMPARISONS.items():
        register(f"date_{name}_timestamp(date,timestamp)", _mixed(compare, _midnight, _moment))
        register(f"timestamp_{name}_date(timestamp,date)", _mixed(compare, _moment, _midnight))
    register("jsonb_eq(jsonb,jsonb)", lambda a, b: is_equal(a.content, b.content))
    register("jsonb_ne(jsonb,jsonb)", lambda a, b: not is_equal(a.content, b.content))
    for prefix, compare in (("xideq", operator.eq), ("xidneq", operator.ne)):
        register(f"{prefix}(xid,xid)", _mixed(compare, _xid, _xid))
        register(f"{prefix}int4(xid,int4)", _mixed(compare, _xid, _xid))


def _mixed(
    compare: Callable[[Any, Any], bool], left: Callable[[Any], Any], right: Callable[[Any], Any]
) -> Compute:
    return lambda a, b: compare(left(a), right(b))


def _xid(number: int) -> int:
    """An int4 compared with an xid means the xid with the same bits."""
    return number % 2**32


def _midnight(day: int) -> float | int:
    """A date as its midnight, in microseconds.

    A date beyond timestamp's range is treated as between the range and infinity.
    """
    if day in (m.DATE_INFINITY, m.DATE_MINUS_INFINITY):
        return float("inf") if day > 0 else float("-inf")
    return day * m.DAY


def _moment(moment: int) -> float | int:
    if moment in (m.INFINITY, m.MINUS_INFINITY):
        return float("inf") if moment > 0 else float("-inf")
    return moment


_register()


def order_key(type_oid: int, site: Site) -> Callable[[Value], Any]:
    """The key that GREATEST, LEAST and row comparisons use; raises Refused."""
    if _is_collatable(type_oid):
        require_code_point_order(site)
    return value_key(type_oid)
