"""``status --check`` and ``/readyz`` in each state of a run: both say what is wrong, and when it is
over."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo
from tests.monitor.test_http_server import ask, free_port
from tests.support.clusters import CopiedServer
from tests.support.commands import Command
from tests.support.commands import pgsluice as pgsluice
from tests.support.databases import Database, MakeDatabase, fresh_database
from tests.support.local_spark import local_spark as local_spark
from tests.support.object_stores import ObjectStore
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.store_proxy import store_proxy
from tests.support.threads import beside

from pgsluice.errors import SlotLost
from pgsluice.monitor.metrics.serving import monitoring

pytestmark = pytest.mark.usefixtures("local_spark")

_HBA = """
host all,replication app 127.0.0.1/32 scram-sha-256
host all,replication postgres 127.0.0.1/32 trust
"""
_OK = "ok: .*"
Says = Callable[[str, bool], None]
Watch = Callable[..., AbstractContextManager[Says]]


@pytest.fixture
def watching(pgsluice: Command) -> Watch:
    """``with watching(one) as says``: ``says(line, is_ready)`` waits for an answer of both."""

    @contextmanager
    def watch(one: Pipeline, max_lag_s: int = 2) -> Iterator[Says]:
        port = free_port()
        with one.path.open("a") as file:
            file.write(f'[monitor]\nlisten = "127.0.0.1:{port}"\nmax_lag_s = {max_lag_s}\n')

        def says(line: str, is_ready: bool) -> None:
            said: list[object] = []

            def is_said() -> bool:
                checked = pgsluice("status", one.path, "--check", "--offline")
                code, body = ask(port, "/readyz")
                said[:] = [checked.code, checked.out, code, body]
                return (
                    re.fullmatch(line, checked.out.strip()) is not None
                    and (checked.code, code) == (int(line != _OK), 200 if is_ready else 503)
                    and body.startswith(b"ready\n" if is_ready else b"not ready\n")
                    and b"pgsluice drop CONFIG" not in body
                )

            one.wait_until(is_said, why=lambda: f"{line}, {is_ready=}: {said}")

        with monitoring(one.config, every_s=0.0):
            yield says

    return watch


def test_a_copy_a_parked_table_a_refused_password_and_a_dead_run(
    pipeline: MakePipeline, watching: Watch
) -> None:
    with CopiedServer(settings={"fsync": "off"}) as server, fresh_database(server) as shop:
        (server.data_dir / "pg_hba.conf").write_text(_HBA)
        shop.execute(
            "CREATE ROLE app SUPERUSER LOGIN PASSWORD 'first'",
            "SELECT pg_reload_conf()",
            "CREATE TABLE t (id int PRIMARY KEY, d date)",
        )
        one = pipeline(shop)
        one.subscription_options = 'on_unrepresentable = "fail"'
        one.write()
        secret = one.folder / "passfile"
        _write_password(secret, "first")
        dsn = make_conninfo(shop.dsn, user="app", passfile=secret)
        one.path.write_text(one.path.read_text().replace(shop.dsn, dsn))
        with watching(one, max_lag_s=3600) as says:  # a parked table is behind, too
            says("2 problems: capture does not run; lake: not started yet", False)
            with one.live():
                says(_OK, True)
                one.wait_applied()  # it knows the table
                _copies(one, shop, lambda: says(_OK, True))
                shop.execute("INSERT INTO t VALUES (1, 'infinity')")
                says(r"1 problem: lake: 1 table parked \(public.t\)", True)
                shop.execute("DELETE FROM t")
                one.copy("t")
                says(_OK, True)
                shop.execute("ALTER ROLE app PASSWORD 'second'", _CUT)
                says(
                    "1 problem: capture is reconnecting: .*password authentication failed.*", False
                )
                _write_password(secret, "second")
                says(_OK, True)
            says("2 problems: capture does not run; lake: no run is active", False)


_CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'"


def _write_password(path: Path, password: str) -> None:
    path.write_text(f"*:*:*:app:{password}\n")
    path.chmod(0o600)


def _copies(one: Pipeline, shop: Database, meanwhile: Callable[[], None]) -> None:
    """A copy that waits for a transaction, with what happens meanwhile."""
    with shop.connect() as holder:
        holder.execute("BEGIN")
        holder.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        with beside(lambda _: one.copy("t"), one.errors):
            try:
                one.wait_until(lambda: one.table("t").is_to_copy, why="the copy has begun")
                meanwhile()
            finally:
                holder.execute("ROLLBACK")
    one.wait_until(lambda: not one.table("t").is_to_copy, why="the copy has ended")


def test_a_full_spool(pipeline: MakePipeline, watching: Watch) -> None:
    settings = {"fsync": "off", "logical_decoding_work_mem": "64kB"}
    with CopiedServer(settings=settings) as server, fresh_database(server) as shop:
        shop.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        one = pipeline(shop)
        one.write(spool='max_bytes = "1MiB"')
        with watching(one) as says, one.live():
            says(_OK, True)
            with shop.connect() as writer:
                writer.execute("BEGIN")
                writer.execute(
                    "INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series(1, 40000) i"
                )
                says("1 problem: capture is waiting for room in the spool: .*", False)
                writer.execute("ROLLBACK")
            says(_OK, True)


def test_a_lost_slot(pipeline: MakePipeline, watching: Watch) -> None:
    settings = {"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "min_wal_size": "32MB"}
    settings["fsync"] = "off"
    with CopiedServer(settings=settings) as server, fresh_database(server) as shop:
        shop.execute("CREATE TABLE t (id int PRIMARY KEY)")
        one = pipeline(shop)
        one.once()
        for _ in range(3):
            shop.execute("SELECT pg_logical_emit_message(false, '', '')", "SELECT pg_switch_wal()")
        shop.execute("CHECKPOINT")
        with watching(one) as says:
            with pytest.raises(SlotLost):
                one.once()
            says(
                "3 problems: slot .* has lost WAL that it needs: wal_removed; capture does not run:"
                " slot .* is lost: .*; lake: no run is active",
                False,
            )


@pytest.mark.soak
def test_a_store_that_is_away(
    pipeline: MakePipeline,
    database: MakeDatabase,
    s3_store: ObjectStore,
    watching: Watch,
) -> None:
    shop = database()
    shop.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with store_proxy(s3_store.endpoint) as proxy:
        one = pipeline(shop)
        one.have_store(s3_store, proxy.endpoint)
        with watching(one) as says, one.live():
            says(_OK, True)
            proxy.refusal = (503, "SlowDown")
            shop.execute("INSERT INTO t VALUES (1)")
            says("2 problems: lake: .* behind, more than 2.00 s; lake: 1 table failing .*", False)
            proxy.refusal = None
            says(_OK, True)
