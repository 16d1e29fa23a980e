"""What is printed about a server, a slot or a setting works as printed, one after the other.

All share one server of their own, which begins as PostgreSQL is delivered: without logical WAL and
with one slot, which is taken.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from tests.pipeline.remedies import find
from tests.support.clusters import CopiedServer
from tests.support.commands import Command
from tests.support.commands import pgsluice as pgsluice
from tests.support.databases import Database, fresh_database
from tests.support.local_spark import local_spark as local_spark
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.rights import printed_statements

_NEAREST = re.compile(r'did you mean "(\w+)"')
_SLOT = re.compile(r'(slot = "\w+")')
_MEGABYTE = """INSERT INTO t (v) SELECT string_agg(md5(random()::text), '')
    FROM generate_series(1, 32 * 1000) n GROUP BY n % 1000"""
_DROP = re.compile(r"`pgsluice (drop .*?)`, move the target tables away, then start pgsluice again")


@pytest.fixture
def shop() -> Iterator[Database]:
    settings = {"wal_level": "replica", "max_replication_slots": "1"}
    with CopiedServer(settings=settings) as server, fresh_database(server) as made:
        made.execute("CREATE TABLE t (id serial PRIMARY KEY, v text)")
        made.execute("INSERT INTO t (v) VALUES ('first')")
        yield made


@pytest.mark.usefixtures("local_spark")
def test_each_printed_remedy_ends_its_trouble(
    shop: Database, pipeline: MakePipeline, pgsluice: Command
) -> None:
    one = pipeline(shop)
    one.path.write_text(one.path.read_text().replace("catalog_poll_s", "catalogue_poll_s"))
    outcome = pgsluice("check", one.path)
    assert outcome.code == 2
    _replace(one, "catalogue_poll_s", find(_NEAREST, outcome.err))
    _configure_the_server(one, pgsluice)
    _name_another_slot(one, pgsluice)
    _give_the_password(one, pgsluice)
    _stop_another_reader(one, pgsluice)
    _give_the_spool_more_room(one, pgsluice)
    _begin_anew(one, pgsluice)


def _configure_the_server(one: Pipeline, pgsluice: Command) -> None:
    """wal_level and max_replication_slots."""
    one.database.execute("SELECT pg_create_physical_replication_slot('theirs')")
    statements = [
        statement
        for statement in printed_statements(pgsluice("check", one.path).out)
        if "wal_level" in statement or "max_replication_slots" in statement
    ]
    assert len(statements) == 2
    one.database.execute(*statements)
    one.database.server.restart()
    outcome = pgsluice("check", one.path)
    assert "error   " not in outcome.out
    assert outcome.code == 0
    one.database.execute("SELECT pg_drop_replication_slot('theirs')")


def _name_another_slot(one: Pipeline, pgsluice: Command) -> None:
    """The slot is no one of pgoutput's."""
    name = one.database.name
    one.database.execute(f"SELECT pg_create_physical_replication_slot('{name}')")
    outcome = pgsluice("run", one.path, "--once")
    assert outcome.code == 3, outcome.err
    _replace(one, f'slot = "{name}"', find(_SLOT, outcome.err))
    outcome = pgsluice("run", one.path, "--once")
    assert outcome.code == 0, outcome.err
    one.assert_equal("t")
    one.database.execute(f"SELECT pg_drop_replication_slot('{name}')")


def _give_the_password(one: Pipeline, pgsluice: Command) -> None:
    shop = one.database
    shop.execute("ALTER ROLE postgres PASSWORD 'right'", "INSERT INTO t (v) VALUES ('second')")
    hba = shop.server.data_dir / "pg_hba.conf"
    before = hba.read_text()
    rules = "".join(
        f"host {databases} postgres all scram-sha-256\n" for databases in (shop.name, "replication")
    )
    hba.write_text(rules + before)
    with shop.connect() as connection:
        connection.execute("SELECT pg_reload_conf()")
        dsn = shop.dsn
        _replace(one, dsn, f"{dsn} password=wrong")
        outcome = pgsluice("run", one.path, "--once")
        assert outcome.code == 3
        assert "check user and password in the dsn" in outcome.err
        _replace(one, "password=wrong", "password=right")
        outcome = pgsluice("run", one.path, "--once")
        assert outcome.code == 0, outcome.err
        hba.write_text(before)
        connection.execute("SELECT pg_reload_conf()")
    one.assert_equal("t")


def _stop_another_reader(one: Pipeline, pgsluice: Command) -> None:
    """Another process reads the slot, which confirms nothing."""
    shop = one.database
    slot = find(re.compile(r'slot = "(\w+)"'), one.path.read_text())
    reader = subprocess.Popen(
        [
            *(str(shop.server.program("pg_recvlogical")), "--start", "-d", shop.dsn, "-S", slot),
            *("-F", "0", "-s", "0", "--no-loop"),
            *("-f", "/dev/null", "-o", "proto_version=1", "-o", f"publication_names={shop.name}"),
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        is_read = f"SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'"
        one.wait_until(lambda: shop.execute(is_read) == [(True,)], why="the slot is read")
        shop.execute("INSERT INTO t (v) VALUES ('third')")
        outcome = pgsluice("run", one.path, "--once")
        assert outcome.code == 3
        assert "another process reads this slot: stop it" in outcome.err
        process = find(re.compile(r"is active for PID (\d+)"), outcome.err)
        shop.execute(f"SELECT pg_terminate_backend({process})")
        one.wait_until(lambda: shop.execute(is_read) == [(False,)], why="the slot is free")
        outcome = pgsluice("run", one.path, "--once")
        assert outcome.code == 0, outcome.err
    finally:
        reader.kill()
        reader.wait()
    one.assert_equal("t")


def _give_the_spool_more_room(one: Pipeline, pgsluice: Command) -> None:
    """An open transaction is larger than the spool may be, beside a run."""
    small = 'segment_bytes = "64 KiB"\nmax_bytes = "1 MiB"'
    _replace(one, 'path = "spool"', f'path = "spool"\n{small}')
    one.database.execute(
        f"ALTER DATABASE {one.database.name} SET logical_decoding_work_mem = '64kB'"
    )
    texts: list[str] = []
    with one.database.connect() as writer:
        with one.live():
            writer.execute("BEGIN")

            def is_full() -> bool:
                writer.execute(_MEGABYTE)
                texts.append(pgsluice("status", one.path).out)
                return "its rollback frees it; if it is to commit" in texts[-1]

            one.wait_until(is_full, why="the spool is full")
        key = find(re.compile(r"raise spool\.(\w+) and start pgsluice again"), texts[-1])
        writer.execute("COMMIT")
    _replace(one, f'{key} = "1 MiB"', f'{key} = "1 GiB"')
    outcome = pgsluice("run", one.path, "--once")
    assert outcome.code == 0, outcome.err
    one.assert_equal("t")


def _begin_anew(one: Pipeline, pgsluice: Command) -> None:
    """The slot is gone, with changes that nobody has."""
    slot = find(re.compile(r'slot = "(\w+)"'), one.path.read_text())
    one.database.execute(
        f"SELECT pg_drop_replication_slot('{slot}')", "INSERT INTO t (v) VALUES ('lost')"
    )
    outcome = pgsluice("run", one.path, "--once")
    assert outcome.code == 3
    outcome = pgsluice(*shlex.split(find(_DROP, outcome.err)), "--yes")
    assert outcome.code == 0, outcome.err
    shutil.move(one.lake, one.folder / "moved")
    outcome = pgsluice("run", one.path, "--once")
    assert outcome.code == 0, outcome.err
    one.assert_equal("t")


def _replace(one: Pipeline, old: str, new: str) -> None:
    text = one.path.read_text()
    assert old in text
    one.path.write_text(text.replace(old, new, 1))
