"""One row of the table of DDL: statements, the moments at which they run, what has to come of it.

A row has tables of its own, so that many rows share one server and one run. In its SQL ``{t}``
stands for the row's own name: its main table, and the prefix of whatever else it makes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum


class Moment(Enum):
    """When a row's statements run."""

    ONE_POLL = "within one poll"
    """A run is live, and looks at the catalog before and after all of the statements."""
    SEVERAL_POLLS = "over several polls"
    """A run is live, and looks at the catalog after each statement."""
    STOPPED = "while all is stopped"
    CAPTURE_ONLY = "while only capture runs"
    """Where pgsluice keeps the publications, capture looks after each statement."""
    TRANSACTION = "in the transaction of changes"
    PREPARED = "in a streamed and prepared transaction"
    UNCONFIRMED = "in a commit that waits for a synchronous standby"
    """The stream brings all of a row's transaction, and no snapshot sees any of it for a while."""
    ROLLED_BACK = "rolled back to a savepoint"
    PROMOTION = "across a promotion"
    """The first statement runs on the old primary, the others on the new one."""
    BEFORE_LOCK = "during a copy, before its lock"
    """The table's copy has its snapshot, and no task has begun to read."""
    AFTER_LOCK = "during a copy, after its lock"
    """One range of the table is about to be read when the first statement comes; another one is
    read behind that statement; then the others follow."""
    BEFORE_FIRST_LOCK = "around a first copy, before its lock"
    """The table is made while a run is live; its first copy stands still as above."""
    AFTER_FIRST_LOCK = "around a first copy, after its lock"
    LOST = "lost by a promotion"
    """All statements run where the standby has not got them, a run looks at the catalog, and the
    standby is promoted: they never happened."""


class Outcome(Enum):
    """What pgsluice has to do. But for ``PARKED``, the target equals the source in the end."""

    NOTHING = "nothing"
    ADDED = "added"
    """A column comes to the target; nothing is copied."""
    IN_PLACE = "in place"
    """Nothing is copied."""
    VERIFIED = "verified"
    """Compared with the source, found equal, and not copied."""
    REPLACED = "replaced"
    """Only the rows of partitions that came or went are read again, if nothing else is to be."""
    COPIED = "copied"
    EQUAL = "equal"
    """By whatever means."""
    PARKED = "parked"


class Fault(Enum):
    """How a row fails: the first one that fits."""

    REFUSED = "the source refused a statement"
    PARKED = "parked"
    DIFFERS = "differs and says nothing"
    NO_TARGET = "no target"
    NOT_PARKED = "not parked"
    COPIED = "copied for nothing"
    NOT_COPIED = "not copied"
    NOT_ADDED = "not added"
    ADDED = "added for nothing"


class Publisher(Enum):
    """Who publishes a row's tables."""

    PGSLUICE = "pgsluice"
    """The source's publications are those that pgsluice makes."""
    SERVER = "the server"
    """The row's set-up makes publications, :attr:`Row.publications`."""
    OURS = "ours"
    """As ``PGSLUICE``, and a subscription's own publications choose: :attr:`Row.statement`."""


class Interrupted(str):
    """A statement that is cancelled while it waits for a reader of the row's table: what it has
    committed before stays."""

    __slots__ = ()


INSERTED = 20
"""Rows of the usual table before the first copy."""

PLAIN = """
CREATE TABLE {t} (id int PRIMARY KEY, a int, b text);
INSERT INTO {t} SELECT i, i, 'b' || i FROM generate_series(1, 20) i;
"""
BEFORE = """
UPDATE {t} SET a = a + 1 WHERE id = 1;
INSERT INTO {t} (id) VALUES (100);
"""
CHANGES = """
UPDATE {t} SET b = 'changed' WHERE id = 4;
DELETE FROM {t} WHERE id = 5;
INSERT INTO {t} (id) VALUES (102);
"""
AFTER = """
UPDATE {t} SET b = 'after' WHERE id = 2;
DELETE FROM {t} WHERE id = 3;
INSERT INTO {t} (id) VALUES (101);
"""
FIRST_COPIES = frozenset({Moment.BEFORE_FIRST_LOCK, Moment.AFTER_FIRST_LOCK})
"""For sequences (tests/support/sequences): a row of the table has its first copy behind it."""
ALL = frozenset(Moment) - FIRST_COPIES
DURING_COPIES = frozenset({Moment.BEFORE_LOCK, Moment.AFTER_LOCK})
UNDONE = frozenset({Moment.ROLLED_BACK, Moment.LOST})
"""When the statements have no effect in the end."""
IN_TRANSACTIONS = frozenset({Moment.TRANSACTION, Moment.PREPARED, Moment.UNCONFIRMED})
OUTSIDE_TRANSACTIONS = ALL - IN_TRANSACTIONS - {Moment.ROLLED_BACK}
"""For statements that a transaction does not allow."""


_ROWS = re.compile(r"\b(INSERT|UPDATE \S+ SET|DELETE FROM|TRUNCATE|AS SELECT)\b")


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        name: in words; with underscores it is ``{t}``.
        ddl: statements, each its own transaction. Changes may stand between them.
        expected: the outcome; at the moments in ``at`` another one. A statement that was rolled
            back to a savepoint is never seen: then the outcome is ``NOTHING``. One that a
            promotion lost may have been: then it is ``EQUAL``.
        setup: makes the tables.
        before, after: changes before and after the statements.
        tables: those whose targets are judged, as they are called in the end; without a schema
            they are public.
        first: what the tables were called at first, where that differs.
        standing: tables that are not sent any more -> how many rows their targets keep.
        absent: tables that must have no target.
        words: a regular expression for the error of a parked table.
        publications: the server's that the row made, for ``Publisher.SERVER``.
        statement: for ``Publisher.OURS``: CREATE PUBLICATION {t} ….
        moments: when it can run; see also :meth:`runs_at`.
        since: the first major version that knows the statement.
        load: a statement that another session repeats while the row's statements run.
        is_by_leaf: on 12, where a publication lists partitions and not their root, pgsluice's
            publications get a new one when capture finds it. Then the outcome is ``EQUAL``.
    """

    name: str
    ddl: tuple[str, ...]
    expected: Outcome
    setup: str = PLAIN
    before: str = BEFORE
    after: str = AFTER
    tables: tuple[str, ...] = ("{t}",)
    first: tuple[str, ...] | None = None
    standing: Mapping[str, int] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    at: Mapping[Moment, Outcome] = field(default_factory=dict)
    words: str = ""
    publisher: Publisher = Publisher.PGSLUICE
    publications: tuple[str, ...] = ("{t}",)
    statement: str = ""
    moments: frozenset[Moment] = ALL
    since: int = 12
    load: str = ""
    is_by_leaf: bool = False

    def on(self, version: int) -> Row:
        """The row as it is on a server of that major version."""
        return (
            replace(self, expected=Outcome.EQUAL, at={})
            if self.is_by_leaf and version < 13
            else self
        )

    @property
    def slug(self) -> str:
        """The row's own name in SQL."""
        return "t_" + re.sub(r"[^a-z0-9]+", "_", self.name.lower()).strip("_")

    def sql(self, text: str) -> str:
        """A text of the row with its own name filled in."""
        return text.replace("{t}", self.slug)

    def outcome(self, moment: Moment) -> Outcome:
        """What has to come of it at that moment."""
        default = {Moment.ROLLED_BACK: Outcome.NOTHING, Moment.LOST: Outcome.EQUAL}
        # Copied anyway, or not told from a copy.
        is_open = moment is Moment.UNCONFIRMED or moment in DURING_COPIES | FIRST_COPIES
        if is_open and self.expected is not Outcome.PARKED:
            return Outcome.EQUAL
        return self.at.get(moment, default.get(moment, self.expected))

    def runs_at(self, moment: Moment, version: int) -> bool:
        """Whether the row can run at a moment on a server of that major version.

        Prepared transactions are sent as such from 15 on, slots survive a promotion from 17 on.
        A change of rows that is lost ends the run, which is another test's subject.
        """
        if moment not in self.moments or version < self.since:
            return False
        if moment is Moment.PREPARED and version < 15:
            return False
        if moment is Moment.LOST and any(_ROWS.search(text) for text in self.ddl):
            return False
        return version >= 17 or moment not in (Moment.PROMOTION, Moment.LOST)
