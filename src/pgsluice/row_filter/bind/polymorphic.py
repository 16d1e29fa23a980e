"""Polymorphic types: which types ``anyarray``, ``anyelement`` and ``anycompatible`` stand for.

Source: src/backend/parser/parse_coerce.c (enforce_generic_type_consistency).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pgsluice.row_filter import catalog as c
from pgsluice.sql import SqlRefused

_SAME = frozenset((c.ANYELEMENT, c.ANYARRAY, c.ANYNONARRAY, c.ANYENUM, c.ANYRANGE, c.ANYMULTIRANGE))
_COMPATIBLE = frozenset(
    (c.ANYCOMPATIBLE, c.ANYCOMPATIBLEARRAY, c.ANYCOMPATIBLENONARRAY, c.ANYCOMPATIBLERANGE,
     c.ANYCOMPATIBLEMULTIRANGE)
)  # fmt: skip
POLYMORPHIC = _SAME | _COMPATIBLE

_ALL_UNKNOWN = "could not determine polymorphic type because input has type unknown"

Common = Callable[[Sequence[int]], int | None]
"""Chooses the common type of some types; None if there is none."""


class Mismatch(SqlRefused):
    """The actual types do not fit; the message is PostgreSQL's."""


def resolve(
    catalog: c.Catalog,
    actual: Sequence[int],
    declared: Sequence[int],
    result: int,
    common: Common,
    *,
    is_question: bool = False,
) -> tuple[list[int], int]:
    """Replace polymorphic types by concrete ones.

    Args:
        actual: the arguments' types, perhaps UNKNOWN.
        declared: the types that the function declares.
        result: its declared result.
        is_question: only ask whether they agree; arguments that are all unknown do.

    Returns:
        the types to coerce the arguments to, and the result's type.

    Raises:
        Mismatch: they do not agree.
    """
    if not POLYMORPHIC & {result, *declared}:
        return list(declared), result
    given = [(catalog.base_type(a) if d in POLYMORPHIC and d not in (c.ANYELEMENT,) else a, d)
             for a, d in zip(actual, declared, strict=False)]  # fmt: skip
    bound: dict[int, int] = {}
    _bind_same(catalog, given, bound)
    if not bound and any(oid in _SAME for oid in declared):
        if not is_question:
            raise Mismatch(_ALL_UNKNOWN)
        if c.ANYENUM in declared:
            raise Mismatch("type matched to anyenum is not an enum type: unknown")
    _bind_compatible(catalog, given, bound, common)
    _complete(catalog, bound, {*declared, result})
    targets = [
        bound.get(d, d) if a == c.UNKNOWN or d in _COMPATIBLE else (a if d in bound else d)
        for a, d in zip(actual, declared, strict=False)
    ]
    if result in POLYMORPHIC and result not in bound:
        raise Mismatch(_ALL_UNKNOWN)
    return targets, bound.get(result, result)


def _bind_same(catalog: c.Catalog, given: Sequence[tuple[int, int]], bound: dict[int, int]) -> None:
    words = {
        c.ANYELEMENT: "anyelement", c.ANYARRAY: "anyarray", c.ANYRANGE: "anyrange",
        c.ANYMULTIRANGE: "anymultirange",
    }  # fmt: skip
    elements: list[int] = []
    for actual, declared in given:
        if declared not in _SAME or actual == c.UNKNOWN:
            continue
        kind = c.ANYELEMENT if declared in (c.ANYNONARRAY, c.ANYENUM) else declared
        if kind in bound and bound[kind] != actual:
            names = (catalog.type(bound[kind]).display, catalog.type(actual).display)
            raise Mismatch(
                f'arguments declared "{words[kind]}" are not all alike',
                detail=f"{names[0]} versus {names[1]}",
            )
        bound[kind] = actual
        if element := _element(catalog, actual, kind):
            elements.append(element)
        _fits(catalog, actual, declared)
    if len(set(elements)) > 1:
        raise Mismatch("argument declared is not consistent")
    if elements:
        bound[c.ANYELEMENT] = elements[0]


def _fits(catalog: c.Catalog, actual: int, declared: int) -> None:
    row = catalog.type(actual)
    if declared in (c.ANYNONARRAY, c.ANYCOMPATIBLENONARRAY) and row.element:
        raise Mismatch(f"type matched to anynonarray is an array type: {row.display}")
    if declared == c.ANYENUM and row.kind != "e":
        raise Mismatch(f"type matched to anyenum is not an enum type: {row.display}")


def _element(catalog: c.Catalog, actual: int, kind: int) -> int:
    """The element type of an argument."""
    row = catalog.type(actual)
    if kind in (c.ANYARRAY, c.ANYCOMPATIBLEARRAY):
        if not row.element:
            raise Mismatch(f"argument declared anyarray is not an array but type {row.display}")
        return row.element
    if kind in (c.ANYRANGE, c.ANYCOMPATIBLERANGE):
        if row.kind != "r":
            raise Mismatch(f"argument declared anyrange is not a range type but type {row.display}")
        return row.subtype
    if kind in (c.ANYMULTIRANGE, c.ANYCOMPATIBLEMULTIRANGE):
        if row.kind != "m":
            raise Mismatch(
                f"argument declared anymultirange is not a multirange type but type {row.display}"
            )
        return catalog.type(catalog.range_of_multirange(actual)).subtype
    return actual


def _bind_compatible(
    catalog: c.Catalog, given: Sequence[tuple[int, int]], bound: dict[int, int], common: Common
) -> None:
    elements: list[int] = []
    asked = False
    for actual, declared in given:
        if declared not in _COMPATIBLE:
            continue
        asked = True
        if actual == c.UNKNOWN:
            if declared in (c.ANYCOMPATIBLE, c.ANYCOMPATIBLENONARRAY):
                elements.append(c.UNKNOWN)
            continue
        elements.append(_element(catalog, actual, declared))
        if declared in (c.ANYCOMPATIBLERANGE, c.ANYCOMPATIBLEMULTIRANGE):
            bound[declared] = actual
        _fits(catalog, actual, declared)
    if not asked:
        return
    chosen = common(elements) if elements else c.TEXT
    if chosen is None:
        raise Mismatch("arguments of anycompatible family cannot be cast to a common type")
    bound[c.ANYCOMPATIBLE] = bound[c.ANYCOMPATIBLENONARRAY] = chosen
    if array := catalog.type(chosen).array:
        bound[c.ANYCOMPATIBLEARRAY] = array


def _complete(catalog: c.Catalog, bound: dict[int, int], asked: set[int]) -> None:
    """Derive the types that no argument gave from those that others gave."""
    element = bound.get(c.ANYELEMENT)
    if c.ANYRANGE not in bound and c.ANYMULTIRANGE in bound:
        bound[c.ANYRANGE] = catalog.range_of_multirange(bound[c.ANYMULTIRANGE])
    if c.ANYMULTIRANGE not in bound and c.ANYRANGE in bound:
        bound[c.ANYMULTIRANGE] = catalog.type(bound[c.ANYRANGE]).multirange
    if element is None:
        return
    bound[c.ANYNONARRAY] = bound[c.ANYENUM] = element
    if c.ANYARRAY not in bound and c.ANYARRAY in asked and (array := catalog.type(element).array):
        bound[c.ANYARRAY] = array
