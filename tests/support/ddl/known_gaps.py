"""The rows of the table of DDL that fail today, and how.

An entry stands for all moments at which the statements take effect, or names its moments. It
goes as soon as its row passes: the soak fails when a known gap does not show. What shows only at
times, since it depends on when a look at the catalog falls, stands in ``SOMETIMES`` too.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.ddl.row import UNDONE, Fault, Moment

GAPS: Mapping[str, Fault | Mapping[Moment, Fault]] = {
    "add a volatile default": {Moment.ONE_POLL: Fault.PARKED},
    "add a serial column": {Moment.ONE_POLL: Fault.PARKED},
    "add an identity column": {Moment.ONE_POLL: Fault.PARKED},
    "add a unique column with a reference": {Moment.ONE_POLL: Fault.PARKED},
    "add a column and drop it": {Moment.SEVERAL_POLLS: Fault.COPIED},
    "drop and add with another type": {Moment.ONE_POLL: Fault.PARKED},
    "rename a column there and back": {Moment.SEVERAL_POLLS: Fault.COPIED},
    "numeric of another scale": {Moment.ONE_POLL: Fault.PARKED},
    "int to bigint": {Moment.ONE_POLL: Fault.PARKED},
    "int to text": {Moment.ONE_POLL: Fault.PARKED},
    "int to bigint negated": {Moment.ONE_POLL: Fault.PARKED},
    "text to int": {Moment.ONE_POLL: Fault.PARKED},
    "int to an array": {Moment.ONE_POLL: Fault.PARKED},
    "int to bigint and back": {Moment.SEVERAL_POLLS: Fault.PARKED},
    "the key's type to bigint": {Moment.ONE_POLL: Fault.PARKED},
    "truncate and a new column": {Moment.ONE_POLL: Fault.PARKED},
    "add a volatile default to the root": {Moment.ONE_POLL: Fault.PARKED},
    "attach a leaf with another missing value": {Moment.ONE_POLL: Fault.PARKED},
    "truncate the root": Fault.COPIED,
    "add a column of a domain with a default": {
        Moment.ONE_POLL: Fault.PARKED,
        Moment.TRANSACTION: Fault.PARKED,
    },
    "actions there and back": {Moment.STOPPED: Fault.DIFFERS},
    "truncate not published there and back": {Moment.STOPPED: Fault.DIFFERS},
    "out of its schema and back with changes": {Moment.STOPPED: Fault.DIFFERS},
    "unlogged and logged with changes": {Moment.STOPPED: Fault.DIFFERS},
    "via root truncate the root": {Moment.STOPPED: Fault.COPIED, Moment.PREPARED: Fault.COPIED},
    "via root vacuum full of a leaf": {Moment.STOPPED: Fault.COPIED},
    "publish generated columns": {Moment.ONE_POLL: Fault.PARKED, Moment.PROMOTION: Fault.PARKED},
    "a mid level via root": {
        Moment.ONE_POLL: Fault.NO_TARGET,
        Moment.SEVERAL_POLLS: Fault.NO_TARGET,
        Moment.STOPPED: Fault.NO_TARGET,
        Moment.CAPTURE_ONLY: Fault.NO_TARGET,
        Moment.TRANSACTION: Fault.NO_TARGET,
        Moment.PROMOTION: Fault.NO_TARGET,
    },
    "ours via root truncate the root": {
        Moment.ONE_POLL: Fault.COPIED,
        Moment.PREPARED: Fault.COPIED,
        Moment.PROMOTION: Fault.COPIED,
    },
}
SOMETIMES: frozenset[str] = frozenset()


def known_gap(row: str, moment: Moment) -> tuple[Fault | None, bool]:
    """How a row is known to fail at a moment, and whether only at times."""
    gap = GAPS.get(row)
    if isinstance(gap, Fault):
        gap = None if moment in UNDONE else gap
    elif gap is not None:
        gap = gap.get(moment)
    return gap, row in SOMETIMES
