"""The registry of kernels: what computes one function of pg_proc.

A kernel is found by its function's signature. It computes one value from one row's values;
functions that can also be computed on whole columns are in ``arrow.py``, too.

Rules:

- A kernel gives exactly what PostgreSQL 18 gives, errors included; else there is no kernel.
- Strict functions are never called with None.
- What depends on the server's locale is refused when the filter is made, or raises CannotKnow for
  the values that it matters for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from pgsluice.row_filter.values import Value

Compute: TypeAlias = Callable[..., Value]

#: Collations of pg_collation that order text by code point, in every version.
CODE_POINT_ORDER: Final = frozenset({950, 951, 962, 811, 6411})
#: Collations under which only ASCII letters have case, as in the C locale.
C_CHARACTERS: Final = frozenset({950, 951, 962})


class Refused(Exception):
    """A call that cannot be computed exactly: the reason, and what the user can do instead."""

    def __init__(self, reason: str, way_out: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.way_out = way_out


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
        result_type: the call's type.
        collation: the input collation.
    """

    types: tuple[int, ...]
    constants: tuple[Value, ...]
    result_type: int
    collation: int

    @property
    def is_c(self) -> bool:
        """Whether only ASCII letters have case."""
        return self.collation in C_CHARACTERS


@dataclass(frozen=True, slots=True)
class Kernel:
    """One function of pg_proc.

    Attributes:
        signature: as in :class:`~pgsluice.row_filter.nodes.Function`.
        make: gives the computation for one call; raises Refused.
        is_strict: if an argument is None the result is None, without a call.
        is_reversed: an SQL function whose body has its two arguments in the other order.
    """

    signature: str
    make: Callable[[Site], Compute]
    is_strict: bool = True
    is_reversed: bool = False


KERNELS: Final[dict[str, Kernel]] = {}
"""Every function that can be computed, by signature."""

_REVERSED: Final = frozenset(
    {
        "integer_pl_date(int4,date)",
        "timedate_pl(time,date)",
        "timetzdate_pl(timetz,date)",
        "interval_pl_date(interval,date)",
        "interval_pl_time(interval,time)",
        "interval_pl_timestamp(interval,timestamp)",
        "interval_pl_timetz(interval,timetz)",
    }
)

F = TypeVar("F", bound=Compute)


def register(signature: str, compute: Compute) -> None:
    """Register a strict function that computes the same for every call."""
    is_reversed = signature in _REVERSED
    KERNELS[signature] = Kernel(signature, lambda site: compute, is_reversed=is_reversed)


def kernel(*signatures: str) -> Callable[[F], F]:
    """:func:`register` as a decorator."""

    def take(compute: F) -> F:
        for signature in signatures:
            register(signature, compute)
        return compute

    return take


def sited(
    *signatures: str, is_strict: bool = True
) -> Callable[[Callable[[Site], Compute]], Callable[[Site], Compute]]:
    """Register a function that makes the computation for each call."""

    def take(make: Callable[[Site], Compute]) -> Callable[[Site], Compute]:
        for signature in signatures:
            KERNELS[signature] = Kernel(signature, make, is_strict)
        return make

    return take


def require_code_point_order(site: Site, operation: str) -> None:
    """Refuse an operation that orders text by a collation that only the server has."""
    if site.collation not in CODE_POINT_ORDER:
        raise Refused(
            f"{operation} orders text by a collation whose order only the server knows",
            'add COLLATE "C" to the comparison',
        )
