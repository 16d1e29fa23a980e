"""Wrong on purpose: one clear message, the right exit code, and nothing lost.

What is wrong with the command line, the password, the host or Java is in ``tests/cli``.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.clusters import CopiedServer
from tests.support.databases import Database, MakeDatabase
from tests.support.local_spark import use_local_spark
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.verifying import verify

from pgsluice.cli.app import run_command
from pgsluice.embedded import EmbeddedServer
from pgsluice.errors import SourceUnreachable
from pgsluice.lsn import Lsn
from pgsluice.monitor.status import StatusReader
from pgsluice.replication import PgoutputOptions, ReplicationConnection
from pgsluice.subscription.copies.portion_queue import TableCopy
from pgsluice.subscription.copies.progress import CopyCounts

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture
def shop(database: MakeDatabase) -> Database:
    one = database()
    one.execute("CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t VALUES (1, 1)")
    return one


def refused(one: Pipeline, capfd: pytest.CaptureFixture[str], code: int, says: str) -> None:
    """``run --once`` ends with the code and says so once, without a traceback."""
    capfd.readouterr()
    got = run_command(["run", str(one.path), "--once"])
    error = capfd.readouterr().err
    messages = [line for line in error.splitlines() if line.startswith("pgsluice: ")]
    assert got == code, error
    assert len(messages) == 1, error
    assert "Traceback" not in error
    assert re.search(says, error), error
    assert "→" in error, "it says what to do next"


@pytest.fixture(scope="module")
def other_server() -> Iterator[EmbeddedServer]:
    """A server with one slot and other settings than the tests' own."""
    with CopiedServer(settings={"max_replication_slots": "1", "fsync": "off"}) as server:
        yield server


def test_a_server_without_a_free_slot_and_one_with_wal_level_replica(
    other_server: EmbeddedServer, pipeline: MakePipeline, capfd: pytest.CaptureFixture[str]
) -> None:
    elsewhere = Database(other_server, "postgres")
    elsewhere.execute("SELECT pg_create_physical_replication_slot('taken')")
    refused(pipeline(elsewhere), capfd, 3, "slots")
    elsewhere.execute("SELECT pg_drop_replication_slot('taken')")
    other_server.settings["wal_level"] = "replica"
    other_server.restart()
    refused(pipeline(elsewhere), capfd, 3, "wal_level")
    other_server.settings["wal_level"] = "logical"
    other_server.restart()


def test_a_slot_in_use_by_another_and_then_a_full_disk_at_the_spool(
    shop: Database,
    pipeline: MakePipeline,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = pipeline(shop)
    one.once()
    # With nothing to do a run would end before it meets the other one.
    shop.execute("INSERT INTO t VALUES (2, 2)")
    with ReplicationConnection.connect(shop.dsn, 10) as other:
        options = PgoutputOptions(publication_names=(shop.name,), proto_version=1)
        # It acknowledges nothing: what it reads is still there for us afterwards.
        other.start_replication(shop.name, Lsn(0), options)
        refused(one, capfd, 3, "active|in use")
    shop.execute("INSERT INTO t SELECT i, i FROM generate_series(10, 5000) i")
    # Capture is a process of its own and takes its failpoints from the environment.
    monkeypatch.setenv("PGSLUICE_FAILPOINTS", "spool.write=enospc")
    refused(one, capfd, 1, "[Nn]o (room|space)")
    monkeypatch.delenv("PGSLUICE_FAILPOINTS")
    one.once()
    one.assert_equal("t")


def test_a_slot_that_is_not_the_spools(
    shop: Database,
    pipeline: MakePipeline,
    capfd: pytest.CaptureFixture[str],
    other_server: EmbeddedServer,
) -> None:
    """It moved past the spool, it is gone, it is one of another system."""
    one = pipeline(shop)
    one.once()
    if shop.server.programs.major >= 11:
        to_the_end = f"pg_replication_slot_advance('{shop.name}', pg_current_wal_flush_lsn())"
        shop.execute(
            "INSERT INTO t VALUES (2, 2)",
            f"SELECT {to_the_end}",
            "INSERT INTO t VALUES (3, 3)",
            # What is missing would be found only by the slot's own position.
            f"SELECT {to_the_end}",
        )
        refused(one, capfd, 3, "past the spool's end")
    shop.execute(f"SELECT pg_drop_replication_slot('{shop.name}')")
    refused(one, capfd, 3, "no longer exists")
    assert StatusReader(one.config, asks_server=False).read().source.to_json()["exists"] is False
    elsewhere = Database(other_server, shop.name)
    Database(other_server, "postgres").execute(f'CREATE DATABASE "{shop.name}"')
    elsewhere.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    one.database = elsewhere
    one.write()
    refused(one, capfd, 3, "another|system")


def test_a_target_with_the_position_of_another_source(
    shop: Database,
    pipeline: MakePipeline,
    capfd: pytest.CaptureFixture[str],
    database: MakeDatabase,
) -> None:
    one = pipeline(shop)
    one.once()
    other_shop = database()
    other_shop.execute("CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t VALUES (9, 9)")
    other = pipeline(other_shop)
    shutil.copytree(one.lake, other.lake)
    refused(other, capfd, 1, "from another spool")
    assert other.delta("t").version() == one.delta("t").version()
    assert other.table("t").state == "p"
    # Only a copy that the user asks for, and agrees to, takes it over.
    assert run_command(["copy", str(other.path), "t"]) == 2
    pasted = re.search("which deletes the old ones: pgsluice (copy .*)", capfd.readouterr().err)
    assert pasted is not None
    assert other.delta("t").version() == one.delta("t").version()
    assert run_command(shlex.split(pasted[1])) == 0
    other.once()
    other.assert_equal("t")


def test_a_table_without_a_usable_identity_that_is_updated(
    database: MakeDatabase, pipeline: MakePipeline, capfd: pytest.CaptureFixture[str]
) -> None:
    """A table without a key, where deleted rows stay: they are found by a key."""
    shop = database()
    shop.execute(
        "CREATE TABLE bag (a int, b int)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        "INSERT INTO bag VALUES (1, 1), (2, 1)",
        "CREATE TABLE t (id int PRIMARY KEY)",
    )
    one = pipeline(shop, extra='deleted_column = "gone_at"')
    one.once()
    shop.execute("UPDATE bag SET b = 2", "INSERT INTO t VALUES (5)")
    refused(one, capfd, 1, r"public\.bag.* no key with a unique index")
    one.assert_equal("t")


@pytest.mark.soak  # make soak AREA=long
def test_a_disk_that_is_really_full(
    shop: Database,
    pipeline: MakePipeline,
    capfd: pytest.CaptureFixture[str],
    small_disk: Callable[[Path, str], None],
) -> None:
    """Of the target, while a table is copied; and of the spool."""
    shop.execute(
        "CREATE TABLE large (id int PRIMARY KEY, v text)",
        "INSERT INTO large SELECT i, md5(i::text) FROM generate_series(1, 60000) i",
    )
    one = pipeline(shop)
    small_disk(one.spool, "3m")
    small_disk(one.lake, "1m")
    refused(one, capfd, 1, r"public\.large: no room is left on the disk of .*/lake/public/large")
    assert "no room is left" in (one.table("large").error or "")
    small_disk(one.lake, "64m")
    one.once()
    one.assert_equal("t", "large")
    shop.execute(
        "INSERT INTO t SELECT i, i FROM generate_series(10, 100000) i",
        "INSERT INTO t VALUES (9, 9)",
    )
    refused(one, capfd, 1, "[Nn]o (room|space)")
    small_disk(one.spool, "64m")
    one.once()
    one.assert_equal("t")


@pytest.mark.soak  # make soak AREA=long
def test_a_copy_that_did_not_fit_leaves_its_room(
    shop: Database,
    pipeline: MakePipeline,
    capfd: pytest.CaptureFixture[str],
    small_disk: Callable[[Path, str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is begun again, and needs all of its room."""
    use_local_spark(monkeypatch)
    monkeypatch.setattr("pgsluice.snapshots.plan.PORTION_BYTES", 500_000)
    shop.execute(
        "CREATE TABLE large (id int PRIMARY KEY, v text)",
        "INSERT INTO large SELECT i, md5(i::text) FROM generate_series(1, 60000) i",
    )
    one = pipeline(shop)
    small_disk(one.lake, "2m")
    refused(one, capfd, 1, r"public\.large: no room is left on the disk of .*/lake/public/large")
    assert not [*one.lake.glob("*/large/*")]
    small_disk(one.lake, "4m")
    one.once()
    one.assert_equal("t", "large")

    # Changes that do not fit are lag, although the subscription's position has passed them.
    assert lag_of(one, "large")[2:] == (0.0, None)
    shop.execute(
        "INSERT INTO large SELECT i, md5(i::text) || md5((-i)::text)"
        " FROM generate_series(100001, 160000) i"
    )
    refused(one, capfd, 1, r"public\.large: .*no room is left on the disk of .*/public/large")
    state, size, age_s, why = lag_of(one, "large")
    assert (state, why is not None and "no room is left" in why) == ("f", True)
    assert size > 0
    assert age_s > 0
    small_disk(one.lake, "64m")
    one.once()
    one.assert_equal("t", "large")
    assert lag_of(one, "large")[2:] == (0.0, None)


def lag_of(one: Pipeline, name: str) -> tuple[str, int, float, str | None]:
    """A table's state, bytes and seconds of lag, and what it waits for, by ``pgsluice status``."""
    (lake,) = one.status()["subscriptions"]
    (table,) = (table for table in lake["tables"] if table["table"] == name)
    assert lake["lag_bytes"] >= table["lag_bytes"]
    return table["state"], table["lag_bytes"], table["lag_s"], table["waits_for"]


def test_copies_that_break_off_leave_their_room(
    shop: Database, pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_local_spark(monkeypatch)
    monkeypatch.setattr("pgsluice.snapshots.plan.PORTION_BYTES", 500_000)
    shop.execute(
        "CREATE TABLE large (id int PRIMARY KEY, v text)",
        "INSERT INTO large SELECT i, md5(i::text) FROM generate_series(1, 60000) i",
    )
    one, staged = pipeline(shop), list[Path]()
    report = CopyCounts.staged

    def broken(counts: CopyCounts, copy: TableCopy, number: int) -> None:
        report(counts, copy, number)
        if copy.work.name == "large" and not staged:
            staged.extend(one.lake.glob("*/large/**/*.parquet"))
            raise SourceUnreachable("the server went away")
        assert not any(path.exists() for path in staged)

    monkeypatch.setattr(CopyCounts, "staged", broken)
    one.once()
    assert staged
    one.assert_equal("t", "large")


def test_what_parks_a_table_is_said_once_with_what_to_do(
    pipeline: MakePipeline, shop: Database, capfd: pytest.CaptureFixture[str]
) -> None:
    shop.execute(
        'CREATE TABLE twins ("A" int PRIMARY KEY, a text)',
        "CREATE TABLE far (id int PRIMARY KEY, ts timestamp)",
        "INSERT INTO far VALUES (1, 'infinity')",
    )
    one = pipeline(shop, extra='on_unrepresentable = "fail"')
    for _ in range(2):  # also a run that finds them parked says so
        refused(one, capfd, 1, "2 tables are parked")
    capfd.readouterr()
    assert run_command(["run", str(one.path), "--once"]) == 1
    said = capfd.readouterr()
    for text in (said.out, said.err):
        assert text.count("public.far") >= 1
        assert "public.far: public.far" not in text
        assert "1 value of column ts (timestamp) does not fit" in text
        assert "the columns A and a of table public.twins differ only by upper" in text
        assert f"pgsluice copy {one.path} public.twins" in text
    one.assert_equal("t")
    one.copy("t")  # others that are parked are no failure of a copy
    assert run_command(["copy", str(one.path), "far"]) == 1


def test_values_that_do_not_fit_are_kept_as_text_as_the_hint_says(
    pipeline: MakePipeline, shop: Database, capfd: pytest.CaptureFixture[str]
) -> None:
    """Copied and streamed, whatever the column's type; a number's type is for numerics only."""
    shop.execute(
        'CREATE TABLE far (id int PRIMARY KEY, "t""s" timestamp, days date[],'
        " at timestamptz, ok bool)",
        "INSERT INTO far SELECT i, 'infinity', '{{2024-01-01},{infinity}}', 'now', true"
        " FROM generate_series(1, 9) i",
    )
    one = pipeline(shop, extra='on_unrepresentable = "fail"')
    refused(one, capfd, 1, "do not fit")
    capfd.readouterr()
    assert run_command(["status", str(one.path)]) == 0
    found = re.search(r"types = \{ .* \}", capfd.readouterr().out)
    assert found is not None
    types = r'types = {{ "public.far.t\"s" = "string", "public.far.days" = "string"{} }}'
    assert found[0] == types.format("")

    one.write(types.format(', "public.far.ok" = "string", "public.far.at" = "string"') + "\n")
    assert run_command(["copy", str(one.path), "public.far"]) == 0
    shop.execute(
        "UPDATE far SET days = NULL, ok = NOT ok, at = '-infinity' WHERE id > 5",
        """INSERT INTO far VALUES (10, '-infinity', '{}', '1999-01-01 00:00:00.5+05', NULL)""",
    )
    code, results = verify(one, capfd)
    assert code == 0, results
    assert one.delta("far").to_pyarrow_table().schema.field("ok").type == "string"

    one.write('types = { "public.far.id" = "double" }\n')
    assert run_command(["copy", str(one.path), "public.far"]) == 1
    assert "but this column is int4, not numeric" in capfd.readouterr().err
