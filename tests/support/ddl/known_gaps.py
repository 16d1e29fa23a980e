"""The rows of the table of DDL that fail today, and how.

An entry stands for all moments at which the statements take effect, or names its moments. It
goes as soon as its row passes: the soak fails when a known gap does not show. What shows only at
times, since it depends on when a look at the catalog falls, stands in ``SOMETIMES`` too.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.ddl.row import UNDONE, Fault, Moment

GAPS: Mapping[str, Fault | Mapping[Moment, Fault]] = {
    # Under the root's name, nothing tells that there ever was such a partition (ADR 0038).
    "via root new partition filled and dropped": Fault.DIFFERS,
}
SOMETIMES: frozenset[str] = frozenset({"via root new partition filled and dropped"})


def known_gap(row: str, moment: Moment) -> tuple[Fault | None, bool]:
    """How a row is known to fail at a moment, and whether only at times."""
    gap = GAPS.get(row)
    if isinstance(gap, Fault):
        gap = None if moment in UNDONE else gap
    elif gap is not None:
        gap = gap.get(moment)
    return gap, row in SOMETIMES
