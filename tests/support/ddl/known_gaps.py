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
        Moment.CAPTURE_ONLY: Fault.PARKED,
        Moment.TRANSACTION: Fault.PARKED,
        Moment.PREPARED: Fault.COPIED,
    },
    "add a constant default nothing written": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
        Moment.SEVERAL_POLLS: Fault.DIFFERS,
        Moment.CAPTURE_ONLY: Fault.DIFFERS,
        Moment.TRANSACTION: Fault.DIFFERS,
        Moment.PREPARED: Fault.COPIED,
    },
    "add a constant not null": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
        Moment.CAPTURE_ONLY: Fault.PARKED,
        Moment.TRANSACTION: Fault.PARKED,
        Moment.PREPARED: Fault.COPIED,
    },
    "add default now": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.SEVERAL_POLLS: Fault.PARKED,
        Moment.CAPTURE_ONLY: Fault.PARKED,
        Moment.TRANSACTION: Fault.PARKED,
        Moment.PREPARED: Fault.COPIED,
    },
    "add a default and drop it": Fault.PARKED,
    "add a default and set another": Fault.PARKED,
    "add a default vacuum full drop the default": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
        Moment.SEVERAL_POLLS: Fault.PARKED,
        Moment.CAPTURE_ONLY: Fault.DIFFERS,
    },
    "add a volatile default": Fault.PARKED,
    "add a volatile default nothing written": Fault.DIFFERS,
    "add a volatile default drop it and update one row": Fault.DIFFERS,
    "add a serial column": Fault.PARKED,
    "add an identity column": Fault.PARKED,
    "add a column equal but for case and rename it": {
        Moment.SEVERAL_POLLS: Fault.PARKED,
        Moment.CAPTURE_ONLY: Fault.PARKED,
    },
    "drop and add under the same name": {Moment.SEVERAL_POLLS: Fault.DIFFERS},
    "drop and add under the same name nothing written": {Moment.SEVERAL_POLLS: Fault.DIFFERS},
    "drop and add with a default": {Moment.SEVERAL_POLLS: Fault.DIFFERS},
    "drop and add with another type": {
        Moment.SEVERAL_POLLS: Fault.PARKED,
        Moment.PREPARED: Fault.PARKED,
    },
    "add fill drop add under the same name": Fault.DIFFERS,
    "rename a column there and back": {Moment.SEVERAL_POLLS: Fault.COPIED},
    "swap the names of two columns": {Moment.PREPARED: Fault.PARKED},
    "rename the key's column": {Moment.PREPARED: Fault.PARKED},
    "larger numeric": Fault.PARKED,
    "numeric without a limit": Fault.PARKED,
    "shorter varchar": Fault.PARKED,
    "numeric of another scale": Fault.PARKED,
    "int to bigint": Fault.PARKED,
    "int to bigint nothing written": Fault.PARKED,
    "int to text": Fault.PARKED,
    "int times two": Fault.PARKED,
    "int times two nothing written": Fault.PARKED,
    "int to bigint negated": Fault.PARKED,
    "text to int": Fault.PARKED,
    "int to an array": Fault.PARKED,
    "int to bigint and back": Fault.PARKED,
    "timestamp to timestamptz": Fault.PARKED,
    "the key's type to bigint": Fault.PARKED,
    "drop an expression": Fault.DIFFERS,
    "drop an expression nothing written": Fault.DIFFERS,
    "set another expression": Fault.PARKED,
    "vacuum full of an older missing value": Fault.PARKED,
    "vacuum full and another default": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.CAPTURE_ONLY: Fault.PARKED,
    },
    "vacuum full and a grant": {
        Moment.STOPPED: Fault.PARKED,
        Moment.ONE_POLL: Fault.PARKED,
        Moment.CAPTURE_ONLY: Fault.PARKED,
    },
    "cluster of an older missing value": Fault.PARKED,
    "key dropped and added with inserts between": {Moment.CAPTURE_ONLY: Fault.PARKED},
    "key dropped and added with updates between": {Moment.CAPTURE_ONLY: Fault.PARKED},
    "key moved to other columns": Fault.PARKED,
    "key moved to columns that were nullable": Fault.PARKED,
    "key widened by a column": Fault.PARKED,
    "key added to a table without": {Moment.ONE_POLL: Fault.PARKED, Moment.PREPARED: Fault.PARKED},
    "key dropped": {Moment.ONE_POLL: Fault.PARKED},
    "replica identity nothing with updates between": {Moment.CAPTURE_ONLY: Fault.DIFFERS},
    "replica identity without the key and back": {
        Moment.SEVERAL_POLLS: Fault.PARKED,
        Moment.CAPTURE_ONLY: Fault.PARKED,
        Moment.TRANSACTION: Fault.PARKED,
        Moment.PREPARED: Fault.PARKED,
    },
    "full without a key and back to a key": {
        Moment.SEVERAL_POLLS: Fault.PARKED,
        Moment.CAPTURE_ONLY: Fault.PARKED,
    },
    "rename a table": Fault.NO_TARGET,
    "rename a table nothing written": Fault.NO_TARGET,
    "set schema": Fault.NO_TARGET,
    "swap of an online migration": Fault.NO_TARGET,
    "swap of two tables": Fault.DIFFERS,
    "rename and another table under the old name": Fault.PARKED,
    "truncate and a new column": Fault.PARKED,
    "add a column to an inheritance parent": Fault.PARKED,
    "new partition": {Moment.TRANSACTION: Fault.COPIED, Moment.PREPARED: Fault.COPIED},
    "new default partition": {Moment.TRANSACTION: Fault.COPIED, Moment.PREPARED: Fault.COPIED},
    "detach change and attach": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
        Moment.CAPTURE_ONLY: Fault.DIFFERS,
        Moment.TRANSACTION: Fault.DIFFERS,
        Moment.PREPARED: Fault.DIFFERS,
    },
    "detach truncate and attach": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
        Moment.CAPTURE_ONLY: Fault.DIFFERS,
        Moment.TRANSACTION: Fault.DIFFERS,
        Moment.PREPARED: Fault.DIFFERS,
    },
    "add a constant default to the root": Fault.PARKED,
    "add a volatile default to the root": Fault.PARKED,
    "int times two on the root": Fault.PARKED,
    "attach a leaf with another missing value": {Moment.PREPARED: Fault.PARKED},
    "rename the root": Fault.NO_TARGET,
    "truncate the root": Fault.COPIED,
    "enum rename a value": Fault.DIFFERS,
    "enum rename a value nothing written": Fault.DIFFERS,
    "enum rename a value there and back": Fault.DIFFERS,
    "enum swap two values": Fault.DIFFERS,
    "enum array rename a value": Fault.DIFFERS,
    "composite add an attribute": Fault.DIFFERS,
    "composite drop an attribute": Fault.DIFFERS,
    "add a column of a domain with a default": Fault.PARKED,
    "add a column of a domain with a default and a check": Fault.DIFFERS,
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
    "ours via root truncate a leaf": Fault.DIFFERS,
    "ours via root truncate a leaf nothing written": Fault.DIFFERS,
    "ours via root truncate a mid level": Fault.DIFFERS,
    "ours via root truncate a leaf and a new partition": {
        Moment.STOPPED: Fault.DIFFERS,
        Moment.ONE_POLL: Fault.DIFFERS,
        Moment.SEVERAL_POLLS: Fault.DIFFERS,
        Moment.CAPTURE_ONLY: Fault.DIFFERS,
    },
    "ours via root add a default": Fault.PARKED,
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
