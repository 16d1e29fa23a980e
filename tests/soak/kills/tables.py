"""A table whose runs are killed: its source, its changes, and its target in each mode."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import psycopg
import pyarrow as pa
from deltalake import DeltaTable
from tests.pipeline.test_changelog import BIG, CHANGELOG, History, in_order, program
from tests.pipeline.test_history import HISTORY
from tests.pipeline.test_rejects import rejects_of
from tests.support.change_logs import Rows, by_loop
from tests.support.histories import as_of, history_of
from tests.support.oracle import DELETED_COLUMN
from tests.support.pipeline import Pipeline

MODES = {
    "current": "",
    "changelog": CHANGELOG,
    "history": HISTORY,
    "deleted_column": f'deleted_column = "{DELETED_COLUMN}"',
    "without a key": "",
}
KEYLESS = "without a key"
APPENDED = ("changelog", "history")
"""Modes in which rows from before are kept as they were."""
_DAYS = ("'infinity'", "'-infinity'", "'2024-05-05'", "NULL")


@dataclass
class Source(History):
    """A table at the source; values that its target cannot hold are noted as NULL.

    Attributes:
        began: where the server's WAL was before each of the moments.
    """

    began: list[int] = field(default_factory=list)

    def commit(self, *statements: str) -> None:
        """Run statements as one transaction, and note what the table is then."""
        ((lsn,),) = self.database.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        super().commit(*statements)
        self.began.append(int(lsn))

    def at(self, position: int) -> tuple[int, Rows]:
        """The newest of the moments whose transaction had ended at a position."""
        ended = [m for m, began in zip(self.moments, self.began, strict=True) if began < position]
        return ended[-1]

    def note(self) -> None:
        """Note what the table is now."""
        with psycopg.connect(self.database.dsn) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            names = [
                str(name)
                for (name,) in connection.execute(
                    "SELECT attname FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped"
                    f" AND attrelid = '{self.table}'::regclass ORDER BY attnum"
                )
            ]
            listed = ", ".join(
                "CASE WHEN isfinite(day) THEN day END" if name == "day" else name for name in names
            )
            rows = connection.execute(f"SELECT {listed} FROM {self.table}").fetchall()
            lsn = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
            ((position,),) = lsn.fetchall()
        found = [dict(zip(names, row, strict=True)) for row in rows]
        self.moments.append((int(position), found))


class Subject:
    """A table under kills.

    Attributes:
        name: the table's, at the source and at the target.
        source: each of its transactions since the first copy.
        number: how many times it was changed.
    """

    def __init__(self, one: Pipeline, mode: str, name: str) -> None:
        self.one = one
        self.mode = mode
        self.name = name
        self.source = Source(one.database, name)
        self.number = 0
        self._compared = 0

    @property
    def rejects(self) -> bool:
        """Whether values that do not fit are rejects, and do not park the table."""
        return self.mode != KEYLESS

    def create(self) -> None:
        """At the source, with rows."""
        t, shop = self.name, self.one.database
        key = " PRIMARY KEY" if self.mode != KEYLESS else ""
        shop.execute(
            f"CREATE TABLE {t} (id int{key}, status text, note text, day date)",
            f"ALTER TABLE {t} ALTER note SET STORAGE EXTERNAL",
            *([f"ALTER TABLE {t} REPLICA IDENTITY FULL"] if self.mode == KEYLESS else []),
            f"INSERT INTO {t} SELECT i, 'old', {BIG}, '2024-01-01' FROM generate_series(1, 10) i",
        )
        self.fill()

    def fill(self) -> None:
        """Values that do not fit, in rows of their own; without a key, some rows that are equal."""
        low = 1000 + 10 * self.number
        self.number += 1
        day = "'infinity'" if self.rejects else "'2024-01-01'"
        rows = f"INSERT INTO {self.name} (id, status, day) SELECT"
        self.source.commit(
            f"{rows} i, 'bad', {day} FROM generate_series({low}, {low + 3}) i",
            f"UPDATE {self.name} SET status = 'sent again' WHERE id = {low}",
            *([f"{rows} {low}, 'twin', NULL"] * 2 if self.mode == KEYLESS else []),
        )

    def change(self, rng: random.Random, *, transactions: int = 4) -> None:
        """Random transactions; then changes that every run has to write, whatever they left."""
        t, few = self.name, f"id BETWEEN {(low := rng.randint(1, 30))} AND {low + 4}"
        if self.mode == KEYLESS:
            for _ in range(transactions):
                self.source.commit(rng.choice(self._keyless(rng)))
        else:
            for _ in program(rng, self.source, transactions):
                pass
            day = rng.choice(_DAYS if self.rejects else _DAYS[2:])
            self.source.commit(f"UPDATE {t} SET day = {day} WHERE {few}")
        newest = 1000 + 10 * (self.number - 1)
        self.fill()
        # Rows that the target has: a merge finds them.
        self.source.commit(
            f"DELETE FROM {t} WHERE id = {newest + 1}",
            f"UPDATE {t} SET status = 'changed' WHERE id = {newest + 2}",
        )

    def _keyless(self, rng: random.Random) -> list[str]:
        t = self.name
        some = f"ctid IN (SELECT ctid FROM {t} ORDER BY random() LIMIT {rng.randint(1, 4)})"
        return [
            f"INSERT INTO {t} SELECT 1, 'same' FROM generate_series(1, {rng.randint(1, 4)})",
            f"UPDATE {t} SET status = 'same', id = 1, note = NULL, day = NULL WHERE {some}",
            f"UPDATE {t} SET note = {BIG} WHERE {some}",
            f"DELETE FROM {t} WHERE {some}",
        ]

    # What the target has to be.

    def delta(self, version: int | None = None) -> DeltaTable:
        """The target, at a version."""
        options = self.one.reading_options
        return DeltaTable(self.one.target(self.name), version, storage_options=options)

    def assert_as_source(self) -> None:
        """The target has the source's rows: of a log and of a history at each transaction since
        the last call."""
        moments = self.source.moments[self._compared :]
        delta = self.delta()
        beginning = 0
        if self.mode in _BEGINNING:  # nothing is there of what was before the first copy
            beginning = min(_read(delta)[_BEGINNING[self.mode]].to_pylist())
        else:
            moments = moments[-1:]
        for moment in moments:
            if moment[0] >= beginning or moment is moments[-1]:
                self._assert_rows(self._rows(delta, max(moment[0], beginning)), moment)
        if self.mode == "changelog":
            log = _read(delta)
            places = zip(*(log[name].to_pylist() for name in _PLACE), strict=True)
            assert max(Counter(places).values()) == 1, "a change is in the log twice"
        self._compared = len(self.source.moments) - 1

    def assert_checkpoint(self, position: int, version: int) -> None:
        """A consistent checkpoint's version is the source at its position."""
        self._assert_rows(self._rows(self.delta(version), position), self.source.at(position))

    def assert_rejects(self) -> None:
        """Each value of the source that does not fit is one open reject, and none was there twice
        at a time."""
        if not self.rejects:
            return
        query = f"SELECT id, day::text FROM {self.name} WHERE NOT isfinite(day)"
        expected = sorted((f'{{"id": "{key}"}}', day) for key, day in self.source_rows(query))
        ((oid,),) = self.source_rows(f"SELECT '{self.name}'::regclass::oid::bigint")
        mine = [each for each in rejects_of(self.one) if each["relation"] == oid]
        found = [each for each in mine if each["resolved_position"] is None]
        assert sorted((each["key"], each["text"]) for each in found) == expected
        assert self.one.table(self.name).rejects == len(expected)
        by_key: dict[str, list[dict[str, Any]]] = {}
        for each in mine:
            by_key.setdefault(each["key"], []).append(each)
        for rows in by_key.values():
            for before, after in pairwise(rows):
                assert before["resolved_position"] is not None, rows
                assert before["resolved_position"] <= after["position"], rows

    def source_rows(self, query: str) -> list[tuple[Any, ...]]:
        """What the source answers."""
        return self.one.database.execute(query)

    def _rows(self, delta: DeltaTable, position: int) -> Rows:
        if self.mode == "changelog":
            return by_loop(_read(delta), ["id"], position)
        if self.mode == "history":
            return as_of(history_of(delta), position)
        rows: Rows = _read(delta).to_pylist()
        return [row for row in rows if row.get(DELETED_COLUMN) is None]

    def _assert_rows(self, found: Rows, moment: tuple[int, Rows]) -> None:
        position, rows = moment
        names: Sequence[str] = [*rows[0]] if rows else ["id"]
        theirs, ours = Counter(in_order(found, [*names])), Counter(in_order(rows, [*names]))
        lacks, more = [*(ours - theirs)][:3], [*(theirs - ours)][:3]
        assert not lacks, f"{self.name} lacks at {position}: {lacks}; has instead: {more}"
        assert not more, f"{self.name} has at {position}: {more}"


_BEGINNING = {"changelog": "_commit_version", "history": "_valid_from"}
"""The column that begins with the position of the first copy."""
_PLACE = ("_commit_version", "_ordinal", "_change_type", "id")


def _read(delta: DeltaTable) -> pa.Table:
    read = pa.RecordBatchReader.from_stream(delta.scan()).read_all()
    return read.cast(pa.schema(delta.schema().to_arrow()))
