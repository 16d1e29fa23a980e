"""The syntax tree: what was written, before any name is looked up.

``location`` is the offset that PostgreSQL's parser gives a node, for example of an operator or of
a name's first character. It serves error messages only.

Source: src/include/nodes/parsenodes.h.
"""

from __future__ import annotations

from dataclasses import dataclass

from pgsluice.row_filter.nodes import CallForm, Connective


class Syntax:
    """Any expression as written."""

    __slots__ = ()
    location: int


@dataclass(frozen=True, slots=True)
class ColumnRef(Syntax):
    """``a``, ``t.a``, ``s.t.a``, ``t.*`` (the last name None)."""

    names: tuple[str | None, ...]
    location: int


@dataclass(frozen=True, slots=True)
class Parameter(Syntax):
    """``$1``."""

    number: str
    location: int


@dataclass(frozen=True, slots=True)
class Literal(Syntax):
    """``kind``: integer, number, string, bits, boolean or null."""

    kind: str
    value: str
    location: int


@dataclass(frozen=True, slots=True)
class TypeName:
    """A type as written; ``schema`` and ``modifiers`` are None if they were not written."""

    name: str
    schema: str | None
    modifiers: tuple[Syntax, ...] | None
    dimensions: int
    is_setof: bool
    location: int


@dataclass(frozen=True, slots=True)
class TypeCast(Syntax):
    """``a::t``, ``CAST(a AS t)``, ``t 'literal'``."""

    argument: Syntax
    type_name: TypeName
    location: int


@dataclass(frozen=True, slots=True)
class CollateClause(Syntax):
    argument: Syntax
    names: tuple[str, ...]
    location: int


@dataclass(frozen=True, slots=True)
class Field(Syntax):
    """``.name`` after an expression; None for ``.*``."""

    argument: Syntax
    name: str | None
    location: int


@dataclass(frozen=True, slots=True)
class Subscript(Syntax):
    """``a[i]``, ``a[i:j]``."""

    argument: Syntax
    bounds: tuple[Syntax, ...]
    is_slice: bool
    location: int


@dataclass(frozen=True, slots=True)
class OperatorUse(Syntax):
    """``left op right``; ``left`` is None for a prefix operator."""

    name: str
    schema: str | None
    left: Syntax | None
    right: Syntax
    location: int


@dataclass(frozen=True, slots=True)
class ArrayComparison(Syntax):
    """``left op ANY (array)``, ``left op ALL (array)``."""

    name: str
    schema: str | None
    left: Syntax
    array: Syntax
    is_any: bool
    location: int


@dataclass(frozen=True, slots=True)
class InList(Syntax):
    left: Syntax
    items: tuple[Syntax, ...]
    is_negated: bool
    location: int


@dataclass(frozen=True, slots=True)
class Between(Syntax):
    left: Syntax
    low: Syntax
    high: Syntax
    is_negated: bool
    is_symmetric: bool
    location: int


@dataclass(frozen=True, slots=True)
class Distinct(Syntax):
    left: Syntax
    right: Syntax
    is_negated: bool
    location: int


@dataclass(frozen=True, slots=True)
class Logic(Syntax):
    """AND and OR of two or more, NOT of one."""

    connective: Connective
    arguments: tuple[Syntax, ...]
    location: int


@dataclass(frozen=True, slots=True)
class IsNull(Syntax):
    argument: Syntax
    is_null: bool
    location: int


@dataclass(frozen=True, slots=True)
class IsTruth(Syntax):
    """``argument IS [NOT] word``: TRUE, FALSE or UNKNOWN."""

    argument: Syntax
    word: str
    is_negated: bool
    location: int


@dataclass(frozen=True, slots=True)
class Argument:
    """A function's argument; ``name`` if it was given by name."""

    value: Syntax
    name: str | None
    location: int


@dataclass(frozen=True, slots=True)
class Call(Syntax):
    """``f(a, b)``, with the clauses that only aggregates and window functions take."""

    name: str
    schema: str | None
    arguments: tuple[Argument, ...]
    location: int
    form: CallForm = CallForm.CALL
    is_variadic: bool = False
    is_star: bool = False
    is_distinct: bool = False
    has_order: bool = False
    has_filter: bool = False
    has_within_group: bool = False
    has_over: bool = False


@dataclass(frozen=True, slots=True)
class ChoiceCall(Syntax):
    """A call of NULLIF, COALESCE, GREATEST or LEAST, which are no functions."""

    name: str
    arguments: tuple[Syntax, ...]
    location: int


@dataclass(frozen=True, slots=True)
class CaseWhen:
    condition: Syntax
    result: Syntax
    location: int


@dataclass(frozen=True, slots=True)
class CaseCall(Syntax):
    argument: Syntax | None
    arms: tuple[CaseWhen, ...]
    default: Syntax | None
    location: int


@dataclass(frozen=True, slots=True)
class ArrayList(Syntax):
    elements: tuple[Syntax, ...]
    location: int


@dataclass(frozen=True, slots=True)
class RowList(Syntax):
    fields: tuple[Syntax, ...]
    location: int


@dataclass(frozen=True, slots=True)
class Refused(Syntax):
    """Syntax that PostgreSQL parses but never allows in a filter: sub-selects, CURRENT_DATE,
    JSON_VALUE.

    ``type_name`` is its type if that is fixed.
    """

    type_name: str | None
    location: int


@dataclass(frozen=True, slots=True)
class XmlCall(Syntax):
    """XMLELEMENT and similar calls, ``IS DOCUMENT``: PostgreSQL allows them, pgsluice does not."""

    name: str
    location: int
