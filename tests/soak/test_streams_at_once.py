"""Streams of one slot that begin at the same time, beside transactions that stay open.

The streams share a slot, its publications, a spool and a capture, and each of them may be the one
that makes these. Captures are killed, and in some scenes the publication is a user's.
``PGSLUICE_STREAM_SCENES`` says how many times it is tried (20).
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.soak.report import Report
from tests.spark.source.snapshot.planned_stream import Stream
from tests.support.databases import Database, fresh_database
from tests.support.forked_capture import ForkedCapture
from tests.support.threads import beside

from pgsluice.capture import read_health
from pgsluice.embedded import EmbeddedServer

pytestmark = pytest.mark.soak

SCENES = int(os.environ.get("PGSLUICE_STREAM_SCENES", "20"))
_TABLES = ("a", "b", "c", "d")
_ROWS = 60
_WRITERS = 3
_LONGEST_S = 1.5
"""How long a transaction stays open, in seconds."""
_PATIENCE_S = 180.0


class Written:
    """What the writers have written: each note once, in the order of its number."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.notes: dict[str, list[int]] = {name: [] for name in _TABLES}
        """Those that are committed, by table."""
        self.open: set[tuple[str, int]] = set()
        """Those whose transactions do not commit yet."""
        self.last = 0

    def add(self, name: str) -> int:
        """The next note, in an open transaction."""
        with self.lock:
            self.last += 1
            self.open.add((name, self.last))
            return self.last


def write(shop: Database, written: Written, dice: random.Random, ended: threading.Event) -> None:
    """Transactions of one to four changes, some of which stay open for a while."""
    with shop.connect() as connection:
        while not ended.is_set():
            notes = []
            with connection.transaction():
                for name in dice.sample(_TABLES, dice.randrange(1, len(_TABLES) + 1)):
                    note = written.add(name)
                    connection.execute(
                        f"INSERT INTO {name} VALUES ({_ROWS + note}, '{note}')"
                        if dice.random() < 0.5
                        else f"UPDATE {name} SET note = '{note}' WHERE id = {dice.randrange(_ROWS)}"
                    )
                    notes.append((name, note))
                ended.wait(dice.choice((0.0, 0.0, 0.05, dice.uniform(0, _LONGEST_S))))
                with written.lock:
                    written.open -= {*notes}
            with written.lock:
                for name, note in notes:
                    written.notes[name].append(note)


class Reader:
    """A stream, and what it has to bring."""

    def __init__(self, name: str, table: str, dice: random.Random, options: dict[str, str]) -> None:
        self.name = name
        self.table = table
        self.options = options
        self.starting_position = dice.choice(("snapshot", "snapshot", "now"))
        self.delay_s = dice.choice((0.0, 0.0, dice.uniform(0, 2)))
        self.restarts_at = dice.choice((None, dice.randrange(1, 6)))
        self.kills_at = dice.choice((None, None, dice.randrange(1, 6)))
        self.missing: object = "it has not begun"

    def run(self, shop: Database, spool: Path, written: Written, ended: threading.Event) -> None:
        """Read until nothing is missing and all have ended."""
        ended.wait(self.delay_s)
        stream = Stream(
            shop,
            spool,
            subscription=self.name,
            table=f"public.{self.table}",
            starting_position=self.starting_position,
            **self.options,
        )
        with written.lock:
            began_at, batches = written.last, 0
            open_notes = {note for name, note in written.open if name == self.table}
        try:
            while not ended.is_set():
                stream.batch()
                batches += 1
                if batches == self.kills_at:
                    kill_capture(spool)
                if batches == self.restarts_at:
                    stream.restart()
                with written.lock:
                    notes = {*written.notes[self.table]}
                new = {note for note in notes if note > began_at or note in open_notes}
                self.missing = self._missing(shop, stream, new)
                ended.wait(0.05)
        finally:
            stream.reader.stop()

    def _missing(self, shop: Database, stream: Stream, new: set[int]) -> set[object]:
        """What has not come yet.

        Args:
            new: what was committed since a stream that begins now has begun.
        """
        if self.starting_position == "snapshot":
            rows = {*shop.execute(f"SELECT id, note FROM {self.table}")}
            return {*(rows ^ {*stream.table().items()})}
        writes = [
            int(row["note"])
            for row in stream.rows
            if row["_change_type"] in ("insert", "update_postimage")
        ]
        assert len({*writes}) == len(writes), "a change came twice"
        return {*new} - {*writes}


def kill_capture(spool: Path) -> None:
    """Kill the capture of whichever stream runs it."""
    health = read_health(spool)
    if health is not None and health.is_alive():
        with suppress(ProcessLookupError):
            os.kill(health.pid, signal.SIGKILL)


def begin_at_once(shop: Database, spool: Path, dice: random.Random) -> str:
    """Some streams begin while others write; returns what each read."""
    shop.execute(
        *(f"CREATE TABLE {name} (id int PRIMARY KEY, note text)" for name in _TABLES),
        *(
            f"INSERT INTO {name} SELECT i, 'before' FROM generate_series(0, {_ROWS - 1}) i"
            for name in _TABLES
        ),
    )
    tables = dice.sample(_TABLES, dice.randrange(2, len(_TABLES) + 1))
    if dice.random() < 0.3:
        tables.append(tables[0])
    options = {}
    if dice.random() < 0.2:
        shop.execute(f"CREATE PUBLICATION p FOR TABLE {', '.join(_TABLES)}")
        options["publications"] = "p"
    readers = [Reader(f"q{number}", table, dice, options) for number, table in enumerate(tables)]
    written, failures = Written(), list[BaseException]()
    with ExitStack() as reading:
        for reader in readers:
            run = lambda ended, reader=reader: reader.run(shop, spool, written, ended)  # noqa: E731
            reading.enter_context(beside(run, failures))
        with ExitStack() as writing:
            for _ in range(_WRITERS):
                own = random.Random(dice.random())
                work = lambda ended, own=own: write(shop, written, own, ended)  # noqa: E731
                writing.enter_context(beside(work))
            deadline = time.monotonic() + dice.uniform(3, 8)
            while time.monotonic() < deadline and not failures:
                time.sleep(0.1)
        deadline = time.monotonic() + _PATIENCE_S
        while any(reader.missing for reader in readers) and not failures:
            if time.monotonic() > deadline:
                lacking = {
                    f"{each.name} ({each.table}, {each.starting_position})": each.missing
                    for each in readers
                    if each.missing
                }
                pytest.fail(f"never came: {lacking}")
            time.sleep(0.1)
    return f"{len(readers)} streams, {written.last} changes"


@pytest.mark.parametrize("version", [18, 14, 12], ids="pg{}".format)
def test_streams_that_begin_at_once(
    version: int, tmp_path: Path, seed: int, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgsluice.capture.child.start_child", ForkedCapture)
    what = f"streams of one slot that begin at once, PostgreSQL {version}"
    with EmbeddedServer(version) as server, report.row(what, seed) as row:
        scenes = []
        for number in range(SCENES):
            dice = random.Random(seed + number)
            with fresh_database(server) as shop:
                scenes.append(begin_at_once(shop, tmp_path / f"{number}", dice))
        row["figures"] = f"{SCENES} new spools, {_WRITERS} writers beside each"
        row["shown"] = "; ".join(scenes[:5]) + ", …: nothing was missing, nothing came twice"
