"""Sessions that write at the same time, with savepoints, as hypothesis draws them.

A script is a list of steps; each step belongs to one session, and each session has ids of its
own, so that nobody waits for another's locks. What the database holds in the end is the
server's business; the script only says what was asked of it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
from hypothesis import strategies as st
from tests.support.databases import Database

if TYPE_CHECKING:  # deltalake and Spark are for those who call interleave
    from tests.support.pipeline import MakePipeline

TABLES = ("t", "u")
SESSIONS = 3
_RANGE = 100_000
_PADDING = "repeat('x', 120)"


@dataclass(frozen=True)
class Step:
    """What one session does next.

    Attributes:
        session: whose.
        kind: ``insert``, ``update``, ``delete``, ``savepoint``, ``release``, ``roll back to``,
            ``commit``, ``roll back`` or ``prepare``.
        table: for the first three.
        rows: how many.
    """

    session: int
    kind: str
    table: str = "t"
    rows: int = 0


_KINDS = (
    *["insert"] * 5, *["update"] * 2, "delete", *["savepoint"] * 2, "release",
    *["roll back to"] * 2, *["commit"] * 2, "roll back", *["prepare"] * 2,
)  # fmt: skip
_ROWS = (1, 5, 300, 900)


def scripts(max_steps: int = 40) -> st.SearchStrategy[list[Step]]:
    """Scripts of up to so many steps, for hypothesis."""
    step = st.builds(
        Step,
        st.integers(0, SESSIONS - 1),
        st.sampled_from(_KINDS),
        st.sampled_from(TABLES),
        st.sampled_from(_ROWS),
    )
    return st.lists(step, min_size=max_steps // 2, max_size=max_steps)


def a_script(chance: random.Random, steps: int = 60) -> list[Step]:
    """One script, for runs that are too long for hypothesis."""
    return [
        Step(
            chance.randrange(SESSIONS),
            chance.choice(_KINDS),
            chance.choice(TABLES),
            chance.choice(_ROWS),
        )
        for _ in range(steps)
    ]


@dataclass
class _Session:
    connection: psycopg.Connection[Any]
    range: int
    savepoints: int = 0
    is_open: bool = False
    next_id: dict[str, int] = field(default_factory=dict)


def create_tables(db: Database) -> None:
    """The tables that scripts write to; the second sends whole old rows."""
    db.execute(
        *(f"CREATE TABLE {table} (id int PRIMARY KEY, n int, v text)" for table in TABLES),
        "ALTER TABLE u REPLICA IDENTITY FULL",
        f"ALTER DATABASE \"{db.name}\" SET logical_decoding_work_mem = '64kB'",
    )


class Sessions:
    """Runs scripts; a context manager that ends what it opened.

    Args:
        db: with the tables.
        first: the first range of ids that is free.
    """

    def __init__(self, db: Database, first: int = 0) -> None:
        self._db = db
        self._ranges = first + SESSIONS
        self._sessions = [_Session(db.connect(), first + 1 + n) for n in range(SESSIONS)]
        self._prepared: list[str] = []
        self.transactions = 0

    @property
    def ranges(self) -> int:
        """Ranges of ids that are used by now."""
        return self._ranges

    def __enter__(self) -> Sessions:
        return self

    def __exit__(self, *_: object) -> None:
        for session in self._sessions:
            session.connection.close()
        for gid in self._prepared:
            self._db.execute(f"ROLLBACK PREPARED '{gid}'")

    def run(self, steps: Sequence[Step]) -> None:
        """Every step, then a commit of what is open and of every second prepared one."""
        for step in steps:
            self._do(self._sessions[step.session], step)
        for session in self._sessions:
            if session.is_open:
                self._end(session, "COMMIT")
        for gid in self._prepared[::2]:
            self._db.execute(f"COMMIT PREPARED '{gid}'")
        self._prepared = self._prepared[1::2]

    def _do(self, session: _Session, step: Step) -> None:
        if not session.is_open and step.kind in ("insert", "update", "delete"):
            session.connection.execute("BEGIN")
            session.is_open, session.savepoints = True, 0
            self.transactions += 1
        if not session.is_open:
            return
        match step.kind:
            case "insert":
                last = session.next_id.get(step.table, self._lowest(session)) + step.rows
                session.connection.execute(
                    f"INSERT INTO {step.table} SELECT i, 0, {_PADDING}"
                    f" FROM generate_series({last - step.rows + 1}, {last}) i"
                )
                session.next_id[step.table] = last
            case "update":
                where = self._mine(session)
                session.connection.execute(f"UPDATE {step.table} SET n = n + 1 {where}")
            case "delete":
                where = f"{self._mine(session)} AND id % 7 = {step.rows % 7}"
                session.connection.execute(f"DELETE FROM {step.table} {where}")
            case "savepoint":
                session.savepoints += 1
                session.connection.execute(f"SAVEPOINT s{session.savepoints}")
            case "release" if session.savepoints:
                session.connection.execute(f"RELEASE s{session.savepoints}")
                session.savepoints -= 1
            case "roll back to" if session.savepoints:
                session.connection.execute(f"ROLLBACK TO s{session.savepoints}")
            case "commit":
                self._end(session, "COMMIT")
            case "roll back":
                self._end(session, "ROLLBACK")
            case "prepare":
                gid = f"{self._db.name}-{session.range}"
                self._end(session, f"PREPARE TRANSACTION '{gid}'")
                self._prepared.append(gid)

    def _end(self, session: _Session, statement: str) -> None:
        session.connection.execute(statement)
        session.is_open = False
        if statement.startswith("PREPARE"):  # its rows stay locked: go on with other ids
            self._ranges += 1
            session.range = self._ranges
            session.next_id.clear()

    def _lowest(self, session: _Session) -> int:
        return session.range * _RANGE

    def _mine(self, session: _Session) -> str:
        lowest = self._lowest(session)
        return f"WHERE id > {lowest} AND id <= {lowest + _RANGE}"


def interleave(
    pipeline: MakePipeline, shop: Database, chance: random.Random, transactions: int
) -> int:
    """Random scripts, so many transactions at least; after each, target equals source."""
    create_tables(shop)
    one = pipeline(shop, source="two_phase = true")
    one.once()
    done = ranges = 0
    while done < transactions:
        with Sessions(shop, ranges) as sessions:
            sessions.run(a_script(chance))
            ranges, done = sessions.ranges, done + sessions.transactions
            one.once()
            one.assert_equal("t", "u")
    return done
