"""Runs scenarios together: one database, one run of pgsluice, then every target is compared."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
from tests.soak.subscription_tests.scenario import Scenario, is_about_publications
from tests.support.databases import Database
from tests.support.oracle import compare_exact
from tests.support.pipeline import Pipeline
from tests.support.settling import Settling

from pgsluice.config import Config
from pgsluice.errors import TablesUnfinished
from pgsluice.monitor.status import read_status
from pgsluice.subscription.running.run import run

_WITNESSES = "witnesses"
_PUBLICATION = f"CREATE PUBLICATION {_WITNESSES} FOR TABLES IN SCHEMA {_WITNESSES}"


class Run:
    """Scenarios on their way.

    Args:
        one: a pipeline of an empty database.
        scenarios: all of them.
        is_own: publish with publications of pgsluice's own; else with the server's.
        settings: of the server, for the database's sessions.
    """

    def __init__(
        self,
        one: Pipeline,
        scenarios: Sequence[Scenario],
        *,
        is_own: bool,
        settings: Sequence[str] = (),
    ) -> None:
        self._one = one
        self._scenarios = scenarios
        self._is_own = is_own
        self._settings = settings
        self._publications: list[str] = []
        self._is_to_publish = False
        self._is_to_reread = threading.Event()

    def run(self) -> dict[str, list[str]]:
        """Set up, copy, take every step, and compare.

        Returns:
            scenario -> what is wrong with its targets.
        """
        self._set_up()
        try:
            run(self._one.config, once=True)
        except TablesUnfinished as error:
            if error.hint:  # a table waits; those that are parked are compared in the end
                raise
        settling = Settling(self._one, schema=_WITNESSES)
        with self._one.live(reread=self._reread):
            settling.await_settled()
            prepared = [scenario for scenario in self._scenarios if scenario.prepares]
            others = [scenario for scenario in self._scenarios if not scenario.prepares]
            self._take_steps(others, settling.await_witness)
            # No table can be copied while a prepared transaction is open: a slot waits for it.
            self._take_steps(prepared, settling.await_settled)
            settling.await_witness()
            faults = self._compare(self._scenarios)
            failed = [scenario for scenario in self._scenarios if faults[scenario.name]]
            if failed:
                # What takes two looks: capture puts a table into a publication, then it is found.
                settling.await_witness()
                faults |= self._compare(failed)
        return faults

    # Setting up

    def _set_up(self) -> None:
        database = self._one.database
        database.execute(f"CREATE SCHEMA {_WITNESSES}")
        for setting in self._settings:
            database.execute(f'ALTER DATABASE "{database.name}" SET {setting}')
        for scenario in self._scenarios:
            database.execute(f"CREATE SCHEMA {scenario.slug}")
            self._execute(scenario, scenario.setup)
        made = [_PUBLICATION, *(s.sql(text) for s in self._scenarios for text in s.publications)]
        if self._is_own:
            self._publications = made
        else:
            database.execute(*made)
        self._write(database)

    def _write(self, database: Database) -> None:
        names = [_WITNESSES, *(name for s in self._scenarios for name in s.publication_names)]
        listed = "[" + ", ".join(f'"{name}"' for name in names) + "]"
        self._one.source = "two_phase = true"
        extra = f'publications = {listed}\n[publications]\nfile = "publications.sql"'
        self._one.write(extra if self._is_own else "", spool='max_bytes = "4 GiB"')
        if self._is_own:
            self._write_publications()
        else:
            text = self._one.path.read_text()
            own = f'publications = ["{database.name}"]'
            assert own in text
            self._one.path.write_text(text.replace(own, f"publications = {listed}"))

    def _write_publications(self) -> None:
        (self._one.folder / "publications.sql").write_text(";\n".join(self._publications))

    # Steps

    def _take_steps(self, scenarios: Sequence[Scenario], settle: Callable[[], None]) -> None:
        for number in range(max((len(one.steps) for one in scenarios), default=0)):
            for scenario in scenarios:
                for step in scenario.steps[number : number + 1]:
                    self._take(scenario, step)
            self._publish()
            settle()

    def _take(self, scenario: Scenario, step: list[str]) -> None:
        if self._is_own and is_about_publications(step):
            self._publications += map(scenario.sql, step)
            self._is_to_publish = True
        else:
            self._execute(scenario, step)

    def _publish(self) -> None:
        """Have the run read changed publications of pgsluice's own."""
        if self._is_to_publish:
            self._is_to_publish = False
            self._write_publications()
            self._is_to_reread.set()  # only now: the run looks several times a second
            self._one.wait_until(
                lambda: not self._is_to_reread.is_set(), why="the publications are read again"
            )

    def _reread(self) -> Config | None:
        """The configuration, once after each change of the publications."""
        if not self._is_to_reread.is_set():
            return None
        self._is_to_reread.clear()
        return self._one.config

    def _execute(self, scenario: Scenario, statements: Sequence[str]) -> None:
        with self._one.database.connect() as connection:
            connection.execute(f"SET search_path = {scenario.slug}".encode())
            for statement in statements:
                try:
                    connection.execute(scenario.sql(statement).encode())
                except psycopg.Error as error:
                    raise AssertionError(f"{scenario.name}: {statement}: {error}") from error

    # Comparing

    def _compare(self, scenarios: Sequence[Scenario]) -> dict[str, list[str]]:
        errors = {
            f"{table['schema']}.{table['table']}": str(table["error"])
            for subscription in read_status(self._one.config).to_json()["subscriptions"]
            for table in subscription["tables"]
            if table["state"] == "p"
        }
        with self._one.database.connect() as connection:
            return {one.name: self._faults(connection, one, errors) for one in scenarios}

    def _faults(
        self, connection: psycopg.Connection[Any], scenario: Scenario, errors: dict[str, str]
    ) -> list[str]:
        faults = []
        for table, query in scenario.expected(is_own=self._is_own).items():
            title = scenario.title(table)
            if title in errors:
                faults.append(f"{title} is parked: {errors[title]}")
            elif not self._target(title).exists():
                faults.append(f"{title} has no target")
            else:
                faults += self._differences(connection, scenario, title, query)
        for table, words in scenario.parked.items():
            error = errors.get(scenario.title(table))
            if error is None or not re.search(words, error):
                faults.append(f"{table} is not parked with “{words}”, but: {error}")
        faults += [
            f"{table} has a target"
            for table in scenario.absent
            if self._target(scenario.title(table)).exists()
        ]
        return faults

    def _differences(
        self, connection: psycopg.Connection[Any], scenario: Scenario, title: str, query: str
    ) -> list[str]:
        source = title
        if query:
            # In a schema that nobody publishes; a table, so that the judge knows its columns.
            source = "expected.rows"
            connection.execute("DROP SCHEMA IF EXISTS expected CASCADE")
            connection.execute("CREATE SCHEMA expected")
            connection.execute(f"SET search_path = {scenario.slug}".encode())
            connection.execute(f"CREATE UNLOGGED TABLE {source} AS {scenario.sql(query)}".encode())
            connection.execute("RESET search_path")
        missing, extra = compare_exact(connection, source, self._target(title))
        return [
            f"{title} {what} {rows}"
            for what, rows in (("lacks", missing), ("also has", extra))
            if rows
        ]

    def _target(self, title: str) -> Path:
        return self._one.folder / "lake" / title.replace(".", "/")
