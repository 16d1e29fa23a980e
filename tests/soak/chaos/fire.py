"""A minute of chaos: sessions, schema changes and SIGKILLs beside a run; then the comparison."""

from __future__ import annotations

import random
import re
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import psycopg
from tests.soak.chaos.modes import Mode
from tests.soak.chaos.sessions import Journal, SchemaSession, Session, commit_prepared
from tests.soak.chaos.tables import KINDS
from tests.soak.chaos.troubles import Troubles, publish
from tests.soak.chaos.verifier import Verifier
from tests.support.databases import Database
from tests.support.every_mode import all_targets, difference
from tests.support.pgbench import await_until, kill, start_again
from tests.support.pipeline import Pipeline
from tests.support.waiting import SOAK_HANGS_S

from pgsluice.errors import ParkReason
from pgsluice.lsn import Lsn
from pgsluice.monitor.status import read_status

VICTIMS = ("capture", "driver", "worker", "jvm")
SERVER = "server"
SESSIONS = 3
_IS_BUG = re.compile(r"bug in pgsluice|^Traceback")
"""An error of which nobody has thought."""
_PASSES = frozenset({ParkReason.REWRITTEN})
"""A table that is parked for such a reason is taken up again without anybody's doing."""
_FIRST_ROWS = 200


@dataclass
class Fought:
    """What a minute was like, and what is wrong after it.

    Attributes:
        settled_s: how long it took afterwards until everything was applied.
        errors: how often a run ended by itself and was started again.
        troubles: how often something else went wrong for a while.
        verified: how often ``pgsluice verify`` found a table equal meanwhile.
        fruitless: how many verifications have compared no table meanwhile.
        verified_after: how many tables ``pgsluice verify`` found equal when all was applied.
        wrong: table -> how it differs from the source, or why it is parked.
    """

    transactions: int = 0
    changes: int = 0
    killed: list[str] = field(default_factory=list)
    tables: int = 0
    errors: int = 0
    troubles: int = 0
    verified: int = 0
    fruitless: int = 0
    verified_after: int = 0
    settled_s: float = 0.0
    wrong: dict[str, str] = field(default_factory=dict)
    journal: Journal = field(default_factory=Journal)

    @property
    def verifications(self) -> str:
        """For the page."""
        fruitless = f" ({self.fruitless} verifications did not get through)"
        meanwhile = f"{self.verified} tables verified meanwhile"
        return f"{meanwhile}{fruitless if self.fruitless else ''}, {self.verified_after} after it"

    def complaint(self, seed: int) -> str:
        """Everything that a person needs to look into it."""
        lines = [f"seed {seed}: {len(self.wrong)} of {self.tables} tables are wrong"]
        for table, why in self.wrong.items():
            lines += ["", f"{table}: {why}", *self.journal.about(table.rpartition(".")[2])]
        return "\n".join(lines)


def make_tables(database: Database) -> None:
    """The ten kinds, with some rows."""
    for kind in KINDS:
        insert = kind.insert.replace("{low}", "1").replace("{high}", str(_FIRST_ROWS))
        database.execute(
            *(text.replace("{t}", kind.table) for text in (kind.create, insert)),
        )
    database.execute(f"ALTER DATABASE \"{database.name}\" SET logical_decoding_work_mem = '64kB'")


def fight(
    one: Pipeline,
    *,
    seconds: float,
    kills: int,
    seed: int,
    mode: Mode,
    minute: int = 0,
) -> Fought:
    """Run everything for a while, then compare every table. The run goes on.

    Args:
        one: its configuration's database has the tables.
        seconds: how long the sessions write.
        kills: how many processes get SIGKILL meanwhile.
        seed: of the statements, the moments and the victims.
        mode: what happens besides; the pipeline was made ready for it.
        minute: how many there were before on the same database.
    """
    fought = Fought()
    fought.journal.note("chaos", f"seed {seed}")
    ended = threading.Event()
    _start_again(one, fought)
    threads = _threads(one, seed, fought.journal, ended, mode, minute)
    for thread in threads:
        thread.start()
    try:
        victims = (*VICTIMS, SERVER) if mode.schema else VICTIMS
        _kill(one, fought, seconds, kills, random.Random(seed), victims)
    finally:
        ended.set()
        _join(one.database, threads)
    _tally(fought, threads)
    began = time.monotonic()
    _await_settled(one, fought, mode, f"witness_{minute}")
    fought.settled_s = time.monotonic() - began
    if any(isinstance(thread, Verifier) for thread in threads):
        _verify(one, fought, seed)
    _compare(one, fought, mode)
    if bug := next((line for line in one.log().splitlines() if _IS_BUG.search(line)), None):
        fought.wrong["run.log"] = bug
    (one.folder / f"journal_{minute}.txt").write_text("\n".join(fought.journal.entries))
    return fought


def _threads(
    one: Pipeline,
    seed: int,
    journal: Journal,
    ended: threading.Event,
    mode: Mode,
    minute: int,
) -> list[threading.Thread]:
    """Everything that happens beside the run, but for the kills."""
    threads: list[threading.Thread] = [
        Session(one.database, number, seed, journal, ended) for number in range(SESSIONS)
    ]
    if mode.schema:
        threads.append(SchemaSession(one.database, mode.schema, seed, journal, ended, minute))
    if mode.is_rough:
        threads.append(Troubles(one, seed, journal, ended))
    if not mode.schema and not mode.is_rough:
        # Elsewhere a target may well differ until the next look.
        threads.append(Verifier(one, seed, journal, ended))
    return threads


def _join(database: Database, threads: Sequence[threading.Thread]) -> None:
    """Wait for them all; verifications and the ends of troubles (ALTER TABLE) wait for transactions
    that are left prepared."""
    waiting = [thread for thread in threads if isinstance(thread, (Verifier, Troubles))]
    for thread in threads:
        if thread not in waiting:
            thread.join()
    commit_prepared(database)
    for thread in waiting:
        thread.join()


def _tally(fought: Fought, threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        match thread:
            case Session():
                fought.transactions += thread.transactions
            case SchemaSession():
                fought.changes = thread.changes
            case Troubles():
                fought.troubles = thread.count
            case Verifier():
                fought.verified, fought.fruitless = thread.equal, thread.fruitless
                fought.wrong |= thread.wrong


def _kill(
    one: Pipeline,
    fought: Fought,
    seconds: float,
    kills: int,
    dice: random.Random,
    kinds: Sequence[str],
) -> None:
    began = time.monotonic()
    moments = sorted(dice.uniform(0, seconds) for _ in range(kills))
    victims = [kinds[number % len(kinds)] for number in range(kills)]
    dice.shuffle(victims)
    for moment, victim in zip(moments, victims, strict=True):
        await_until(began + moment)
        if victim == SERVER:
            fought.killed.append(victim)
            fought.journal.note("chaos", "the server crashes")
            one.database.server.restart("immediate")
        elif kill(one, victim, dice):
            fought.killed.append(victim)
            fought.journal.note("chaos", f"SIGKILL to {victim}")
        _start_again(one, fought)
    await_until(began + seconds)


def _start_again(one: Pipeline, fought: Fought) -> None:
    """Start a run that has ended; what ended it, if it was not killed, is in the journal."""
    last = one.processes[-1] if one.processes else None
    start_again(one)
    if last is not one.processes[-1] and last is not None and last.returncode != -signal.SIGKILL:
        fought.errors += 1
        lines = one.log().strip().splitlines()[-3:]
        fought.journal.note("chaos", f"run ended with {last.returncode}: {' / '.join(lines)}")


def _await_settled(one: Pipeline, fought: Fought, mode: Mode, witness: str) -> None:
    """Until a table made now is copied, and everything else has come as far."""
    one.database.execute(f"CREATE TABLE {mode.witnesses}.{witness} (id int PRIMARY KEY)")
    if mode.is_rough:
        publish(one.database, witness)
    ((lsn,),) = one.database.execute("SELECT pg_current_wal_flush_lsn()")
    target = Lsn.parse(lsn)

    def is_settled() -> bool:
        _start_again(one, fought)
        status = read_status(one.config).to_json()
        frontier, position = status["spool"]["frontier"], status["spool"]["position"]
        if frontier is None or position is None or Lsn.parse(frontier) < target:
            return False
        tables = [table for _, table in all_targets(status)]
        records = [
            table
            for subscription in one.config.subscriptions
            for table in one.record(subscription.name).tables.values()
        ]
        return (
            all(
                any(table["table"] == witness for table in subscription["tables"])
                for subscription in status["subscriptions"]
            )
            and all(
                table["state"] == "p"
                or (
                    table["state"] in "fsr"
                    and Lsn.parse(table["applied_through"]) >= Lsn.parse(position)
                )
                for table in tables
            )
            and not any(table.pending.verification for table in records if table.is_active)
            and not any(table.is_parked and table.parked_for in _PASSES for table in records)
        )

    one.wait_until(is_settled, timeout_s=SOAK_HANGS_S, why="everything is applied")


def _verify(one: Pipeline, fought: Fought, seed: int) -> None:
    """Verify once more, when nothing is in the way: tables have to be equal."""
    verifier = Verifier(one, seed, fought.journal, threading.Event())
    fought.verified_after = verifier.verify()
    fought.wrong |= verifier.wrong
    if not fought.verified_after:
        fought.wrong["verify"] = f"has compared no table: {fought.journal.entries[-1]}"


def _compare(one: Pipeline, fought: Fought, mode: Mode) -> None:
    targets = {
        (subscription, f"{table['schema']}.{table['table']}"): table
        for subscription, table in all_targets(read_status(one.config).to_json())
    }
    subscriptions = [subscription.name for subscription in one.config.subscriptions]
    rows = one.database.execute(
        "SELECT n.nspname || '.' || c.relname FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = relnamespace"
        " WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.oid >= 16384"
        " AND n.nspname NOT IN ('information_schema', 'pg_toast', 'expected')"
    )
    queries = {kind.title: kind.published_rows for kind in KINDS} if mode.is_filtered else {}
    with one.database.connect() as connection:
        for (title,), subscription in product(sorted(rows), subscriptions):
            fought.tables += 1
            target = targets.get((subscription, title))
            if target is None:
                fought.wrong[f"{subscription}: {title}"] = "has no target"
                continue
            source = _expected(connection, queries[title]) if title in queries else title
            if why := difference(connection, one, subscription, target, source):
                fought.wrong[f"{subscription}: {title}"] = why


def _expected(connection: psycopg.Connection[Any], query: str) -> str:
    """A table of a query's rows, so that the judge knows its columns; in a schema of its own,
    that nobody publishes."""
    connection.execute("DROP SCHEMA IF EXISTS expected CASCADE")
    connection.execute("CREATE SCHEMA expected")
    connection.execute(f"CREATE UNLOGGED TABLE expected.rows AS {query}".encode())
    return "expected.rows"
