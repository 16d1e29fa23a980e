"""Paths computed on jsonb documents: @?, @@, and the functions without variables.

Source: src/backend/utils/adt/jsonpath_exec.c.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import TypeAlias

from pgsluice.row_filter.kernels.comparison import COMPARISONS
from pgsluice.row_filter.kernels.kernel import Compute, Refused, Site, kernel, sited
from pgsluice.row_filter.values.jsonb import Jsonb, kind_of
from pgsluice.row_filter.values.jsonpath import (
    Accessors,
    Content,
    Expression,
    JsonPath,
    Literal,
    Predicate,
    Step,
)

Truth: TypeAlias = bool | None
"""None is unknown."""

_COMPARISONS = dict(zip(("==", "!=", "<", "<=", ">", ">="), COMPARISONS.values(), strict=True))


class PathError(Exception):
    """A strict path that does not fit the document, where the server is asked to be silent."""


def _items(document: Jsonb, path: JsonPath) -> list[Content] | None:
    """The items that a path gives; None where a strict path does not fit the document."""
    try:
        return _Run(path.is_lax, document.content).items(path.expression, document.content)
    except PathError:
        return None


@kernel("jsonb_path_exists_opr(jsonb,jsonpath)")
def _exists(document: Jsonb, path: JsonPath) -> bool | None:
    items = _items(document, path)
    return None if items is None else bool(items)


@kernel("jsonb_path_match_opr(jsonb,jsonpath)")
def _match(document: Jsonb, path: JsonPath) -> bool | None:
    """The truth of a predicate; None if it is unknown, or the path is no predicate."""
    items = _items(document, path) or []
    return items[0] if len(items) == 1 and isinstance(items[0], bool) else None


@sited("jsonb_path_exists(jsonb,jsonpath,jsonb,bool)")
def _path_exists(site: Site) -> Compute:
    """Without variables; a lax path of those that are supported never fails."""
    path = site.constants[1]
    if len(site.types) > 2 or not isinstance(path, JsonPath) or not path.is_lax:
        raise Refused("only a constant lax path without variables is computed", "use @?")
    return _exists


class _Run:
    """One path on one document."""

    def __init__(self, is_lax: bool, root: Content) -> None:
        self.is_lax = is_lax
        self.root = root

    def items(self, expression: Expression, current: Content) -> list[Content]:
        match expression:
            case Literal():
                return [expression.value]
            case Predicate():
                return [self.truth(expression, current)]
            case Accessors():
                start = self.root if expression.is_root else current
                return list(self._follow(start, expression.steps, self.is_lax))

    def _follow(self, item: Content, steps: Sequence[Step], unwrap: bool) -> Iterator[Content]:
        if not steps:
            yield item
            return
        step, rest = steps[0], steps[1:]
        if unwrap and isinstance(item, list) and step.kind in ("key", "keys", "filter"):
            for element in item:
                yield from self._follow(element, steps, False)
            return
        for child in self._children(item, step):
            yield from self._follow(child, rest, self.is_lax)

    def _children(self, item: Content, step: Step) -> list[Content]:
        match step.kind:
            case "key" if isinstance(item, dict):
                return self._or_error([item[step.key]] if step.key in item else [])
            case "keys" if isinstance(item, dict):
                return list(item.values())
            case "elements" | "indexes" if isinstance(item, list) or self.is_lax:
                elements = item if isinstance(item, list) else [item]
                return elements if step.kind == "elements" else self._indexed(elements, step)
            case "filter" if step.predicate is not None:
                return [item] if self.truth(step.predicate, item) else []
            case "type":
                return [kind_of(item)]
            case "size" if isinstance(item, list) or self.is_lax:
                return [Decimal(len(item) if isinstance(item, list) else 1)]
        return self._or_error([])

    def _or_error(self, items: list[Content]) -> list[Content]:
        if not items and not self.is_lax:
            raise PathError
        return items

    def _indexed(self, elements: list[Content], step: Step) -> list[Content]:
        chosen: list[Content] = []
        last = len(elements) - 1
        for low, high in step.indexes:
            first, end = (last if index is None else index for index in (low, high))
            if not self.is_lax and not 0 <= first <= end <= last:
                raise PathError
            chosen += elements[max(first, 0) : max(end + 1, 0)]
        return chosen

    def truth(self, predicate: Predicate, current: Content) -> Truth:
        left = predicate.arguments[0]
        match predicate.kind:
            case "&&" | "||":
                return self._connected(predicate, current)
            case "!":
                truth = self._truth_of(left, current)
                return None if truth is None else not truth
            case "is unknown":
                return self._truth_of(left, current) is None
            case "exists":
                try:
                    return bool(self.items(left, current))
                except PathError:
                    return None
        return self._compared(predicate, current)

    def _truth_of(self, expression: Expression, current: Content) -> Truth:
        assert isinstance(expression, Predicate)
        return self.truth(expression, current)

    def _connected(self, predicate: Predicate, current: Content) -> Truth:
        deciding = predicate.kind == "||"
        left = self._truth_of(predicate.arguments[0], current)
        if left is deciding:
            return left
        right = self._truth_of(predicate.arguments[1], current)
        return left if right is not None and right is not deciding else right

    def _compared(self, predicate: Predicate, current: Content) -> Truth:
        """Whether any pair of items fits; in strict mode, an unknown pair decides."""
        left, right = predicate.arguments
        test = _starts_with if predicate.kind == "starts with" else _test(predicate.kind)
        try:
            lefts, rights = self._unwrapped(left, current), self._unwrapped(right, current)
        except PathError:
            return None
        is_found = is_unknown = False
        for a in lefts:
            for b in rights:
                truth = test(a, b)
                if truth is None and not self.is_lax:
                    return None
                if truth and self.is_lax:
                    return True
                is_found = is_found or bool(truth)
                is_unknown = is_unknown or truth is None
        if is_found:
            return True
        return None if is_unknown else False

    def _unwrapped(self, expression: Expression, current: Content) -> list[Content]:
        items = self.items(expression, current)
        if not self.is_lax:
            return items
        return [
            element for item in items for element in (item if isinstance(item, list) else [item])
        ]


def _test(comparison: str) -> Callable[[Content, Content], Truth]:
    compare = _COMPARISONS[comparison]

    def run(a: Content, b: Content) -> Truth:
        kinds = kind_of(a), kind_of(b)
        if kinds[0] != kinds[1]:
            return comparison == "!=" if "null" in kinds else None
        if kinds[0] in ("array", "object"):
            return None
        return compare(0, 0) if a is None else compare(a, b)

    return run


def _starts_with(a: Content, b: Content) -> Truth:
    return a.startswith(b) if isinstance(a, str) and isinstance(b, str) else None
