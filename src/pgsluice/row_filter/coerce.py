"""Which type becomes which, and the node that does it.

Source: src/backend/parser/parse_coerce.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum

from pgsluice.row_filter import catalog as c
from pgsluice.row_filter import generics, literals
from pgsluice.row_filter import nodes as n
from pgsluice.row_filter.bad_literals import BadLiteral
from pgsluice.row_filter.nodes import CallForm
from pgsluice.row_filter.places import Places
from pgsluice.row_filter.tree import (
    collation_of,
    disallowed,
    type_of,
    typmod_of,
)
from pgsluice.row_filter.type_names import display


class Context(IntEnum):
    """Who asks for a coercion: the later ones may do more."""

    IMPLICIT = 0
    ASSIGNMENT = 1
    EXPLICIT = 2


class Path(Enum):
    """How a value gets from one type to another."""

    FUNCTION = "function"
    RELABEL = "relabel"
    ARRAY = "array"
    TEXT = "text"


_CONTEXTS = {"i": Context.IMPLICIT, "a": Context.ASSIGNMENT, "e": Context.EXPLICIT}
_AS_IS = (c.ANY, c.ANYELEMENT, c.ANYNONARRAY, c.ANYCOMPATIBLE, c.ANYCOMPATIBLENONARRAY)
_VECTORS = (22, 30)  # int2vector, oidvector: arrays that are no targets of array casts


@dataclass(frozen=True, slots=True)
class Coercer:
    """Coercions over one catalog; ``places`` remembers where nodes stand in the text."""

    catalog: c.Catalog
    places: Places

    # -- whether it can be done

    def pathway(self, target: int, source: int, context: Context) -> tuple[Path, int] | None:
        """find_coercion_pathway: how, and by which function (0: none)."""
        source, target = self.catalog.base_type(source), self.catalog.base_type(target)
        if source == target:
            return Path.RELABEL, 0
        cast = self.catalog.rows.casts.get((source, target))
        if cast is not None:
            if context < _CONTEXTS[cast.context]:
                return None
            method = {"f": Path.FUNCTION, "i": Path.TEXT, "b": Path.RELABEL}[cast.method]
            return method, cast.function
        if target not in _VECTORS:
            goal, element = self.catalog.element_type(target), self.catalog.element_type(source)
            if goal and element and (found := self.pathway(goal, element, context)):
                return (Path.TEXT if found[0] is Path.TEXT else Path.ARRAY), 0
        if context >= Context.ASSIGNMENT and self.category(target) == "S":
            return Path.TEXT, 0
        if context >= Context.EXPLICIT and self.category(source) == "S":
            return Path.TEXT, 0
        return None

    def category(self, oid: int) -> str:
        return self.catalog.type(oid).category

    def can(self, inputs: Sequence[int], targets: Sequence[int], context: Context) -> bool:
        """can_coerce_type."""
        has_generics = False
        for source, target in zip(inputs, targets, strict=True):
            if source == target or target == c.ANY:
                continue
            if target in generics.POLYMORPHIC:
                has_generics = True
                continue
            if source == c.UNKNOWN or self.pathway(target, source, context):
                continue
            if target == c.RECORD and self.catalog.type(source).kind == "c":
                continue
            if source == c.RECORD and self.catalog.type(target).kind == "c":
                continue
            return False
        if not has_generics:
            return True
        try:
            generics.resolve(
                self.catalog, inputs, targets, c.BOOL, self.common_type_or_none, is_question=True
            )
        except generics.Mismatch:
            return False
        return True

    # -- common types

    def common_type_or_none(self, types: Sequence[int]) -> int | None:
        """select_common_type without an error; None also where one can't be coerced to it."""
        try:
            found, _ = self._common(types)
        except _NoCommon:
            return None
        fits = all(self.can([one], [found], Context.IMPLICIT) for one in types)
        return found if fits else None

    def common_type(self, nodes: Sequence[n.Node], what: str) -> int:
        """select_common_type; ``what`` names the construct in the error."""
        types = [type_of(node) for node in nodes]
        try:
            return self._common(types)[0]
        except _NoCommon as error:
            first, second = (display(self.catalog, oid) for oid in error.types)
            raise self.places.error(
                f"{what} types {first} and {second} cannot be matched", nodes[error.index]
            ) from None

    def _common(self, types: Sequence[int]) -> tuple[int, int]:
        first = types[0]
        if first != c.UNKNOWN and all(one == first for one in types):
            return first, 0
        chosen, index = self.catalog.base_type(first), 0
        for i, one in enumerate(types[1:], 1):
            found = self.catalog.base_type(one)
            if found in (c.UNKNOWN, chosen):
                continue
            if chosen == c.UNKNOWN:
                chosen, index = found, i
            elif self.category(found) != self.category(chosen):
                raise _NoCommon((chosen, found), i)
            elif (
                not self.catalog.type(chosen).is_preferred
                and self.can([chosen], [found], Context.IMPLICIT)
                and not self.can([found], [chosen], Context.IMPLICIT)
            ):
                chosen, index = found, i
        return (c.TEXT if chosen == c.UNKNOWN else chosen), index

    def to_common(self, node: n.Node, target: int, what: str) -> n.Node:
        """coerce_to_common_type."""
        source = type_of(node)
        if source == target:
            return node
        if not self.can([source], [target], Context.IMPLICIT):
            first, second = display(self.catalog, source), display(self.catalog, target)
            raise self.places.error(f"{what} could not convert type {first} to {second}", node)
        return self.coerce(node, target, -1, Context.IMPLICIT, CallForm.IMPLICIT_CAST)

    # -- doing it

    def to_boolean(self, node: n.Node, what: str) -> n.Node:
        """coerce_to_boolean: an argument of AND, NOT, WHERE … must be one."""
        if type_of(node) == c.BOOL:
            return node
        found = self.to_target(node, c.BOOL, -1, Context.ASSIGNMENT, CallForm.IMPLICIT_CAST)
        if found is None:
            name = display(self.catalog, type_of(node))
            raise self.places.error(
                f"argument of {what} must be type boolean, not type {name}", node
            )
        return found

    def to_target(
        self, node: n.Node, target: int, typmod: int, context: Context, form: CallForm,
        at: int | None = None,
    ) -> n.Node | None:  # fmt: skip
        """coerce_to_target_type; None where there is no such cast."""
        if not self.can([type_of(node)], [target], context):
            return None
        collate = node if isinstance(node, n.Collate) else None
        inner = collate.argument if collate is not None else node
        result = self.coerce(inner, target, typmod, context, form, at)
        hide = result is not inner and not isinstance(result, n.Const)
        result = self._to_typmod(result, target, typmod, context, form, hide, at)
        if collate is not None and self.catalog.type(target).collation:
            return self.places.like(n.Collate(result, collate.collation), collate)
        return result

    def coerce(
        self, node: n.Node, target: int, typmod: int, context: Context, form: CallForm,
        at: int | None = None,
    ) -> n.Node:  # fmt: skip
        """coerce_type: of a pair that :meth:`can` accepts."""
        source = type_of(node)
        if source == target or target in _AS_IS:
            return node
        if target in generics.POLYMORPHIC and source != c.UNKNOWN:
            base = self.catalog.base_type(source)
            if base == source:
                return node
            return self.places.like(n.Relabel(node, base, form=form), node)
        if source == c.UNKNOWN and isinstance(node, n.Const):
            return self._constant(node, target, typmod)
        if isinstance(node, n.Collate):
            inner = self.coerce(node.argument, target, typmod, context, form, at)
            if not self.catalog.type(target).collation:
                return inner
            return self.places.like(n.Collate(inner, node.collation), node)
        if target == c.RECORD and self.catalog.type(source).kind == "c":
            return node
        path = self.pathway(target, source, context)
        base = self.catalog.base_type(target)
        if path is None:  # a row to a composite: never in a filter
            return self.places.like(disallowed(target, (node,)), node)
        if path[0] is Path.RELABEL:
            if base == target:
                found: n.Node = n.Relabel(node, target, form=form)
                return self.places.like(found, node, at)
            return self.places.like(disallowed(target, (node,)), node, at)
        found = self._build(node, path, base, -1, context, form, at)
        return found if base == target else self.places.like(disallowed(target, (found,)), found)

    def _constant(self, node: n.Const, target: int, typmod: int) -> n.Node:
        """A string literal of no type yet: its type's input function reads it."""
        base = self.catalog.base_type(target)
        row = self.catalog.type(base)
        text = node.text
        if text is not None:
            try:
                text = literals.canonical(
                    self.catalog, base, text, typmod if base == c.INTERVAL else -1
                )
            except BadLiteral as error:
                refusal = self.places.refusal(error, node)
                if not error.is_ours:
                    raise refusal from None
                self.places.doubts.append(refusal)
        kept = typmod if base == c.INTERVAL else -1
        found = self.places.like(n.Const(text, base, kept, row.collation), node)
        if base != target:
            return self.places.like(disallowed(target, (found,)), found)
        return found

    def _build(
        self, node: n.Node, path: tuple[Path, int], target: int, typmod: int, context: Context,
        form: CallForm, at: int | None,
    ) -> n.Node:  # fmt: skip
        found: n.Node
        if path[0] is Path.TEXT:
            found = n.CoerceViaIO(node, target, form=form)
        elif path[0] is Path.ARRAY:
            element = n.CaseArgument(
                self.catalog.element_type(type_of(node)), typmod_of(node), collation_of(node)
            )
            goal = self.catalog.element_type(target)
            inner = self.to_target(element, goal, typmod, context, form)
            if inner is None:
                raise AssertionError("an array's cast without its element's")
            found = n.ArrayCoerce(node, inner, target, typmod, form=form)
        else:
            function = self.catalog.rows.functions[path[1]]
            arguments = [node]
            if len(function.arguments) >= 2:
                arguments.append(n.Const(str(typmod), c.INT4))
            if len(function.arguments) == 3:
                is_explicit = "t" if context is Context.EXPLICIT else "f"
                arguments.append(n.Const(is_explicit, c.BOOL))
            found = n.FunctionCall(
                self.catalog.function(path[1]), tuple(arguments), target, typmod, form=form
            )
        return self.places.like(found, node, at)

    def _to_typmod(
        self, node: n.Node, target: int, typmod: int, context: Context, form: CallForm,
        hide: bool, at: int | None,
    ) -> n.Node:  # fmt: skip
        """coerce_type_typmod: cut to a length, round to a scale."""
        if typmod == typmod_of(node):
            return node
        if hide and isinstance(node, n.FunctionCall | n.Relabel | n.CoerceViaIO | n.ArrayCoerce):
            node = self.places.like(replace(node, form=CallForm.IMPLICIT_CAST), node)
        path = None if typmod < 0 else self._typmod_path(target)
        if path is not None:
            return self._build(node, path, target, typmod, context, form, at)
        return self._relabelled(node, target, typmod, form, at)

    def _typmod_path(self, target: int) -> tuple[Path, int] | None:
        element = self.catalog.element_type(target)
        cast = self.catalog.rows.casts.get((element or target, element or target))
        if cast is None:
            return None
        return (Path.ARRAY, 0) if element else (Path.FUNCTION, cast.function)

    def _relabelled(
        self, node: n.Node, target: int, typmod: int, form: CallForm, at: int | None
    ) -> n.Node:
        """applyRelabelType."""
        collation = collation_of(node)
        inner = node
        while isinstance(inner, n.Relabel):
            inner = inner.argument
        if isinstance(inner, n.Const):
            return self.places.like(n.Const(inner.text, target, typmod, collation), inner)
        if (type_of(inner), typmod_of(inner)) == (target, typmod):
            return inner
        return self.places.like(n.Relabel(inner, target, typmod, collation, form), node, at)


class _NoCommon(Exception):
    def __init__(self, types: tuple[int, int], index: int) -> None:
        super().__init__()
        self.types = types
        self.index = index
