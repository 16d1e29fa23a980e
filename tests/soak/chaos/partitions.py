"""Partitioned tables whose partitions come and go, beside sessions that change their rows.

Each table has a key of ``id`` and the partition column ``k``, which ``id`` decides. It is divided
into slots of as many ids, and each slot has a partition at times.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import psycopg
from tests.soak.chaos.partition_watch import PartitionWatch
from tests.soak.chaos.sessions import Journal
from tests.support.databases import Database

SLOTS = 6
_FIRST_DAY = date(2024, 1, 1)
_DAYS = 10
"""How many days a slot of dates has."""
_LOCK_TIMEOUT = "3s"
_SPARED = 0.8
"""How often a table is left alone that waits for a copy."""


@dataclass(frozen=True)
class Kind:
    """One partitioned table.

    Attributes:
        table: its name.
        column: the type of ``k``.
        by: how it is partitioned.
        key: from an id and the number of ids of a slot: ``k``; both as SQL.
        bound: from a slot and the number of its ids: the bound of its partition.
        has_rest: it has a default partition.
        has_levels: its partitions are partitioned by ``id``.
    """

    table: str
    column: str
    by: str
    key: Callable[[str, int], str]
    bound: Callable[[int, int], str]
    has_rest: bool = False
    has_levels: bool = False


def _day_of(i: str, width: int) -> str:
    return f"date '{_FIRST_DAY}' + {i} / {width // _DAYS}"


def _days_of(slot: int, _: int) -> str:
    begin, end = (_FIRST_DAY + timedelta(days=each * _DAYS) for each in (slot, slot + 1))
    return f"FROM ('{begin}') TO ('{end}')"


KINDS = (
    Kind("by_int", "int", "RANGE (k)", lambda i, _: i,
         lambda slot, width: f"FROM ({slot * width}) TO ({(slot + 1) * width})"),
    Kind("by_date", "date", "RANGE (k)", _day_of, _days_of),
    # Which rows of a list with NULL are its partition's cannot be told by their values.
    Kind("by_text", "text", "LIST (k)", lambda i, width: f"'s' || {i} / {width}",
         lambda slot, _: f"IN ('s{slot}'{', NULL' * (slot == 0)})", has_rest=True),
    Kind("two_levels", "date", "RANGE (k)", _day_of, _days_of, has_levels=True),
)  # fmt: skip


@dataclass(frozen=True)
class Slot:
    """A slot of a table, and the statements about its partition.

    Attributes:
        width: how many ids it has.
    """

    kind: Kind
    number: int
    width: int

    @property
    def name(self) -> str:
        """The partition's."""
        return f"{self.kind.table}_{self.number}"

    @property
    def low(self) -> int:
        """Its first id."""
        return self.number * self.width

    @property
    def of(self) -> str:
        return f"FOR VALUES {self.kind.bound(self.number, self.width)}"

    @property
    def create(self) -> list[str]:
        """Makes the partition without rows."""
        return self._with_leaves(
            f"CREATE TABLE {self.name} PARTITION OF {self.kind.table} {self.of}"
        )

    @property
    def make(self) -> list[str]:
        """Makes a table that can be attached."""
        return self._with_leaves(f"CREATE TABLE {self.name} (LIKE {self.kind.table} INCLUDING ALL)")

    @property
    def attach(self) -> str:
        return f"ALTER TABLE {self.kind.table} ATTACH PARTITION {self.name} {self.of}"

    @property
    def take_from_rest(self) -> list[str]:
        """Moves the slot's rows from the default partition to the table that is to be attached."""
        if not self.kind.has_rest:
            return []
        where, rest = f"WHERE k = 's{self.number}'", f"{self.kind.table}_rest"
        return [
            f"LOCK TABLE {self.kind.table}, {rest}",
            f"DELETE FROM {self.name} USING {rest} r WHERE {self.name}.id = r.id",
            (
                f"WITH moved AS (DELETE FROM {rest} {where} RETURNING *)"
                f" INSERT INTO {self.name} SELECT * FROM moved"
            ),
        ]

    def fill(self, into: str, text: str, step: int = 2) -> str:
        """Inserts rows for some ids of the slot; some have values that are stored apart."""
        key = self.kind.key("i", self.width)
        value = f"'{text}' || CASE WHEN i % 50 = 0 THEN repeat(md5(i::text), 80) ELSE '' END"
        return (
            f"INSERT INTO {into} (id, k, n, v) SELECT i, {key}, 0, {value}"
            f" FROM generate_series({self.low}, {self.low + self.width - 1}, {step}) i"
            " ON CONFLICT DO NOTHING"
        )

    def _with_leaves(self, create: str) -> list[str]:
        if not self.kind.has_levels:
            return [create]
        middle = self.low + self.width // 2
        return [
            f"{create} PARTITION BY RANGE (id)",
            (
                f"CREATE TABLE {self.name}_low PARTITION OF {self.name}"
                f" FOR VALUES FROM (MINVALUE) TO ({middle})"
            ),
            f"CREATE TABLE {self.name}_rest PARTITION OF {self.name} DEFAULT",
        ]


def make_tables(shop: Database, width: int) -> None:
    """All kinds; the first half of the slots has partitions."""
    for kind in KINDS:
        columns = f"id int, k {kind.column}, n int, v text, PRIMARY KEY (id, k)"
        shop.execute(
            f"CREATE TABLE {kind.table} ({columns}) PARTITION BY {kind.by}",
            f"ALTER TABLE {kind.table} ALTER v SET STORAGE EXTERNAL",
        )
        if kind.has_rest:
            shop.execute(f"CREATE TABLE {kind.table}_rest PARTITION OF {kind.table} DEFAULT")
        for number in range(SLOTS // 2):
            slot = Slot(kind, number, width)
            shop.execute(*slot.create, slot.fill(kind.table, "first"))


class RowSession(threading.Thread):
    """A session that changes rows until ``ended``; some go to another partition.

    Attributes:
        transactions: how many were committed.
    """

    def __init__(
        self, shop: Database, width: int, seed: int, number: int, ended: threading.Event
    ) -> None:
        super().__init__(name=f"rows {number}")
        self.transactions = 0
        self._shop = shop
        self._width = width
        self._dice = random.Random(f"{seed} {number}")
        self._ended = ended

    def run(self) -> None:
        for connection in _connections(self._shop, self._ended):
            while not self._ended.wait(self._dice.uniform(0, 0.02)):
                try:
                    connection.execute(self._statement().encode())
                    self.transactions += 1
                except psycopg.Error:  # no partition takes the row, or another session was faster
                    if connection.broken:
                        break

    def _statement(self) -> str:
        kind, dice = self._dice.choice(KINDS), self._dice
        top = SLOTS * self._width
        low, to = dice.randrange(top), dice.randrange(top)
        key, key_to = kind.key("i", self._width), kind.key(str(to), self._width)
        table = kind.table
        return dice.choice(
            (
                f"UPDATE {table} SET n = n + 1 WHERE id BETWEEN {low} AND {low + 20}",
                f"DELETE FROM {table} WHERE id BETWEEN {low} AND {low + 4}",
                (
                    f"INSERT INTO {table} SELECT i, {key}, 7, 'new' FROM"
                    f" generate_series({low}, {low + 5}) i ON CONFLICT DO NOTHING"
                ),
                f"UPDATE {table} SET id = {to}, k = {key_to}, n = n + 1 WHERE id = {low}",
            )
        )


class PartitionSession(threading.Thread):
    """A session by which partitions come and go until ``ended``.

    Args:
        pauses_s: the shortest and the longest time between two changes.
        watch: of the run. A partition goes only after a look has seen it, and most changes are of
            tables that do not wait for a copy: each change begins its copies anew.

    Attributes:
        changes: how many were made, by their names.
    """

    def __init__(
        self,
        shop: Database,
        width: int,
        seed: int,
        journal: Journal,
        ended: threading.Event,
        pauses_s: tuple[float, float],
        watch: PartitionWatch,
    ) -> None:
        super().__init__(name="partitions")
        self.changes: Counter[str] = Counter()
        self._version = shop.server.programs.major
        self._shop = shop
        self._width = width
        self._dice = random.Random(f"{seed} partitions")
        self._journal = journal
        self._ended = ended
        self._pauses_s = pauses_s
        self._watch = watch

    def run(self) -> None:
        for connection in _connections(self._shop, self._ended):
            connection.execute(f"SET lock_timeout = '{_LOCK_TIMEOUT}'")
            while not self._ended.wait(self._dice.uniform(*self._pauses_s)):
                kind, number = self._dice.choice(KINDS), self._dice.randrange(SLOTS)
                slot = Slot(kind, number, self._width)
                name = "?"
                try:
                    name, transactions = self._choose(connection, slot)
                    for statements in transactions:
                        self._execute(connection, statements)
                    if transactions:
                        self.changes[name] += 1
                        self._journal.note(slot.name, name)
                except psycopg.Error as error:
                    first_line = str(error).partition("\n")[0]
                    self._journal.note(slot.name, f"{name}: {first_line}")
                    if connection.broken:
                        break

    def _choose(
        self, connection: psycopg.Connection[Any], slot: Slot
    ) -> tuple[str, list[list[str]]]:
        """What to do with a slot, as transactions."""
        state, dice = _state(connection, slot), self._dice
        if state == "pending":
            return "finalize", [
                [f"ALTER TABLE {slot.kind.table} DETACH PARTITION {slot.name} FINALIZE"]
            ]
        table = slot.kind.table
        is_known = state != "present" or self._watch.has_seen(table, _leaves(connection, slot))
        if not is_known or (self._watch.is_copying(table) and dice.random() < _SPARED):
            return "nothing", []
        name, transactions = dice.choice(list(getattr(self, f"_if_{state}")(slot)))
        return name, transactions

    def _if_absent(self, slot: Slot) -> Iterator[tuple[str, list[list[str]]]]:
        fill = slot.fill(slot.name, "attached")
        yield "attach", [[*slot.make, fill], [*slot.take_from_rest, slot.attach]]
        yield "attach at once", [[*slot.make, fill, *slot.take_from_rest, slot.attach]]
        if not slot.kind.has_rest:  # else the default partition has rows of it
            yield "create", [slot.create, [slot.fill(slot.kind.table, "created", 5)]]

    def _if_detached(self, slot: Slot) -> Iterator[tuple[str, list[list[str]]]]:
        changes = [
            f"UPDATE {slot.name} SET v = 'apart' WHERE id % 7 = 1",
            f"DELETE FROM {slot.name} WHERE id % 11 = 3",
        ]
        yield "attach again", [changes, [*slot.take_from_rest, slot.attach]]
        yield "drop the detached", [[f"DROP TABLE {slot.name}"]]

    def _if_present(self, slot: Slot) -> Iterator[tuple[str, list[list[str]]]]:
        detach = f"ALTER TABLE {slot.kind.table} DETACH PARTITION {slot.name}"
        drop = f"DROP TABLE {slot.name}"
        yield "drop", [[drop]]
        yield "detach", [[detach]]
        if self._version >= 14 and not slot.kind.has_rest:
            yield "detach concurrently", [[f"{detach} CONCURRENTLY"]]
        changes = f"UPDATE {slot.name} SET v = 'apart' WHERE id % 7 = 1"
        yield "detach, change and attach", [[detach, changes, *slot.take_from_rest, slot.attach]]
        yield "truncate", [[f"TRUNCATE {slot.name}"]]
        yield (
            "truncate and fill",
            [[f"TRUNCATE {slot.name}", slot.fill(slot.kind.table, "filled", 9)]],
        )
        again = slot.fill(slot.kind.table, "again", 3)
        yield "make again", [[drop, *slot.create, again]]
        yield "make again later", [[drop], slot.create, [again]]
        if slot.kind.has_levels:
            leaf = f"{slot.name}_low"
            create = next(text for text in slot.create if leaf in text)
            yield "truncate a leaf", [[f"TRUNCATE {leaf}"]]
            yield "make a leaf again", [[f"DROP TABLE {leaf}", create, again]]

    def _execute(self, connection: psycopg.Connection[Any], statements: list[str]) -> None:
        if len(statements) == 1:  # DETACH CONCURRENTLY takes no transaction
            connection.execute(statements[0].encode())
            return
        with connection.transaction():
            for statement in statements:
                connection.execute(statement.encode())


def make_last_partitions(shop: Database, width: int) -> None:
    """A look that has seen these has seen all that happened before."""
    for kind in KINDS:
        shop.execute(*Slot(kind, SLOTS + 1, width).create)


def finish_detaching(shop: Database) -> None:
    """End what a crash has left of DETACH PARTITION … CONCURRENTLY."""
    if shop.server.programs.major >= 14:
        pending = shop.execute(
            "SELECT inhparent::regclass::text, inhrelid::regclass::text FROM pg_inherits"
            " WHERE inhdetachpending"
        )
        shop.execute(
            *(f"ALTER TABLE {root} DETACH PARTITION {name} FINALIZE" for root, name in pending)
        )


def _connections(shop: Database, ended: threading.Event) -> Iterator[psycopg.Connection[Any]]:
    """One after another, each until it breaks because the server crashed."""
    while not ended.is_set():
        try:
            with shop.connect() as connection:
                yield connection
        except psycopg.OperationalError:
            ended.wait(0.2)


def _leaves(connection: psycopg.Connection[Any], slot: Slot) -> list[int]:
    """The OIDs of a partition's leaves."""
    query = (
        "SELECT c.oid::bigint FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid"
        " WHERE c.relkind = 'r' AND to_regclass(%s)::oid IN (c.oid, i.inhparent)"
    )
    return [oid for (oid,) in connection.execute(query, [slot.name]).fetchall()]


def _state(connection: psycopg.Connection[Any], slot: Slot) -> str:
    """Whether a slot's partition is ``absent``, ``present``, ``pending`` or ``detached``."""
    pending = "i.inhdetachpending" if connection.info.server_version >= 140000 else "false"
    query = (
        f"SELECT i.inhrelid IS NOT NULL, {pending} FROM pg_class c"
        " LEFT JOIN pg_inherits i ON i.inhrelid = c.oid WHERE c.oid = to_regclass(%s)"
    )
    row = connection.execute(query.encode(), [slot.name]).fetchone()
    if row is None:
        return "absent"
    is_present, is_pending = row
    return "pending" if is_pending else "present" if is_present else "detached"
