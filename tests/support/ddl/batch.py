"""Runs many rows of the table of DDL at one moment: one database, one run of pgsluice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import psycopg
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from tests.support.databases import Database
from tests.support.ddl.execute import execute
from tests.support.ddl.held_copies import HeldCopies, StatementsBesideCopies, held_copies
from tests.support.ddl.page import judge
from tests.support.ddl.promotion import FailoverDatabase
from tests.support.ddl.row import FIRST_COPIES, UNDONE, Moment, Publisher, Row
from tests.support.ddl.seen import Seen, TargetSeen
from tests.support.oracle import compare_exact, count_rows
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.settling import Settling
from tests.support.threads import beside
from tests.support.unconfirmed import unconfirmed

from pgsluice.spool import TableState
from pgsluice.subscription.base.requests import request_copy

LONG_POLL_S = 12
"""Time for the statements of all rows between two looks at the catalog."""
SLOW_POLL_S = 4
"""So that a look at hundreds of tables comes once or twice while their first copies are held."""
_LOAD_PAUSE_S = 0.02
SESSIONS = 250
"""How many rows commit at the same time; the server has 400 connections."""
COPIED_AT_ONCE = {
    Moment.BEFORE_LOCK: 250, Moment.BEFORE_FIRST_LOCK: 250,
    Moment.AFTER_LOCK: 60, Moment.AFTER_FIRST_LOCK: 60,
}  # fmt: skip
"""How many rows have copies that are held at the same time; those with a lock have connections."""
_LOCK_TIMEOUT = "10s"
_SERVER_WAITS = """
SELECT 1 FROM pg_stat_activity WHERE backend_type = 'walsender' AND wait_event_type = 'Lock'
AND wait_event = 'relation'
"""
Tables = Mapping[tuple[str, str], Mapping[str, Any]]
"""(subscription, table) -> the table in ``pgsluice status --json``."""
Compare = Callable[[psycopg.Connection[Any], Row, str, str], tuple[Sequence[Any], Sequence[Any]]]
"""Of a row's table and its target: some rows that the target lacks, and some other ones of it."""
_SPOOL = 'max_bytes = "4 GiB"'
"""What the disk happens to have left is not the question here."""
_WITNESSES = "witnesses"
_OURS = "ours"
_FILL = "INSERT INTO filler (v) SELECT repeat('x', 500) FROM generate_series(1, 200)"
"""More than fits into 64 kB, so that the transaction is streamed before it ends."""

# What rows need of the database as a whole.
_SETUP = (
    "CREATE TABLE filler (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text)",
    "SET allow_in_place_tablespaces = on",
    "CREATE TABLESPACE ddl_space LOCATION ''",
    "CREATE ACCESS METHOD heap_too TYPE TABLE HANDLER heap_tableam_handler",
)


@dataclass
class Batch:
    """Rows of one publisher, on their way through one moment.

    Attributes:
        compare: the judge of a target.
        failed: row -> why a statement of it failed.
    """

    database: Database
    one: Pipeline
    rows: Sequence[Row]
    moment: Moment
    compare: Compare = lambda connection, _, title, target: compare_exact(connection, title, target)
    failed: dict[str, str] = field(default_factory=dict)
    copies: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    columns: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    seen: dict[str, Seen] = field(default_factory=dict)

    @property
    def is_of_server(self) -> bool:
        """Whether the publications are the user's own."""
        return self.rows[0].publisher is Publisher.SERVER

    # The moments

    def run(self) -> dict[str, Seen]:
        """Set up, copy, execute everything at the moment, wait, and look at each target."""
        self._set_up()
        self.one.once()
        self._remember()
        match self.moment:
            case Moment.ONE_POLL:
                self._poll_every(LONG_POLL_S)
                self._live(self._at_once)
            case Moment.SEVERAL_POLLS:
                self._live(lambda: self._step_by_step(self.settling.await_witness))
            case Moment.STOPPED:
                self._at_once()
                self._live(lambda: None)
            case Moment.CAPTURE_ONLY:
                self._capture_only()
                self._live(lambda: None)
            case Moment.TRANSACTION:
                self._live(lambda: self._each(_in_transaction))
            case Moment.PREPARED:
                self._live(lambda: self._each(_prepared))
            case Moment.UNCONFIRMED:
                self._live(self._unconfirmed)
            case Moment.BEFORE_LOCK | Moment.AFTER_LOCK:
                self._poll_every(LONG_POLL_S)
                self._live(self._during_copies)
            case Moment.BEFORE_FIRST_LOCK | Moment.AFTER_FIRST_LOCK:
                self._poll_every(SLOW_POLL_S)
                self._live(self._during_copies)
            case Moment.ROLLED_BACK:
                self._live(lambda: self._each(_rolled_back))
            case Moment.PROMOTION:
                self._failover.synchronise_slot(self.one.once)
                self._live(self._across_a_promotion)
            case Moment.LOST:
                self._failover.synchronise_slot(self.one.once)
                self._live(self._lost_by_a_promotion)
        return self.seen

    def _at_once(self) -> None:
        self._each(lambda connection, row: execute(connection, row, row.before))
        with self._load():
            self._each(_execute_all)

    def _step_by_step(self, pause: Callable[[], None]) -> None:
        self._each(lambda connection, row: execute(connection, row, row.before))
        with self._load():
            for number in range(max(len(row.ddl) for row in self.rows)):
                self._each(lambda connection, row, at=number: execute(
                    connection, row, *row.ddl[at : at + 1]))  # fmt: skip
                pause()
        self._each(lambda connection, row: execute(connection, row, row.after))

    def _capture_only(self) -> None:
        capture = self.one.start("capture")
        self.one.wait_until(
            lambda: (
                self.database.execute(
                    "SELECT active FROM pg_replication_slots WHERE slot_name = "
                    f"'{self.database.name}'"
                )
                == [(True,)]
            ),
            why="capture streams",
        )
        self._step_by_step(lambda: None if self.is_of_server else self._await_publication())
        self.settling.await_received()
        self.one.stop()
        assert capture.returncode in (0, 143), self.one.log()[-2000:]

    def _across_a_promotion(self) -> None:
        self._each(lambda connection, row: execute(connection, row, row.before, *row.ddl[:1]))
        self._failover.await_replay()
        self._failover.fail_over()
        self._each(lambda connection, row: execute(connection, row, *row.ddl[1:], row.after))

    def _lost_by_a_promotion(self) -> None:
        self._failover.standby.stop()
        self._each(lambda connection, row: execute(connection, row, *row.ddl))
        self.settling.await_witness()
        self._failover.fail_over()
        self._each(lambda connection, row: execute(connection, row, row.before))

    def _unconfirmed(self) -> None:
        """Some rows at a time, because each waits in a session of its own. Meanwhile the run
        receives what it can, and looks at the catalog."""
        for first in range(0, len(self.rows), SESSIONS):
            rows = self.rows[first : first + SESSIONS]
            with unconfirmed(self.database, [partial(self._commit, row) for row in rows]):
                self.one.wait_until(self._is_received_or_held, why="the stream came or is held")

    def _during_copies(self) -> None:
        """Some rows at a time."""
        at_once = COPIED_AT_ONCE[self.moment]
        has_lock = self.moment in (Moment.AFTER_LOCK, Moment.AFTER_FIRST_LOCK)
        hold = self._hold_first_copies if self.moment in FIRST_COPIES else self._hold_copies
        with held_copies(has_lock=has_lock) as held, self._load():
            for first in range(0, len(self.rows), at_once):
                rows = self.rows[first : first + at_once]
                copying = hold(held, rows)
                if has_lock:
                    self._after_the_lock(held, rows, copying)
                else:
                    self._before_the_lock(held, rows)
                self._each(lambda connection, row: execute(connection, row, row.after), rows)
                self.settling.await_settled()

    def _hold_copies(self, held: HeldCopies, rows: Sequence[Row]) -> dict[tuple[str, int], int]:
        """Ask for copies of the rows' tables, and wait until they are held.

        Returns:
            subscription and table -> the number of the copy.
        """
        wanted = {
            (_lake(row), oid)
            for row in rows
            for title in self._titles(row, row.tables if row.first is None else row.first)
            for oid, table in self.one.record(_lake(row)).tables.items()
            if table.is_active and table.title == title
        }
        held.hold({oid for _, oid in wanted})
        for subscription, oid in wanted:
            request_copy(self.one.spool / "subscriptions" / subscription, oid)
        self.one.wait_until(held.are_held, why="the copies are held")
        return {(name, oid): self.one.record(name).tables[oid].copy_number for name, oid in wanted}

    def _hold_first_copies(
        self, held: HeldCopies, rows: Sequence[Row]
    ) -> dict[tuple[str, int], int]:
        """Make the rows' tables, and wait until their first copies are held.

        Returns:
            subscription and table -> the number of the copy.
        """
        with self.database.connect() as connection, connection.transaction():
            self._make(connection, rows)
            titles = [
                title
                for row in rows
                for title in self._titles(row, row.tables if row.first is None else row.first)
            ]
            oids = [
                oid
                for title in titles
                for (oid,) in connection.execute("SELECT %s::regclass::oid::int8", [title])
            ]
            held.hold(oids)
        self.one.wait_until(held.are_held, why="the first copies are held")
        tables = self.one.record().tables
        return {("lake", oid): tables[oid].copy_number for oid in oids}

    def _before_the_lock(self, held: HeldCopies, rows: Sequence[Row]) -> None:
        """All statements are executed, and then the copies read. A statement with CONCURRENTLY
        waits for the snapshots of the copies, and ends behind them."""
        waiting = [row for row in rows if _waits_for_snapshots(row)]
        others = [row for row in rows if row not in waiting]
        self._each(lambda c, row: execute(c, row, row.before, *row.ddl), others)
        sessions = [self._beside_copies(row) for row in waiting if row.name not in self.failed]
        try:
            with self.database.connect() as connection:
                self.one.wait_until(
                    lambda: all(one.is_first_done or one.waits(connection) for one in sessions),
                    why="the statements have ended or wait",
                )
        finally:
            held.release()
            for session in sessions:
                session.go_on()
            for session in sessions:
                session.join()

    def _after_the_lock(
        self, held: HeldCopies, rows: Sequence[Row], copying: Mapping[tuple[str, int], int]
    ) -> None:
        """The first statement of each row waits for the range that is held, or does not. What it
        waits for is read, then the other range, and then the other statements are executed."""
        sessions = [self._beside_copies(row) for row in rows if row.name not in self.failed]

        def is_read() -> bool:
            records = {name: self.one.record(name) for name, _ in copying}
            return not any(
                (table := records[name].tables.get(oid)) is not None
                and table.state is TableState.DATA_COPY
                and table.copy_number == number
                for (name, oid), number in copying.items()
            )

        try:
            with self.database.connect() as connection:
                self.one.wait_until(
                    lambda: all(one.is_first_done or one.waits(connection) for one in sessions),
                    why="the statements wait",
                )
                held.release_first_ranges()
                self.one.wait_until(
                    lambda: not any(one.waits(connection, for_table=True) for one in sessions),
                    why="no statement waits",
                )
            held.release()
            self.one.wait_until(is_read, why="the copies have ended")
        finally:
            for session in sessions:
                session.go_on()
            held.release()
            for session in sessions:
                session.join()

    def _beside_copies(self, row: Row) -> StatementsBesideCopies:
        connection = self.database.connect()

        def step(*statements: str) -> Callable[[], None]:
            return lambda: self._try(connection, row, partial(_execute, statements=statements))

        return StatementsBesideCopies(
            connection, (step(row.before, *row.ddl[:1]), step(*row.ddl[1:]))
        )

    def _commit(self, row: Row) -> None:
        with self.database.connect() as connection:
            connection.execute(f"SET lock_timeout = '{_LOCK_TIMEOUT}'")
            self._try(connection, row, _in_transaction)

    def _is_received_or_held(self) -> bool:
        """Capture holds the stream where facts are from before a transaction; the server holds it
        itself where it needs a lock, such as that of a composite type."""
        if self.settling.is_received() or "synchronous standby" in self.settling.capture_message():
            return True
        return bool(self.database.execute(_SERVER_WAITS))

    @property
    def _failover(self) -> FailoverDatabase:
        assert isinstance(self.database, FailoverDatabase)
        return self.database

    def _live(self, work: Callable[[], None]) -> None:
        """A run while ``work`` goes on, and until it has seen all of it."""
        with self.one.live():
            self.settling.await_settled()
            work()
            self.settling.await_witness()
            self.seen = self._looks(self.rows)
            failed = [v.row for v in judge(self.rows, self.seen, self.moment) if v.fails]
            if failed:
                # What takes two looks: capture puts a table into a publication, then it is found.
                self.settling.await_witness()
                self.seen |= self._looks(failed)

    # What runs

    def _each(
        self,
        work: Callable[[psycopg.Connection[Any], Row], None],
        rows: Sequence[Row] | None = None,
    ) -> None:
        with self.database.connect() as connection:
            for row in self.rows if rows is None else rows:
                if row.name not in self.failed:
                    self._try(connection, row, work)

    def _try(
        self,
        connection: psycopg.Connection[Any],
        row: Row,
        work: Callable[[psycopg.Connection[Any], Row], None],
    ) -> None:
        try:
            work(connection, row)
        except psycopg.Error as error:
            connection.rollback()
            self.failed[row.name] = str(error).splitlines()[0]

    def _load(self) -> AbstractContextManager[object]:
        """The rows' load, some fifty times a second, from a session of its own."""
        statements = [row.sql(row.load) for row in self.rows if row.load]

        def write(ended: threading.Event) -> None:
            with self.database.connect() as connection:
                while not ended.wait(_LOAD_PAUSE_S):
                    for statement in statements:
                        with suppress(psycopg.Error):
                            connection.execute(statement)

        return beside(write) if statements else nullcontext()

    # Setting up

    def _set_up(self) -> None:
        prepare(self.database)
        with self.database.connect() as connection:
            if self.moment not in FIRST_COPIES:
                self._make(connection, self.rows)
            publications = [row.sql(name) for row in self.rows for name in row.publications]
            if self.is_of_server:
                connection.execute(f"CREATE PUBLICATION {_WITNESSES} FOR TABLE ONLY filler")
        if self.moment is Moment.PREPARED:
            self.one.source = "two_phase = true"
            self.database.execute(
                f"ALTER DATABASE \"{self.database.name}\" SET logical_decoding_work_mem = '64kB'"
            )
        self._write(publications)

    def _make(self, connection: psycopg.Connection[Any], rows: Sequence[Row]) -> None:
        for row in rows:
            try:
                execute(connection, row, row.setup)
            except psycopg.Error as error:
                raise AssertionError(f"{row.name}: {error}") from error

    def _write(self, publications: Sequence[str]) -> None:
        ours = [row for row in self.rows if row.publisher is Publisher.OURS]
        self.one.write(spool=_SPOOL)
        if ours:
            names = ", ".join(f'"{row.slug}"' for row in ours)
            self.one.write(
                f'[[subscription]]\nname = "{_OURS}"\npublications = [{names}]\n'
                f'sink = {{ type = "delta", path = "{_OURS}/{{schema}}/{{table}}"'
                f"{self.one.sink_options} }}\n"
                '[publications]\nfile = "publications.sql"\n',
                _SPOOL,
            )
            statements = ";\n".join(row.sql(row.statement) for row in ours)
            (self.one.folder / "publications.sql").write_text(statements)
        if self.is_of_server:
            names = ", ".join(f'"{name}"' for name in (_WITNESSES, *publications))
            text = self.one.path.read_text()
            own = f'publications = ["{self.database.name}"]'
            assert own in text
            self.one.path.write_text(text.replace(own, f"publications = [{names}]"))

    def _poll_every(self, seconds: float) -> None:
        text = self.one.path.read_text()
        self.one.path.write_text(
            text.replace("catalog_poll_s = 1\n", f"catalog_poll_s = {seconds}\n")
        )

    # Waiting

    @cached_property
    def settling(self) -> Settling:
        """The waits of this batch's run."""

        def publish(name: str) -> None:
            self.database.execute(f"ALTER PUBLICATION {_WITNESSES} ADD TABLE {name}")

        return Settling(self.one, publish=publish if self.is_of_server else None)

    def _await_publication(self) -> None:
        """Until capture has looked at the catalog: it puts new tables into the publication."""
        name = self.settling.make_witness()
        query = f"SELECT 1 FROM pg_publication_tables WHERE tablename = '{name}'"
        self.one.wait_until(lambda: bool(self.database.execute(query)), why=f"{name} is published")

    # Looking

    def _remember(self) -> None:
        """What the targets were before."""
        for row in self.rows:
            for table in self._titles(row, row.tables if row.first is None else row.first):
                target = self._target(row, table)
                if target is not None:
                    self.copies[row.publisher.name, table] = _copies(target)
                    self.columns[row.publisher.name, table] = _columns(target)

    def _titles(self, row: Row, tables: Sequence[str]) -> list[str]:
        named = [row.sql(table) for table in tables]
        return [name if "." in name else f"public.{name}" for name in named]

    def _target(self, row: Row, title: str) -> DeltaTable | None:
        try:
            return DeltaTable(str(self.one.folder / _lake(row) / title.replace(".", "/")))
        except TableNotFoundError:
            return None

    def _looks(self, rows: Sequence[Row]) -> dict[str, Seen]:
        """By the row's name."""
        # A name may have been that of a table before.
        tables = {
            (subscription, f"{table['schema']}.{table['table']}"): table
            for is_active in (False, True)
            for subscription in ("lake", _OURS)
            for table in self.settling.tables(subscription)
            if (table["state"] in "fsrp") is is_active
        }
        with self.database.connect() as connection:
            return {row.name: self._look(connection, row, tables) for row in rows}

    def _look(self, connection: psycopg.Connection[Any], row: Row, found: Tables) -> Seen:
        """What became of a row's targets."""
        if row.name in self.failed:
            return Seen(failure=self.failed[row.name])
        is_undone = self.moment in UNDONE
        tables = row.first if is_undone and row.first is not None else row.tables
        titles = self._titles(row, tables)
        seen = [self._look_at(connection, row, title, found) for title in titles]
        differences = []
        for title, count in row.standing.items() if not is_undone else ():
            (title,) = self._titles(row, [title])
            target = self._target(row, title)
            rows = None if target is None else count_rows(target.table_uri)
            if rows != count:
                differences.append(f"the target of {title} has {rows} rows, not {count}")
        differences += [
            f"{title} has a target"
            for title in self._titles(row, row.absent)
            if self._target(row, title) is not None
        ]
        return Seen(tuple(seen), tuple(differences))

    def _look_at(
        self, connection: psycopg.Connection[Any], row: Row, title: str, found: Tables
    ) -> TargetSeen:
        target = self._target(row, title)
        table = found.get((_lake(row), title), {})
        error = table["error"] if table.get("state") == "p" else None
        reason = table.get("copy_reason") or ""
        if target is None:
            return TargetSeen(title, error=error, is_missing=True)
        key = row.publisher.name, title
        copies = _copies(target) - self.copies.get(key, set())
        added = [c for c in _columns(target) if c not in self.columns.get(key, ())]
        difference = ""
        try:
            missing, extra = self.compare(connection, row, title, str(target.table_uri))
        except Exception as failed:
            missing, extra = [], []
            difference = f"cannot be compared: {str(failed).splitlines()[0]}"
        if missing:
            difference = f"lacks {len(missing)} or more rows, e.g. {missing[0]}"
        if extra:
            difference += (
                f"{'; ' * bool(difference)}has {len(extra)} or more other rows, e.g. {extra[0]}"
            )
        return TargetSeen(title, len(copies), tuple(added), error, difference, reason=reason)


def prepare(database: Database) -> None:
    """Make what rows need of the database as a whole, and of its server."""
    with database.connect() as connection:
        for statement in _SETUP:
            with suppress(psycopg.errors.DuplicateObject):
                connection.execute(statement)


def run_rows(
    pipeline: MakePipeline,
    database: Database,
    rows: Sequence[Row],
    moment: Moment,
    *more: Compare,
) -> dict[str, Seen]:
    """Run rows of one kind of publisher at one moment, in a fresh database.

    Returns:
        what was seen, by the row's name.
    """
    return Batch(database, pipeline(database), rows, moment, *more).run()


def _lake(row: Row) -> str:
    """The row's subscription, and the folder of its targets."""
    return _OURS if row.publisher is Publisher.OURS else "lake"


def _execute(connection: psycopg.Connection[Any], row: Row, statements: Sequence[str]) -> None:
    execute(connection, row, *statements)


def _waits_for_snapshots(row: Row) -> bool:
    return any("CONCURRENTLY" in statement for statement in row.ddl)


def _execute_all(connection: psycopg.Connection[Any], row: Row) -> None:
    execute(connection, row, *row.ddl, row.after)


def _in_transaction(connection: psycopg.Connection[Any], row: Row) -> None:
    with connection.transaction():
        execute(connection, row, row.before, *row.ddl, row.after)


def _prepared(connection: psycopg.Connection[Any], row: Row) -> None:
    connection.execute("BEGIN")
    execute(connection, row, _FILL, row.before, *row.ddl, row.after, _FILL)
    connection.execute(f"PREPARE TRANSACTION '{row.slug}'")
    connection.execute(f"COMMIT PREPARED '{row.slug}'")


def _rolled_back(connection: psycopg.Connection[Any], row: Row) -> None:
    with connection.transaction():
        connection.execute("SAVEPOINT before")
        execute(connection, row, row.before, *row.ddl, row.after)
        connection.execute("ROLLBACK TO before")
        execute(connection, row, row.before)


def _copies(target: DeltaTable) -> set[str]:
    """The copies that the target's history has, by relation and number."""
    return {
        f"{commit['pgsluice.relation']} {commit['pgsluice.copy']}"
        for commit in target.history()
        if "pgsluice.copy" in commit
    }


def _columns(target: DeltaTable) -> list[str]:
    return [field.name for field in target.schema().fields]
