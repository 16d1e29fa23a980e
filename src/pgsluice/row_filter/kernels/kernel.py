"""What computes one function of pg_proc, and where each is registered.

A kernel is found by its function's signature. It computes one value from one row's values;
functions that a whole column can be computed with at once are in ``arrow.py``, too.

Rules:

- Exactly what PostgreSQL 18 gives, its errors included, or there is no kernel.
- Strict functions are never called with None.
- What depends on the server's locale is refused when the filter is made, or raises CannotKnow
  for the values that it matters for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from pgsluice.row_filter.values import Value

Compute: TypeAlias = Callable[..., Value]

#: Collations of pg_collation whose order is the code points', in every version.
CODE_POINT_ORDER: Final = frozenset({950, 951, 962, 811, 6411})
#: Those with the C locale's idea of characters: only ASCII has case.
C_CHARACTERS: Final = frozenset({950, 951, 962})


class Refused(Exception):
    """A call that cannot be computed exactly: the reason, and the way out."""

    def __init__(self, reason: str, way_out: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.way_out = way_out


class Known(Exception):
    """A call that the server's planner replaces by a constant, even for a NULL argument."""

    def __init__(self, value: Value) -> None:
        super().__init__()
        self.value = value


@dataclass(frozen=True, slots=True)
class Site:
    """Where a function is called.

    Attributes:
        types: the arguments' types, by OID.
        constants: the arguments' values where they are known beforehand; ``...`` where not.
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
    """One function.

    Attributes:
        signature: as in :class:`~pgsluice.row_filter.nodes.Function`.
        make: what computes it at a place; raises Refused.
        is_strict: None for any argument gives None, without a call.
        is_reversed: an SQL function of two arguments that names the second one first.
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
    """For a function that makes what computes, by where the call stands."""

    def take(make: Callable[[Site], Compute]) -> Callable[[Site], Compute]:
        for signature in signatures:
            KERNELS[signature] = Kernel(signature, make, is_strict)
        return make

    return take


def require_code_point_order(site: Site, operation: str) -> None:
    """Refuse what orders text by a collation that only the server has."""
    if site.collation not in CODE_POINT_ORDER:
        raise Refused(
            f"{operation} orders text by a collation whose order only the server knows",
            'add COLLATE "C" to the comparison',
        )
