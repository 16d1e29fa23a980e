"""A bound expression: every operator, function and cast is resolved, as by PostgreSQL's parser.

The nodes are those of PostgreSQL's own expression trees, so the check, the printing and the
computation can each follow the server's code. Implicit casts are nodes, too. A call names its
function by its signature, ``int4lt(int4,int4)``: a kernel is found by it, and no type has to be
inferred again.

Types are OIDs (of built-in types; a column's type may be user-defined). ``typmod`` is -1 if there
is none. ``collation`` is an OID of pg_collation (0: not collatable, 100: the database's default).

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
        signature: ``name(type,type)`` with internal names of the declared types:
            ``int4lt(int4,int4)``, polymorphic ``array_eq(anyarray,anyarray)``.
    """

    oid: int
    signature: str


@dataclass(frozen=True, slots=True)
class Located:
    """A node with a place in the filter's text.

    Attributes:
        location: the offset, in characters, that PostgreSQL's parser gives the node, for example of
            an operator or of a name's first character. None for nodes that the binder adds. It
            serves error messages only: two nodes that differ in nothing else are equal.
    """

    location: int | None = field(default=None, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Const(Located):
    """A constant: its text as its type's input function took it, None for NULL.

    The text is the type's canonical output (``2024-01-01``, not ``Jan 1 2024``) as far as that
    can be known without a server.
    """

    text: str | None
    type_oid: int
    typmod: int = -1
    collation: int = 0


@dataclass(frozen=True, slots=True)
class Column(Located):
    """A column of the relation; its values are found by ``name``."""

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
class FunctionCall(Located):
    """A call of a function; ``form`` says how it was written, for example as a cast.

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
class OperatorCall(Located):
    """``a < b``, ``- a``. One argument: a prefix operator."""

    operator: Operator
    arguments: tuple[Node, ...]
    type_oid: int
    collation: int = 0
    input_collation: int = 0


@dataclass(frozen=True, slots=True)
class DistinctFrom(Located):
    """``a IS DISTINCT FROM b``; ``operator`` is the equality that it uses."""

    operator: Operator
    arguments: tuple[Node, Node]
    input_collation: int = 0


@dataclass(frozen=True, slots=True)
class NullIf(Located):
    """``NULLIF(a, b)``; ``operator`` is the equality that it uses."""

    operator: Operator
    arguments: tuple[Node, Node]
    type_oid: int
    typmod: int = -1
    collation: int = 0
    input_collation: int = 0


@dataclass(frozen=True, slots=True)
class ScalarArray(Located):
    """``a op ANY (array)`` (``is_any``) or ``a op ALL (array)``; also IN and NOT IN."""

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
class Bool(Located):
    """AND or OR of two or more arguments, NOT of one."""

    connective: Connective
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class NullTest(Located):
    """``IS [NOT] NULL``; of a row constructor (``is_row``) it tests every field."""

    argument: Node
    is_null: bool
    is_row: bool = False


TRUTHS = {"TRUE": True, "FALSE": False, "UNKNOWN": None}
"""What ``IS [NOT]`` tests a boolean for, by its word."""


@dataclass(frozen=True, slots=True)
class BooleanTest(Located):
    """``argument IS [NOT] word``; the word is one of :data:`TRUTHS`."""

    argument: Node
    word: str
    is_negated: bool

    @property
    def test(self) -> str:
        """The test as PostgreSQL prints it: ``IS NOT TRUE``."""
        return f"IS NOT {self.word}" if self.is_negated else f"IS {self.word}"


@dataclass(frozen=True, slots=True)
class RowCompare(Located):
    """``(a, b) < (c, d)`` with ``< <= >= >``; = and <> become AND and OR of operators."""

    comparison: str
    operators: tuple[Operator, ...]
    left: tuple[Node, ...]
    right: tuple[Node, ...]
    input_collations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class When:
    """One arm of a CASE.

    If the CASE has an argument, the condition is ``argument = value`` with a
    :class:`CaseArgument` in the place of the argument.
    """

    condition: Node
    result: Node


@dataclass(frozen=True, slots=True)
class CaseArgument(Located):
    """The value of the CASE's argument, inside its arms' conditions."""

    type_oid: int
    collation: int = 0


@dataclass(frozen=True, slots=True)
class Case(Located):
    """``CASE [argument] WHEN … THEN … ELSE … END``; without ELSE the default is a NULL constant."""

    argument: Node | None
    arms: tuple[When, ...]
    default: Node
    type_oid: int
    collation: int = 0


@dataclass(frozen=True, slots=True)
class Coalesce(Located):
    """``COALESCE(a, b, …)``."""

    arguments: tuple[Node, ...]
    type_oid: int
    collation: int = 0


@dataclass(frozen=True, slots=True)
class MinMax(Located):
    """``GREATEST`` (``is_greatest``) or ``LEAST``: NULLs are ignored."""

    is_greatest: bool
    arguments: tuple[Node, ...]
    type_oid: int
    collation: int = 0
    input_collation: int = 0


@dataclass(frozen=True, slots=True)
class Array(Located):
    """``ARRAY[a, b]``; ``is_nested`` when the elements are arrays themselves."""

    elements: tuple[Node, ...]
    type_oid: int
    is_nested: bool = False
    collation: int = 0


@dataclass(frozen=True, slots=True)
class Row(Located):
    """``ROW(a, b)``."""

    fields: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Relabel(Located):
    """A cast that changes no bits: ``varchar`` to ``text``."""

    argument: Node
    type_oid: int
    typmod: int = -1
    collation: int = 0
    form: CallForm = CallForm.EXPLICIT_CAST


@dataclass(frozen=True, slots=True)
class Collate(Located):
    """``a COLLATE "C"``."""

    argument: Node
    collation: int


@dataclass(frozen=True, slots=True)
class Disallowed(Located):
    """Syntax that PostgreSQL's parser accepts but a publication never allows: ``a[1]``,
    CURRENT_DATE.

    It is bound like any expression, so that errors around it come first, as on the server. The
    check refuses it, so no bound filter holds one.
    """

    type_oid: int
    arguments: tuple[Node, ...] = ()
    collation: int = 0


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
    | Collate
    | Disallowed
)
"""Any bound expression."""
