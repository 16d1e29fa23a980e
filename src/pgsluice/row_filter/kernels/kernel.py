"""The registry of kernels: functions that compute one function of pg_proc.

A kernel is found by its function's signature. It computes one value from one row's values;
functions that can also be computed on whole columns are in ``arrow/``, too.

Rules:

- A kernel returns exactly the results of PostgreSQL 18, including errors; otherwise there is no
  kernel.
- Strict functions are never called with None.
- Results that depend on the database's locale and encoding follow the site's ``text_rules``. If
  these are unknown, the filter is refused when it is created, or CannotKnow is raised for the
  affected values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from pgsluice.definitions.text_rules import ANY_LOCALE, CollationRules, TextRules
from pgsluice.row_filter.nodes import Node
from pgsluice.row_filter.values import Value

Compute: TypeAlias = Callable[..., Value]


_SERVER_CAN: Final = "a publication of the server (PostgreSQL 15 or newer) can filter by it"


class Refused(Exception):
    """An expression that cannot be computed exactly.

    Attributes:
        way_out: what the user can do instead: always, a publication of the server.
        node: the first node that cannot be computed; the planner sets it.
    """

    def __init__(
        self, reason: str, way_out: str | None = None, *, node: Node | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.way_out = f"{way_out}, or {_SERVER_CAN}" if way_out else _SERVER_CAN
        self.node = node


class KnownResult(Exception):
    """A call that the server's planner replaces by a constant, even if an argument is NULL."""

    def __init__(self, value: Value) -> None:
        super().__init__()
        self.value = value


@dataclass(frozen=True, slots=True)
class Site:
    """One call of a function in an expression.

    Attributes:
        types: the arguments' types, by OID.
        constants: the arguments' values where they are constant, else ``...``.
        result_type: the call's type, by OID.
        collation: the input collation, by OID.
    """

    types: tuple[int, ...]
    constants: tuple[Value, ...]
    result_type: int
    collation: int
    text_rules: TextRules = ANY_LOCALE

    @property
    def collation_rules(self) -> CollationRules:
        """The known rules of the input collation."""
        return self.text_rules.collation(self.collation)

    @property
    def has_code_point_order(self) -> bool:
        """Whether the input collation orders text by its code points."""
        rules = self.text_rules
        return rules.has_code_point_order and self.collation_rules.has_byte_order


@dataclass(frozen=True, slots=True)
class Kernel:
    """One function of pg_proc.

    Attributes:
        make: gives the computation for one call; raises Refused.
        is_strict: if an argument is None the result is None, without a call.
        reads_characters: it asks for the case or the class of letters.
        is_reversed: an SQL function whose body has its two arguments in the other order, and so
            has the computation.
    """

    make: Callable[[Site], Compute]
    is_strict: bool = True
    is_reversed: bool = False
    reads_characters: bool = False


KERNELS: Final[dict[str, Kernel]] = {}
"""Every function that can be computed, by its signature as in
:class:`~pgsluice.row_filter.nodes.Function`."""

F = TypeVar("F", bound=Compute)


def register(signatures: str, compute: Compute, *, is_reversed: bool = False) -> None:
    """Register a strict function that computes the same for every call.

    Args:
        signatures: one, or several with blanks between.
    """
    for signature in signatures.split():
        KERNELS[signature] = Kernel(lambda site: compute, is_reversed=is_reversed)


def register_all(computes: Mapping[str, Compute]) -> None:
    """:func:`register` of several functions."""
    for signatures, compute in computes.items():
        register(signatures, compute)


def kernel(signatures: str) -> Callable[[F], F]:
    """Register the function that follows, as :func:`register`."""

    def take(compute: F) -> F:
        register(signatures, compute)
        return compute

    return take


def sited(
    *signatures: str, is_strict: bool = True, reads_characters: bool = False
) -> Callable[[Callable[[Site], Compute]], Callable[[Site], Compute]]:
    """Register a function that makes the computation for each call."""

    def take(make: Callable[[Site], Compute]) -> Callable[[Site], Compute]:
        for signature in signatures:
            KERNELS[signature] = Kernel(make, is_strict, reads_characters=reads_characters)
        return make

    return take


def require_code_point_order(site: Site) -> None:
    """Refuse a comparison that orders text by a collation that only the server has."""
    if not site.has_code_point_order:
        raise Refused(
            "this comparison orders text by a collation whose order only the server knows",
            'add COLLATE "C" to the comparison',
        )
