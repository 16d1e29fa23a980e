"""Sessions that change the tables at the same time, each as its own dice say."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from tests.soak.chaos.tables import KINDS, Kind
from tests.support.databases import Database

_KEPT = 30_000
"""Statements that the journal keeps."""
_IDS_OF_A_SESSION = 10_000
_LIVELY_IDS = 400
_MOST_PREPARED = 2
_LOCK_TIMEOUT = "2s"
_MOST_CHANGES = 100
"""Schema changes that a minute has at most."""


@dataclass
class Journal:
    """What the sessions did, for the message of a failure."""

    began: float = field(default_factory=time.monotonic)
    entries: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def note(self, session: str, text: str) -> None:
        self.entries.append(f"{time.monotonic() - self.began:7.2f} {session}: {text}")

    def about(self, name: str, count: int = 25) -> list[str]:
        """The last statements that name a table, and what was killed between them."""
        found = [line for line in self.entries if name in line or " chaos: " in line]
        return found[-count:]


class Session(threading.Thread):
    """One session of random transactions, until ``ended``.

    Args:
        number: its ids are its own, so that sessions seldom wait for each other.
        seed: of its dice.
    """

    def __init__(
        self, database: Database, number: int, seed: int, journal: Journal, ended: threading.Event
    ) -> None:
        super().__init__(name=f"session {number}")
        self.dice = random.Random(f"{seed} {number}")
        self.transactions = 0
        self._database = database
        self._number = number
        self._journal = journal
        self._ended = ended
        self._prepared: list[str] = []

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                self._connected()
            except psycopg.OperationalError as error:  # the server crashed
                self._note(f"disconnected: {_first_line(error)}")
                self._ended.wait(0.2)

    def _connected(self) -> None:
        with self._database.connect() as connection:
            connection.execute(f"SET lock_timeout = '{_LOCK_TIMEOUT}'")
            mine = connection.execute(_PREPARED, [f"{self._number}-%"]).fetchall()
            self._prepared = [gid for (gid,) in mine]
            while not self._ended.is_set():
                try:
                    self._transaction(connection)
                except psycopg.Error as error:
                    self._note(f"ROLLBACK after {_first_line(error)}")
                    connection.rollback()
                if len(self._prepared) > self.dice.randrange(_MOST_PREPARED):
                    self._end_prepared(connection)
                self._ended.wait(self.dice.uniform(0, 0.06))

    def _transaction(self, connection: psycopg.Connection[Any]) -> None:
        self._do(connection, "BEGIN")
        savepoints = 0
        for _ in range(self.dice.choice((1, 1, 2, 3, 6))):
            chance = self.dice.random()
            if chance < 0.15:
                savepoints += 1
                self._do(connection, f"SAVEPOINT s{savepoints}")
            elif chance < 0.25 and savepoints:
                self._do(connection, f"ROLLBACK TO s{savepoints}")
            else:
                self._do(connection, self._change(self.dice.choice(KINDS)))
        self.transactions += 1
        end = self.dice.random()
        if end < 0.85:
            self._do(connection, "COMMIT")
        elif end < 0.93:
            self._do(connection, "ROLLBACK")
        else:
            name = f"{self._number}-{self.transactions}"
            self._do(connection, f"PREPARE TRANSACTION '{name}'")
            self._prepared.append(name)

    def _change(self, kind: Kind) -> str:
        if not kind.changes or self.dice.random() < 0.4:
            # Some are large enough to be streamed before their commit.
            statement, count = kind.insert, self.dice.choice((1, 5, 20, 20, 600))
        else:
            statement, count = self.dice.choice(kind.changes), self.dice.choice((1, 1, 10, 50))
        low = self._number * _IDS_OF_A_SESSION + self.dice.randrange(_LIVELY_IDS)
        for name, value in (("t", kind.table), ("low", low), ("high", low + count - 1)):
            statement = statement.replace(f"{{{name}}}", str(value))
        return statement

    def _end_prepared(self, connection: psycopg.Connection[Any]) -> None:
        name = self._prepared.pop(0)
        how = "COMMIT" if self.dice.random() < 0.7 else "ROLLBACK"
        self._do(connection, f"{how} PREPARED '{name}'")

    def _do(self, connection: psycopg.Connection[Any], statement: str) -> None:
        self._note(statement)
        connection.execute(statement.encode())

    def _note(self, text: str) -> None:
        self._journal.note(self.name, text)


def commit_prepared(database: Database) -> None:
    """Commit what sessions have left prepared: snapshots for copies wait for it."""
    for (gid,) in database.execute("SELECT gid FROM pg_prepared_xacts"):
        database.execute(f"COMMIT PREPARED '{gid}'")


def _first_line(error: psycopg.Error) -> str:
    return str(error).partition("\n")[0]


class SchemaSession(threading.Thread):
    """A session that changes the schema, until ``ended``.

    Args:
        statements: templates; see :mod:`tests.soak.chaos.tables`.
        minute: of the same database: its statements have numbers of their own.
    """

    def __init__(
        self,
        database: Database,
        statements: Sequence[str],
        seed: int,
        journal: Journal,
        ended: threading.Event,
        minute: int,
    ) -> None:
        super().__init__(name="schema")
        self._number = minute * _MOST_CHANGES
        self.changes = 0
        self.late: set[str] = set()
        self._dice = random.Random(f"{seed} schema")
        self._database = database
        self._statements = statements
        self._journal = journal
        self._ended = ended

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                self._connected()
            except psycopg.OperationalError as error:  # the server crashed
                self._journal.note(self.name, f"disconnected: {_first_line(error)}")
                self._ended.wait(0.2)

    def _connected(self) -> None:
        with self._database.connect() as connection:
            connection.execute("SET lock_timeout = '1s'")
            while not self._ended.wait(self._dice.uniform(0.1, 1.2)):
                self._number += 1
                statement = self._statement(connection, self._number)
                if statement is None:
                    continue
                self._journal.note(self.name, statement)
                try:
                    connection.execute(statement.encode())
                except psycopg.Error as error:
                    connection.rollback()
                    self._journal.note(self.name, f"failed: {_first_line(error)}")
                else:
                    self.changes += 1

    def _statement(self, connection: psycopg.Connection[Any], number: int) -> str | None:
        """A statement drawn, with its names filled in; None where it has nothing to change."""
        template = self._dice.choice(self._statements)
        kind = self._dice.choice(KINDS)
        names: dict[str, Callable[[], str | None]] = {
            "t": lambda: kind.table,
            "number": lambda: str(number),
            "column": lambda: self._one_of(connection, _COLUMNS, kind.table),
            "extra": lambda: self._one_of(connection, _EXTRAS, kind.table),
            "part": lambda: self._one_of(connection, _PARTS, ""),
            "late": lambda: self._one_of(connection, _LATE, ""),
        }
        for name, value in names.items():
            if f"{{{name}}}" in template:
                text = value()
                if text is None:
                    return None
                template = template.replace(f"{{{name}}}", text)
        return template

    def _one_of(self, connection: psycopg.Connection[Any], query: str, table: str) -> str | None:
        names = sorted(name for (name,) in connection.execute(query.encode(), [table]).fetchall())
        return self._dice.choice(names) if names else None


_PREPARED = "SELECT gid FROM pg_prepared_xacts WHERE gid LIKE %s ORDER BY prepared"
_COLUMNS = """
SELECT quote_ident(attname) FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped
"""
_EXTRAS = _COLUMNS + " AND attname LIKE 'extra%%'"
_LATE = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'late%%' AND %s = ''"
_PARTS = """
SELECT relname FROM pg_class
WHERE relispartition AND relname ~ '^parts_[0-9]+$' AND relname NOT IN ('parts_1', 'parts_2')
    AND %s = ''
"""
