"""A bound expression: every operator, function and cast resolved, as PostgreSQL's parser does.

The nodes are those of PostgreSQL's own expression trees, so that what is allowed, what is
printed and what is computed can each follow the server's code. Implicit casts are nodes of
their own. What a call computes is named by its function's signature, so a kernel is found by
looking up ``int4lt(int4,int4)``, and nothing has to be inferred again.

Types are OIDs (of built-in types; a column's type may be another's), ``typmod`` is -1 without
one, ``collation`` an OID of pg_collation (0: not collatable, 100: the database's default).

Source: src/include/nodes/primnodes.h.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Function:
    """A function of pg_proc.

    Attributes:
        oid: in pg_proc.
        signature: ``name(type,type)`` with internal type names, ``int4lt(int4,int4)``; the
            declared types, so polymorphic ones stay ``array_eq(anyarray,anyarray)``.
    """

    oid: int
    signature: str


@dataclass(frozen=True, slots=True)
class _Located:
    """A node that may stand somewhere in the filter's text.

    Attributes:
        location: the offset, in characters, that PostgreSQL's parser gives the node: an
            operator's, a name's first character. None for what the binder adds by itself. It
            only serves error messages, so two nodes that differ in it are equal.
    """

    location: int | None = field(default=None, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Const(_Located):
    """A constant: the text that its type's input function took, None for NULL.

    The text is the type's canonical output (``2024-01-01``, not ``Jan 1 2024``) as far as
    that can be known without a server.
    """

    text: str | None
    type_oid: int
    typmod: int = -1
    collation: int = 0


@dataclass(frozen=True, slots=True)
class Column(_Located):
    """A column of the relation; ``name`` is how changes find its values."""

    name: str
    type_oid: int
    typmod: int = -1
    collation: int = 0


class CallForm(Enum):
    """How a call is printed: PostgreSQL's CoercionForm."""

    CALL = "call"
    EXPLICIT_CAST = "explicit cast"
    IMPLICIT_CAST = "implicit cast"
    SQL_SYNTAX = "sql syntax"


@dataclass(frozen=True, slots=True)
class FunctionCall(_Located):
    """A function; ``form`` says how it was written, a cast among them.

    ``is_variadic``: its last argument is the array of a VARIADIC parameter.
    """

    function: Function
    arguments: tuple[Node, ...]
    type_oid: int
    typmod: int = -1
    collation: int = 0
    input_collation: int = 0
    form: CallForm = CallForm.CALL
    is_variadic: bool = False


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of pg_operator and the function behind it."""

    oid: int
    name: str
    function: Function


@dataclass(frozen=True, slots=True)
class OperatorCall(_Located):
    """``a < b``, ``- a``. One argument: a prefix operator."""

    operator: Operator
    arguments: tuple[Node, ...]
    type_oid: int
    collation: int = 0
    input_collation: int = 0


@dataclass(frozen=True, slots=True)
class DistinctFrom(_Located):
    """``a IS DISTINCT FROM b``; ``operator`` is the equality that it rests on."""

    operator: Operator
    arguments: tuple[Node, Node]
    input_collation: int = 0


@dataclass(frozen=True, slots=True)
class NullIf(_Located):
    """``NULLIF(a, b)``; ``operator`` is the equality that it rests on."""

    operator: Operator
    arguments: tuple[Node, Node]
    type_oid: int
    typmod: int = -1
    collation: int = 0
    input_collation: int = 0


@dataclass(frozen=True, slots=True)
class ScalarArray(_Located):
    """``a op ANY (array)`` (``is_any``) or ``a op ALL (array)``; IN and NOT IN, too."""

    operator: Operator
    scalar: Node
    array: Node
    is_any: bool
    input_collation: int = 0


class Connective(Enum):
    """AND, OR, NOT."""

    AND = "AND"
    OR = "OR"
    NOT = "NOT"


@dataclass(frozen=True, slots=True)
class Bool(_Located):
    """AND and OR of two or more, NOT of one."""

    connective: Connective
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class NullTest(_Located):
    """``IS [NOT] NULL``; for a row constructor, of every field (``is_row``)."""

    argument: Node
    is_null: bool
    is_row: bool = False


class TruthTest(Enum):
    """What ``IS [NOT] TRUE | FALSE | UNKNOWN`` asks for."""

    TRUE = "TRUE"
    NOT_TRUE = "NOT TRUE"
    FALSE = "FALSE"
    NOT_FALSE = "NOT FALSE"
    UNKNOWN = "UNKNOWN"
    NOT_UNKNOWN = "NOT UNKNOWN"


@dataclass(frozen=True, slots=True)
class BooleanTest(_Located):
    """``a IS TRUE`` and the like."""

    argument: Node
    truth: TruthTest


@dataclass(frozen=True, slots=True)
class RowCompare(_Located):
    """``(a, b) < (c, d)``: ``<  <=  >=  >`` only; = and <> become AND and OR of operators."""

    comparison: str
    operators: tuple[Operator, ...]
    left: tuple[Node, ...]
    right: tuple[Node, ...]
    input_collations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class When:
    """One arm of a CASE. With a CASE's own argument the condition is ``argument = value``,
    the argument standing for itself as a :class:`CaseArgument`."""

    condition: Node
    result: Node


@dataclass(frozen=True, slots=True)
class CaseArgument(_Located):
    """The value of the CASE's argument, inside its arms' conditions."""

    type_oid: int
    typmod: int = -1
    collation: int = 0


@dataclass(frozen=True, slots=True)
class Case(_Located):
    """``CASE [argument] WHEN … THEN … ELSE … END``; without ELSE a NULL constant stands."""

    argument: Node | None
    arms: tuple[When, ...]
    default: Node
    type_oid: int
    collation: int = 0


@dataclass(frozen=True, slots=True)
class Coalesce(_Located):
    """``COALESCE(a, b, …)``."""

    arguments: tuple[Node, ...]
    type_oid: int
    collation: int = 0


@dataclass(frozen=True, slots=True)
class MinMax(_Located):
    """``GREATEST`` (``is_greatest``) or ``LEAST``: NULLs are left aside."""

    is_greatest: bool
    arguments: tuple[Node, ...]
    type_oid: int
    collation: int = 0
    input_collation: int = 0


@dataclass(frozen=True, slots=True)
class Array(_Located):
    """``ARRAY[a, b]``; ``is_nested`` when the elements are arrays themselves."""

    elements: tuple[Node, ...]
    type_oid: int
    is_nested: bool = False
    collation: int = 0


@dataclass(frozen=True, slots=True)
class Row(_Located):
    """``ROW(a, b)``."""

    fields: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Relabel(_Located):
    """A cast that changes no bit: ``varchar`` read as ``text``."""

    argument: Node
    type_oid: int
    typmod: int = -1
    collation: int = 0
    form: CallForm = CallForm.EXPLICIT_CAST


@dataclass(frozen=True, slots=True)
class CoerceViaIO(_Located):
    """A cast by output and input function: ``'x'::text::int4``."""

    argument: Node
    type_oid: int
    collation: int = 0
    form: CallForm = CallForm.EXPLICIT_CAST


@dataclass(frozen=True, slots=True)
class ArrayCoerce(_Located):
    """A cast of each element; ``element`` is the cast of a :class:`CaseArgument`."""

    argument: Node
    element: Node
    type_oid: int
    typmod: int = -1
    collation: int = 0
    form: CallForm = CallForm.EXPLICIT_CAST


@dataclass(frozen=True, slots=True)
class Collate(_Located):
    """``a COLLATE "C"``."""

    argument: Node
    collation: int


Node: TypeAlias = (
    Const
    | Column
    | FunctionCall
    | OperatorCall
    | DistinctFrom
    | NullIf
    | ScalarArray
    | Bool
    | NullTest
    | BooleanTest
    | RowCompare
    | CaseArgument
    | Case
    | Coalesce
    | MinMax
    | Array
    | Row
    | Relabel
    | CoerceViaIO
    | ArrayCoerce
    | Collate
)
"""Any bound expression."""
