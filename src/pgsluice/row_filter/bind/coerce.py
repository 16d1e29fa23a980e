"""Coerce expressions to other types: whether it is possible, and the nodes that do it.

Source: src/backend/parser/parse_coerce.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum

from pgsluice.row_filter import catalog as c
from pgsluice.row_filter import nodes as n
from pgsluice.row_filter.bind import polymorphic
from pgsluice.row_filter.errors import FilterNotExact
from pgsluice.row_filter.nodes import CallForm
from pgsluice.row_filter.tree import collation_of, refused_at, type_of, typmod_of
from pgsluice.row_filter.values.canonical import canonical
from pgsluice.sql import SqlRefused


class Context(IntEnum):
    """Why a value is coerced; later contexts allow more casts."""

    IMPLICIT = 0
    ASSIGNMENT = 1
    EXPLICIT = 2


class Path(Enum):
    """The way in which a value of one type is converted to another, as in pg_cast; and ARRAY."""

    FUNCTION = "f"
    RELABEL = "b"
    TEXT = "i"
    ARRAY = "array"


@dataclass(frozen=True, slots=True)
class Coercion:
    """How a value is coerced; ``location`` is the cast's place, None: that of its argument."""

    context: Context
    form: CallForm
    location: int | None = None

    def location_on(self, argument: n.Node) -> int | None:
        """The place of an argument's cast in the filter's text; None if it has none."""
        return argument.location if self.location is None else self.location


IMPLICIT = Coercion(Context.IMPLICIT, CallForm.IMPLICIT_CAST)
_ASSIGNMENT = Coercion(Context.ASSIGNMENT, CallForm.IMPLICIT_CAST)
_CONTEXTS = {"i": Context.IMPLICIT, "a": Context.ASSIGNMENT, "e": Context.EXPLICIT}
_AS_IS = (c.ANY, c.ANYELEMENT, c.ANYNONARRAY, c.ANYCOMPATIBLE, c.ANYCOMPATIBLENONARRAY)
_VECTORS = (22, 30)  # int2vector, oidvector: arrays that are no targets of array casts


@dataclass(frozen=True, slots=True)
class Coercer:
    """Converts values with one catalog.

    Attributes:
        inexact: errors that only pgsluice has. The first one is raised after the whole filter is
            bound, so that errors of PostgreSQL come first.
    """

    catalog: c.Catalog
    inexact: list[FilterNotExact] = field(default_factory=list)

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
            return Path(cast.method), cast.function
        if target not in _VECTORS:
            goal, element = self.catalog.type(target).element, self.catalog.type(source).element
            if goal and element and (element_path := self.pathway(goal, element, context)):
                return (Path.TEXT if element_path[0] is Path.TEXT else Path.ARRAY), 0
        if context >= Context.ASSIGNMENT and self.category(target) == "S":
            return Path.TEXT, 0
        if context >= Context.EXPLICIT and self.category(source) == "S":
            return Path.TEXT, 0
        return None

    def category(self, oid: int) -> str:
        return self.catalog.type(oid).category

    def can(self, inputs: Sequence[int], targets: Sequence[int], context: Context) -> bool:
        """Whether each input type can become its target type in this context (can_coerce_type)."""
        has_generics = False
        for source, target in zip(inputs, targets, strict=True):
            if source == target or target == c.ANY:
                continue
            if target in polymorphic.POLYMORPHIC:
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
            polymorphic.resolve(
                self.catalog, inputs, targets, c.BOOL, self.common_type_or_none, is_question=True
            )
        except polymorphic.Mismatch:
            return False
        return True

    # -- common types

    def common_type_or_none(self, types: Sequence[int]) -> int | None:
        """select_common_type without an error: None if there is none, or a type does not coerce to
        it."""
        try:
            common = self._common(types)
        except _NoCommon:
            return None
        fits = all(self.can([source], [common], Context.IMPLICIT) for source in types)
        return common if fits else None

    def common_type(self, nodes: Sequence[n.Node], construct: str) -> int:
        """select_common_type; the error names the ``construct``."""
        types = [type_of(node) for node in nodes]
        try:
            return self._common(types)
        except _NoCommon as error:
            first, second = (self.catalog.display(oid) for oid in error.types)
            raise refused_at(
                f"{construct} types {first} and {second} cannot be matched", nodes[error.index]
            ) from None

    def _common(self, types: Sequence[int]) -> int:
        first = types[0]
        if first != c.UNKNOWN and all(oid == first for oid in types):
            return first
        chosen = self.catalog.base_type(first)
        for i, oid in enumerate(types[1:], 1):
            base = self.catalog.base_type(oid)
            if base in (c.UNKNOWN, chosen):
                continue
            if chosen == c.UNKNOWN:
                chosen = base
            elif self.category(base) != self.category(chosen):
                raise _NoCommon((chosen, base), i)
            elif (
                not self.catalog.type(chosen).is_preferred
                and self.can([chosen], [base], Context.IMPLICIT)
                and not self.can([base], [chosen], Context.IMPLICIT)
            ):
                chosen = base
        return c.TEXT if chosen == c.UNKNOWN else chosen

    def to_common(self, node: n.Node, target: int, construct: str) -> n.Node:
        """A node in the type that all arguments of a construct have (coerce_to_common_type).

        Raises:
            SqlRefused: its type cannot become that type.
        """
        source = type_of(node)
        if source == target:
            return node
        if not self.can([source], [target], Context.IMPLICIT):
            first, second = self.catalog.display(source), self.catalog.display(target)
            raise refused_at(f"{construct} could not convert type {first} to {second}", node)
        return self.coerce(node, target, -1, IMPLICIT)

    # -- doing it

    def to_boolean(self, node: n.Node, construct: str) -> n.Node:
        """coerce_to_boolean: an argument of AND, NOT, WHERE … must be one."""
        if type_of(node) == c.BOOL:
            return node
        coerced = self.to_target(node, c.BOOL, -1, _ASSIGNMENT)
        if coerced is None:
            name = self.catalog.display(type_of(node))
            raise refused_at(f"argument of {construct} must be type boolean, not type {name}", node)
        return coerced

    def to_target(
        self, node: n.Node, target: int, typmod: int, coercion: Coercion
    ) -> n.Node | None:
        """coerce_to_target_type; None if there is no such cast."""
        if not self.can([type_of(node)], [target], coercion.context):
            return None
        collate = node if isinstance(node, n.Collate) else None
        inner = collate.argument if collate is not None else node
        result = self.coerce(inner, target, typmod, coercion)
        hide = result is not inner and not isinstance(result, n.Const)
        result = self._to_typmod(result, target, typmod, coercion, hide)
        if collate is not None and self.catalog.type(target).collation:
            return n.Collate(result, collate.collation, location=collate.location)
        return result

    def coerce(self, node: n.Node, target: int, typmod: int, coercion: Coercion) -> n.Node:
        """A node in another type, which :meth:`can` has accepted (PostgreSQL's coerce_type)."""
        source = type_of(node)
        if source == target or target in _AS_IS:
            return node
        if target in polymorphic.POLYMORPHIC and source != c.UNKNOWN:
            base = self.catalog.base_type(source)
            if base == source:
                return node
            return n.Relabel(node, base, form=coercion.form, location=node.location)
        if source == c.UNKNOWN and isinstance(node, n.Const):
            return self._constant(node, target, typmod)
        if isinstance(node, n.Collate):
            inner = self.coerce(node.argument, target, typmod, coercion)
            if not self.catalog.type(target).collation:
                return inner
            return n.Collate(inner, node.collation, location=node.location)
        if target == c.RECORD and self.catalog.type(source).kind == "c":
            return node
        path = self.pathway(target, source, coercion.context)
        base = self.catalog.base_type(target)
        if path is None:  # a row cast to a composite type: never allowed in a filter
            return n.Disallowed(target, (node,), location=node.location)
        if path[0] is Path.RELABEL:
            location = coercion.location_on(node)
            if base == target:
                return n.Relabel(node, target, form=coercion.form, location=location)
            return n.Disallowed(target, (node,), location=location)
        given = typmod if path[0] is Path.FUNCTION and base == target else -1
        cast = self._build(node, path, base, given, coercion)
        return cast if base == target else n.Disallowed(target, (cast,), location=cast.location)

    def _constant(self, node: n.Const, target: int, typmod: int) -> n.Node:
        """A string literal of unknown type: read by the input function of its type."""
        base = self.catalog.base_type(target)
        row = self.catalog.type(base)
        text = node.text
        if text is not None:
            try:
                text = canonical(self.catalog, base, text, typmod if base == c.INTERVAL else -1)
            except SqlRefused as error:
                error.facts["position"] = node.location
                if not isinstance(error, FilterNotExact):
                    raise
                self.inexact.append(error)
        kept = typmod if base == c.INTERVAL else -1
        constant = n.Const(text, base, kept, row.collation, location=node.location)
        if base != target:
            return n.Disallowed(target, (constant,), location=node.location)
        return constant

    def _build(
        self, node: n.Node, path: tuple[Path, int], target: int, typmod: int, coercion: Coercion
    ) -> n.Node:
        form, location = coercion.form, coercion.location_on(node)
        if path[0] in (Path.TEXT, Path.ARRAY):
            return n.Disallowed(target, (node,), location=location)
        function = self.catalog.rows.functions[path[1]]
        arguments = [node]
        if len(function.arguments) >= 2:
            arguments.append(n.Const(str(typmod), c.INT4))
        else:
            typmod = -1  # the function does not cut to it
        if len(function.arguments) == 3:
            is_explicit = "t" if coercion.context is Context.EXPLICIT else "f"
            arguments.append(n.Const(is_explicit, c.BOOL))
        return n.FunctionCall(
            self.catalog.function(path[1]), tuple(arguments), target, typmod,
            form=form, location=location,
        )  # fmt: skip

    def _to_typmod(
        self, node: n.Node, target: int, typmod: int, coercion: Coercion, hide: bool
    ) -> n.Node:
        """coerce_type_typmod: cut to a length, round to a scale."""
        if typmod == typmod_of(node):
            return node
        if hide and isinstance(node, n.FunctionCall | n.Relabel):
            node = replace(node, form=CallForm.IMPLICIT_CAST)
        path = None if typmod < 0 else self._typmod_path(target)
        if path is not None:
            return self._build(node, path, target, typmod, coercion)
        return self._relabelled(node, target, typmod, coercion)

    def _typmod_path(self, target: int) -> tuple[Path, int] | None:
        element = self.catalog.type(target).element
        cast = self.catalog.rows.casts.get((element or target, element or target))
        if cast is None:
            return None
        return (Path.ARRAY, 0) if element else (Path.FUNCTION, cast.function)

    def _relabelled(self, node: n.Node, target: int, typmod: int, coercion: Coercion) -> n.Node:
        """applyRelabelType."""
        collation = collation_of(node)
        inner = node
        while isinstance(inner, n.Relabel):
            inner = inner.argument
        if isinstance(inner, n.Const):
            return n.Const(inner.text, target, typmod, collation, location=inner.location)
        if (type_of(inner), typmod_of(inner)) == (target, typmod):
            return inner
        location = coercion.location_on(node)
        return n.Relabel(inner, target, typmod, collation, coercion.form, location=location)


class _NoCommon(Exception):
    def __init__(self, types: tuple[int, int], index: int) -> None:
        super().__init__()
        self.types = types
        self.index = index
