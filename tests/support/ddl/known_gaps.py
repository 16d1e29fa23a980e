"""The rows of the table of DDL that fail today, and how.

An entry stands for all moments but ``ROLLED_BACK``, or names its moments. It goes as soon as
its row passes: the soak fails when a known gap does not show. What shows only at times, since it
depends on when a look at the catalog falls, stands in ``SOMETIMES`` too.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.ddl.row import Fault, Moment

GAPS: Mapping[str, Fault | Mapping[Moment, Fault]] = {
    "add a constant default": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "add a constant default nothing written": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
        Moment.SEVERAL_POLLS: Fault.DIFFERS,
    },
    "add a constant not null": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "add default now": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "add a default and drop it": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "add a default and set another": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "add a default vacuum full drop the default": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "add a volatile default": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "add a volatile default nothing written": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
        Moment.SEVERAL_POLLS: Fault.DIFFERS,
    },
    "add a volatile default drop it and update one row": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
        Moment.SEVERAL_POLLS: Fault.DIFFERS,
    },
    "add a serial column": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "add an identity column": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "add a column equal but for case and rename it": {Moment.SEVERAL_POLLS: Fault.PARKED},
    "drop and add under the same name": {Moment.SEVERAL_POLLS: Fault.DIFFERS},
    "drop and add under the same name nothing written": {Moment.SEVERAL_POLLS: Fault.DIFFERS},
    "drop and add with a default": {Moment.SEVERAL_POLLS: Fault.DIFFERS},
    "drop and add with another type": {Moment.SEVERAL_POLLS: Fault.PARKED},
    "add fill drop add under the same name": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
        Moment.SEVERAL_POLLS: Fault.DIFFERS,
    },
    "rename a column there and back": {Moment.SEVERAL_POLLS: Fault.COPIED},
    "larger numeric": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "numeric without a limit": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "shorter varchar": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "numeric of another scale": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "int to bigint": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "int to bigint nothing written": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "int to text": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "int times two": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "int times two nothing written": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "int to bigint negated": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "text to int": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "int to an array": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "int to bigint and back": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "timestamp to timestamptz": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "the key's type to bigint": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "drop an expression": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
        Moment.SEVERAL_POLLS: Fault.DIFFERS,
    },
    "drop an expression nothing written": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
        Moment.SEVERAL_POLLS: Fault.DIFFERS,
    },
    "set another expression": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "vacuum full of an older missing value": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "vacuum full and another default": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
    },
    "vacuum full and a grant": {Moment.STOPPED: Fault.PARKED, Moment.ONE_POLL: Fault.PARKED},
    "cluster of an older missing value": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "key moved to other columns": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "key moved to columns that were nullable": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "key widened by a column": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "key added to a table without": {Moment.ONE_POLL: Fault.PARKED},
    "key dropped": {Moment.ONE_POLL: Fault.PARKED},
    "replica identity without the key and back": {Moment.SEVERAL_POLLS: Fault.PARKED},
    "full without a key and back to a key": {Moment.SEVERAL_POLLS: Fault.PARKED},
    "rename a table": {
        Moment.STOPPED: Fault.NO_TARGET,
        Moment.ONE_POLL: Fault.NO_TARGET,
        Moment.SEVERAL_POLLS: Fault.NO_TARGET,
    },
    "rename a table nothing written": {
        Moment.STOPPED: Fault.NO_TARGET,
        Moment.ONE_POLL: Fault.NO_TARGET,
        Moment.SEVERAL_POLLS: Fault.NO_TARGET,
    },
    "set schema": {
        Moment.STOPPED: Fault.NO_TARGET,
        Moment.ONE_POLL: Fault.NO_TARGET,
        Moment.SEVERAL_POLLS: Fault.NO_TARGET,
    },
    "swap of an online migration": {
        Moment.STOPPED: Fault.NO_TARGET,
        Moment.ONE_POLL: Fault.NO_TARGET,
        Moment.SEVERAL_POLLS: Fault.NO_TARGET,
    },
    "swap of two tables": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
        Moment.SEVERAL_POLLS: Fault.DIFFERS,
    },
    "rename and another table under the old name": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "truncate and a new column": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "add a column to an inheritance parent": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "detach change and attach": {Moment.STOPPED: Fault.DIFFERS, Moment.ONE_POLL: Fault.DIFFERS},
    "detach truncate and attach": {Moment.STOPPED: Fault.DIFFERS, Moment.ONE_POLL: Fault.DIFFERS},
    "add a constant default to the root": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "add a volatile default to the root": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "int times two on the root": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "rename the root": {
        Moment.STOPPED: Fault.NO_TARGET,
        Moment.ONE_POLL: Fault.NO_TARGET,
        Moment.SEVERAL_POLLS: Fault.NO_TARGET,
    },
    "truncate the root": {
        Moment.STOPPED: Fault.COPIED,
        Moment.ONE_POLL: Fault.COPIED,
        Moment.SEVERAL_POLLS: Fault.COPIED,
    },
    "enum rename a value": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
        Moment.SEVERAL_POLLS: Fault.DIFFERS,
    },
    "enum rename a value nothing written": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
        Moment.SEVERAL_POLLS: Fault.DIFFERS,
    },
    "enum rename a value there and back": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
        Moment.SEVERAL_POLLS: Fault.DIFFERS,
    },
    "enum swap two values": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
        Moment.SEVERAL_POLLS: Fault.DIFFERS,
    },
    "enum array rename a value": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
        Moment.SEVERAL_POLLS: Fault.DIFFERS,
    },
    "composite add an attribute": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
        Moment.SEVERAL_POLLS: Fault.DIFFERS,
    },
    "composite drop an attribute": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
        Moment.SEVERAL_POLLS: Fault.DIFFERS,
    },
    "add a column of a domain with a default": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
    "add a column of a domain with a default and a check": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
        Moment.SEVERAL_POLLS: Fault.DIFFERS,
    },
    "out and in with changes": {Moment.STOPPED: Fault.DIFFERS, Moment.ONE_POLL: Fault.DIFFERS},
    "out and in": {Moment.STOPPED: Fault.NOT_COPIED, Moment.ONE_POLL: Fault.NOT_COPIED},
    "out and in with changes nothing written": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
    },
    "set to another table and back": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
    },
    "actions there and back": {Moment.STOPPED: Fault.DIFFERS, Moment.ONE_POLL: Fault.DIFFERS},
    "truncate not published there and back": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
    },
    "truncate not published": {Moment.STOPPED: Fault.DIFFERS, Moment.ONE_POLL: Fault.DIFFERS},
    "filter there and back": {Moment.STOPPED: Fault.DIFFERS, Moment.ONE_POLL: Fault.DIFFERS},
    "column list there and back": {Moment.STOPPED: Fault.DIFFERS, Moment.ONE_POLL: Fault.DIFFERS},
    "schema out and in with changes": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
    },
    "out of its schema and back with changes": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
    },
    "unlogged and logged with changes": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
    },
    "via root truncate a leaf": {Moment.STOPPED: Fault.DIFFERS, Moment.ONE_POLL: Fault.DIFFERS},
    "via root truncate a leaf nothing written": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
    },
    "via root truncate a mid level": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
    },
    "via root truncate a leaf and a new partition": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
    },
    "via root detach change and attach": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
    },
    "publish generated columns": {Moment.ONE_POLL: Fault.PARKED},
    "a mid level via root": {Moment.STOPPED: Fault.NO_TARGET, Moment.ONE_POLL: Fault.NO_TARGET},
    "ours via root truncate a leaf": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
        Moment.SEVERAL_POLLS: Fault.DIFFERS,
    },
    "ours via root truncate a leaf nothing written": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
        Moment.SEVERAL_POLLS: Fault.DIFFERS,
    },
    "ours via root truncate a mid level": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
        Moment.SEVERAL_POLLS: Fault.DIFFERS,
    },
    "ours via root truncate a leaf and a new partition": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
        Moment.SEVERAL_POLLS: Fault.DIFFERS,
    },
    "ours via root add a default": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
    },
}
SOMETIMES: frozenset[str] = frozenset()


def known_gap(row: str, moment: Moment) -> tuple[Fault | None, bool]:
    """How a row is known to fail at a moment, and whether only at times."""
    gap = GAPS.get(row)
    if isinstance(gap, Fault):
        gap = None if moment is Moment.ROLLED_BACK else gap
    elif gap is not None:
        gap = gap.get(moment)
    return gap, row in SOMETIMES
