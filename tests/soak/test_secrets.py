"""Passwords, keys and values of rows are in the source, the spool and targets, and nowhere else.

Searched are logs, command lines, the environment that Spark shows, its UI, plans and event log,
checkpoints, records, metrics, the page, and what commands print.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import psutil
import pytest
from psycopg.conninfo import make_conninfo
from tests.monitor.test_http_server import free_port
from tests.soak.report import Report
from tests.soak.watched_stream import pages_of
from tests.support.clusters import CopiedServer
from tests.support.databases import Database, fresh_database
from tests.support.object_stores import SECRET, ObjectStore
from tests.support.pipeline import BUCKET, MakePipeline, Pipeline
from tests.support.waiting import HANGS_S

pytestmark = pytest.mark.soak

PASSWORD, LATER = "Pa55-of-app", "Pa55-later"
VALUE = "a-rows-own-value"
_HBA = """
host all,replication app 127.0.0.1/32 scram-sha-256
host all,replication postgres 127.0.0.1/32 trust
"""
_OF_ROWS = ("segments", "parts", "prepared", "staging", "snapshot")
"""Folders of the spool that have rows."""


@pytest.fixture
def shop() -> Iterator[Database]:
    """A database in which the role app has to give a password."""
    with CopiedServer(settings={"fsync": "off"}) as server, fresh_database(server) as made:
        (server.data_dir / "pg_hba.conf").write_text(_HBA)
        made.execute(
            f"CREATE ROLE app SUPERUSER LOGIN PASSWORD '{PASSWORD}'",
            "SELECT pg_reload_conf()",
            "CREATE TABLE t (id serial PRIMARY KEY, v text, n numeric)",
            "CREATE TABLE u (id int PRIMARY KEY, v text, d date)",
            f"INSERT INTO t (v) SELECT '{VALUE}' FROM generate_series(1, 1000)",
        )
        yield made


@pytest.fixture
def row(report: Report, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """The test's row of the page."""
    title = "secrets and values of a " + request.node.name.rpartition("_")[2]
    with report.row(title, 0) as line:
        line["shown"] = "**not passed**"
        yield line


def _command_lines(one: Pipeline) -> str:
    """Of a run and of all that it has started."""
    run = psutil.Process(one.processes[0].pid)
    found = []
    for process in (run, *run.children(recursive=True)):
        with suppress(psutil.Error):  # it has just ended
            found.append(" ".join(process.cmdline()))
    return "\n".join(found)


def _page(port: int, path: str) -> str:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            text: str = answer.read().decode()
    except HTTPError as error:  # /readyz says no
        text = error.read().decode()
    return text


def _files(folder: Path, without: tuple[str, ...] = ()) -> str:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    kept = [path for path in paths if not set(without) & set(path.parts)]
    return "\n".join(f"{path} {path.read_bytes().decode(errors='replace')}" for path in kept)


def _assert_in_none(
    row: dict[str, str], secrets: tuple[str, ...], places: Mapping[str, str]
) -> None:
    assert all(places.values()), "each place was read"
    found = [
        f"{secret} in {place}: …{text[max(at - 150, 0) : at + 80]}…"
        for place, text in places.items()
        for secret in secrets
        if (at := text.find(secret)) >= 0
    ]
    assert found == []
    kib = sum(map(len, places.values())) / 1024
    row["figures"] = f"{len(secrets)} secrets, {len(places)} places, {kib:,.0f} KiB"
    row["shown"] = f"in none of: {', '.join(places)}"


def test_of_a_run(
    shop: Database, s3_store: ObjectStore, pipeline: MakePipeline, row: dict[str, str]
) -> None:
    """Tables in a store, a parked one, a refused password, and each command."""
    port, ui = free_port(), free_port()
    one = pipeline(shop)
    events = one.folder / "events"
    events.mkdir()
    one.spark |= {
        "spark.ui.enabled": "true",
        "spark.ui.port": str(ui),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": str(events),
    }
    one.subscription_options = 'on_unrepresentable = "fail"'
    one.have_store(s3_store)
    one.lake_uri = f"s3://{BUCKET}/{uuid.uuid4()}"
    one.write(f'[monitor]\nlisten = "127.0.0.1:{port}"\ntables = true\n')
    dsn = make_conninfo(shop.dsn, user="app", password=PASSWORD)
    one.path.write_text(one.path.read_text().replace(json.dumps(shop.dsn), json.dumps(dsn)))
    assert SECRET in one.path.read_text()
    one.start("run", "--debug")
    one.wait_until(one.spool.exists, why="the run works")
    one.wait_applied()
    shop.execute(
        f"INSERT INTO u VALUES (1, '{VALUE}', 'infinity')",
        f"INSERT INTO t (v) SELECT '{VALUE}' FROM generate_series(1, 1000)",
    )
    one.wait_until(lambda: one.table("u").is_parked, why="u is parked")
    places = {"command lines": _command_lines(one), "Spark's UI": pages_of(ui)}
    for path in ("/", "/metrics", "/status.json", "/readyz"):
        places[path] = _page(port, path)
    for words in ("status", "status --json", "check", "describe", "explain t", "verify"):
        name, *more = words.split()
        done = one.command(name, str(one.path), *more, "--debug")
        places[words] = done.stdout + done.stderr
    shop.execute(
        f"ALTER ROLE app PASSWORD '{LATER}'",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'",
    )
    log = one.folder / "run.log"
    one.wait_until(lambda: "authentication failed" in log.read_text(), why="it is refused")
    places["refused"] = one.command("status", str(one.path), "--debug").stdout
    places["command lines, later"] = _command_lines(one)
    one.stop()
    places["the log"] = log.read_text()
    places["Spark's event log"] = _files(events)
    places["the spool"] = _files(one.spool, without=_OF_ROWS)
    assert "public.u" in places["the log"]
    _assert_in_none(row, (PASSWORD, LATER, SECRET, VALUE), places)


def test_of_a_stream(shop: Database, tmp_path: Path, row: dict[str, str]) -> None:
    """The source's options have the password; Spark shows plans and options of queries."""
    dsn = make_conninfo(shop.dsn, user="app", password=PASSWORD)
    options = {
        "dsn": dsn,
        "spool": str(tmp_path / "spool"),
        "subscription": "audit",
        "table": "public.t",
        "starting_position": "snapshot",
    }
    command = [sys.executable, "-m", "tests.soak.watched_stream", str(tmp_path), str(free_port())]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    ) as process:
        out, _ = process.communicate(json.dumps(options), timeout=HANGS_S * 3)
    assert process.returncode == 0, out[-3000:]
    assert "rows: 1000" in out
    places = {
        "plans, progress, the UI and the log": out,
        "checkpoint": _files(tmp_path / "checkpoint"),
        "Spark's event log": _files(tmp_path / "events"),
        "the spool": _files(tmp_path / "spool", without=_OF_ROWS),
    }
    _assert_in_none(row, (PASSWORD, VALUE), places)
