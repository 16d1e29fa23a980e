"""``pgsluice check`` against real servers: it names each problem and what to do."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from tests.support.capturing import confirmed, inserted, running
from tests.support.clusters import CopiedServer
from tests.support.commands import Command, Outcome, WriteConfig
from tests.support.databases import Database, MakeDatabase
from tests.support.rights import printed_rights
from tests.support.threads import beside
from tests.support.waiting import await_that

from pgsluice.capture import run_capture
from pgsluice.config import load_config
from pgsluice.embedded import EmbeddedServer
from pgsluice.spool import SpoolReader

_TABLES = """
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE log (v text);
ALTER TABLE log ENABLE ROW LEVEL SECURITY;
CREATE SCHEMA "Shop";
CREATE TABLE "Shop"."Item" (id int PRIMARY KEY);
"""


@pytest.fixture
def shop(database: MakeDatabase) -> Database:
    shop = database()
    shop.execute(_TABLES)
    return shop


@pytest.fixture
def role(shop: Database) -> Iterator[str]:
    """A role that may log in, and nothing else."""
    name = f"app_{uuid.uuid4().hex[:8]}"
    shop.execute(f"CREATE ROLE {name} LOGIN")
    yield name
    with psycopg.connect(shop.server.dsn(), autocommit=True) as connection:
        connection.execute(
            sql.SQL("REVOKE ALL ON DATABASE {} FROM {}").format(
                sql.Identifier(shop.name), sql.Identifier(name)
            )
        )
    shop.execute(f"DROP OWNED BY {name}", f"DROP ROLE {name}")


@pytest.fixture(scope="module")
def replica() -> Iterator[EmbeddedServer]:
    """A server with wal_level = replica, no free slot, and commits that wait for any standby."""
    settings = {
        "wal_level": "replica",
        "max_replication_slots": "0",
        "max_wal_senders": "1",
        "synchronous_standby_names": "*",
        "synchronous_commit": "local",
    }
    with CopiedServer(18, settings=settings) as server:
        yield server


def test_a_source_that_is_ready(
    shop: Database, pgsluice: Command, write_config: WriteConfig
) -> None:
    outcome = pgsluice("check", write_config(shop.dsn))
    assert outcome.code == 0, outcome.out
    lines = outcome.out.splitlines()
    assert any(line.startswith("ok      wal_level: logical") for line in lines)
    inserts_only = "sends only the inserts of these tables, which have no replica identity: "
    assert any("the first run creates it" in line for line in lines)
    assert any(f"{inserts_only}public.log" in line for line in lines)
    assert "error   " not in outcome.out


def test_what_capture_receives_meanwhile_is_no_gap(
    shop: Database, pgsluice: Command, write_config: WriteConfig
) -> None:
    """The slot moves on between the looks at the spool and at the server."""
    config = load_config(path := write_config(shop.dsn, shop.name))
    waits = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'pg_publication'::regclass"
    outcomes: list[Outcome] = []
    run_capture(config, once=True)
    with running(config), shop.connect() as holder:
        shop.execute("INSERT INTO t VALUES (1)")
        await_that(lambda: inserted(config) == [b"1"])
        end = SpoolReader(config.spool.place).frontier()
        await_that(lambda: confirmed(shop) >= end)
        holder.execute("BEGIN; LOCK TABLE pg_catalog.pg_publication IN ACCESS EXCLUSIVE MODE")
        with beside(lambda _: outcomes.append(pgsluice("check", path))):
            await_that(lambda: bool(shop.execute(waits)))
            end = SpoolReader(config.spool.place).frontier()
            shop.execute("INSERT INTO t VALUES (2)")
            await_that(lambda: confirmed(shop) > end)
            holder.execute("COMMIT")
    (outcome,) = outcomes
    assert "error   " not in outcome.out
    assert outcome.code == 0


def test_a_slot_that_nobody_used_for_too_long(pgsluice: Command, write_config: WriteConfig) -> None:
    with CopiedServer(18, settings={"idle_replication_slot_timeout": "1s"}) as server:
        database = Database(server, "postgres")
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        path = write_config(database.dsn)
        outcome = pgsluice("check", path)
        assert "drops a slot that nobody uses for 1.00 s" in outcome.out
        assert "the first run creates it as a failover slot" in outcome.out
        database.execute("SELECT pg_create_logical_replication_slot('pgsluice', 'pgoutput')")
        is_lost = "SELECT invalidation_reason = 'idle_timeout' FROM pg_replication_slots"
        while database.execute("CHECKPOINT", is_lost) != [(True,)]:
            time.sleep(0.1)
        outcome = pgsluice("check", path)
    assert outcome.code == 1
    assert "is lost: it was unused for longer than the server's" in outcome.out
    assert "→ raise that setting, or set it to 0, then run `pgsluice drop" in outcome.out
    assert "raise max_slot_wal_keep_size" not in outcome.out


def test_a_stream_that_waits_for_a_standby(pgsluice: Command, write_config: WriteConfig) -> None:
    with CopiedServer(18, settings={"synchronized_standby_slots": "standby_1"}) as server:
        database = Database(server, "postgres")
        database.execute(
            "SELECT pg_create_physical_replication_slot('standby_1')",
            "SELECT pg_create_logical_replication_slot('pgsluice', 'pgoutput', failover => true)",
        )
        outcome = pgsluice("check", write_config(database.dsn))
        assert "sends nothing to slot" in outcome.out
        assert "are in use: standby_1" in outcome.out


def test_it_changes_nothing(shop: Database, pgsluice: Command, write_config: WriteConfig) -> None:
    path = write_config(shop.dsn)
    pgsluice("check", path)
    assert shop.execute("SELECT count(*) FROM pg_publication") == [(0,)]
    assert shop.execute("SELECT count(*) FROM pg_replication_slots WHERE slot_name='pgsluice'") == [
        (0,)
    ]
    assert sorted(path.parent.iterdir()) == [path]


def test_a_role_without_rights_gets_the_statements_to_run(
    shop: Database, role: str, pgsluice: Command, write_config: WriteConfig
) -> None:
    path = write_config(make_conninfo(shop.dsn, user=role))
    outcome = pgsluice("check", path)
    assert outcome.code == 1
    assert f"error   role: role {role} does not have the REPLICATION attribute" in outcome.out
    assert f"→ ALTER ROLE {role} REPLICATION;" in outcome.out
    assert f'→ GRANT USAGE ON SCHEMA "Shop" TO {role};' in outcome.out
    select = f'GRANT SELECT ON "Shop"."Item", public.log, public.t TO {role};'
    assert f"\n{' ' * 11}{select}\n" in outcome.out, "an arrow stands before the first line only"
    assert f"→ ALTER ROLE {role} BYPASSRLS;" in outcome.out
    assert "may not publish these tables, which it does not own" in outcome.out
    assert 'CREATE PUBLICATION "pgsluice" FOR TABLE ' in outcome.out


def test_the_printed_statements_solve_the_problems(
    shop: Database, role: str, pgsluice: Command, write_config: WriteConfig
) -> None:
    path = write_config(make_conninfo(shop.dsn, user=role))
    shop.execute(*printed_rights(pgsluice("check", path).out))
    outcome = pgsluice("check", path)
    assert outcome.code == 0, outcome.out


def test_a_role_that_may_have_few_connections(
    shop: Database, role: str, pgsluice: Command, write_config: WriteConfig
) -> None:
    path = write_config(make_conninfo(shop.dsn, user=role))
    shop.execute(f"ALTER ROLE {role} CONNECTION LIMIT 3")
    outcome = pgsluice("check", path)
    assert f"the CONNECTION LIMIT of {role} allows 3 connections, and 1 of them" in outcome.out
    assert "`pgsluice run` opens up to 12" in outcome.out
    shop.execute(f"ALTER ROLE {role} CONNECTION LIMIT 13")
    connected = f"SELECT FROM pg_stat_activity WHERE usename = '{role}'"
    await_that(lambda: not shop.execute(connected), "the server has closed check's connection")
    assert "CONNECTION LIMIT" not in pgsluice("check", path).out


def test_a_role_whose_sessions_may_not_write(
    shop: Database, pgsluice: Command, write_config: WriteConfig
) -> None:
    path = write_config(make_conninfo(shop.dsn, options="-c default_transaction_read_only=on"))
    outcome = pgsluice("check", path)
    assert outcome.code == 1
    words = (
        "error   publication: publication pgsluice does not exist, and sessions of role postgres "
        "may not write"
    )
    assert words in outcome.out
    statement = f"→ ALTER ROLE postgres IN DATABASE {shop.name} SET default_transaction_read_only"
    assert f"{statement} = off;" in outcome.out


def test_a_server_with_default_settings(
    replica: EmbeddedServer, pgsluice: Command, write_config: WriteConfig
) -> None:
    outcome = pgsluice("check", write_config(replica.dsn()))
    assert outcome.code == 1
    assert "error   wal_level: the server's wal_level is replica" in outcome.out
    assert "→ ALTER SYSTEM SET wal_level = logical;" in outcome.out
    assert "synchronous_standby_names: the server treats pgsluice as a" in outcome.out
    assert "error   max_replication_slots: all 0 of the server's max_repl" in outcome.out
    assert "→ ALTER SYSTEM SET max_replication_slots = 2;" in outcome.out
    assert "warning max_wal_senders: the server's max_wal_senders is 1" in outcome.out


def test_an_unreachable_server(pgsluice: Command, write_config: WriteConfig) -> None:
    outcome = pgsluice("check", write_config("host=127.0.0.1 port=1 user=x"))
    assert outcome.code == 1
    assert outcome.out.startswith("error   source: pgsluice cannot reach the server")
    assert "spool: " in outcome.out  # the local checks run all the same


def test_an_updated_table_without_identity_under_a_publication_of_the_users(
    shop: Database, pgsluice: Command, write_config: WriteConfig
) -> None:
    shop.execute("CREATE PUBLICATION pgsluice FOR TABLE t, log")
    outcome = pgsluice("check", write_config(shop.dsn))
    assert outcome.code == 1
    words = "table public.log has no replica identity, but its updates are published"
    assert f"error   replica identity: {words}" in outcome.out
    assert "→ ALTER TABLE public.log REPLICA IDENTITY FULL;" in outcome.out
    assert "Item" not in outcome.out


def test_columns_that_differ_only_in_case(
    shop: Database, pgsluice: Command, write_config: WriteConfig
) -> None:
    """The test's server has the locale C, whose lower() changes only ASCII."""
    for name, upper in (("c", "A"), ("d", "Ä")):
        lower = upper.lower()
        shop.execute(f'CREATE TABLE {name} (id int PRIMARY KEY, "{upper}" int, "{lower}" int)')
    outcome = pgsluice("check", write_config(shop.dsn))
    assert outcome.code == 1
    assert "error   column names: table public.c: the columns A and a differ only" in outcome.out
    assert "error   column names: table public.d: the columns Ä and ä differ only" in outcome.out


def test_a_publication_that_may_be_misspelt(
    shop: Database, pgsluice: Command, write_config: WriteConfig
) -> None:
    shop.execute("CREATE PUBLICATION orders_only FOR TABLE t")
    outcome = pgsluice("check", write_config(shop.dsn, extra='publications = ["order_only"]'))
    assert outcome.code == 0
    words = "publication order_only does not exist, but publication orders_only does"
    assert f"warning publication: {words}" in outcome.out
    assert "→ if you mean orders_only, set it in [source] publications" in outcome.out


def test_settings_that_name_tables_and_columns_which_are_not_sent(
    shop: Database, pgsluice: Command, write_config: WriteConfig
) -> None:
    path = write_config(shop.dsn)
    path.write_text(
        f'{path.read_text()}\nkey = {{ "public.logs" = ["id"], "public.t" = ["nr"] }}\n'
    )
    outcome = pgsluice("check", path)
    assert outcome.code == 0
    assert '"key" names the table public.logs, which is not sent: it has no effect' in outcome.out
    assert "→ did you mean public.log?" in outcome.out
    assert '"key" names nr, which is no column of public.t: it has no effect' in outcome.out


def test_full_without_a_key(shop: Database, pgsluice: Command, write_config: WriteConfig) -> None:
    shop.execute("ALTER TABLE log REPLICA IDENTITY FULL")
    path = write_config(shop.dsn)
    outcome = pgsluice("check", path)
    assert outcome.code == 0
    assert "REPLICA IDENTITY FULL, but no key" not in outcome.out
    path.write_text(f'{path.read_text()}\ndeleted_column = "gone_at"\n')
    outcome = pgsluice("check", path)
    assert outcome.code == 0
    needs_key = "REPLICA IDENTITY FULL, but no key: in mode history or with deleted_column"
    parked = f"{needs_key}, the first update or delete parks the table: public.log"
    assert parked in outcome.out


_TYPES = """
CREATE TYPE pair AS (n int, a aclitem);
CREATE DOMAIN grants AS aclitem;
CREATE TYPE places AS (at regclass, mood text);
CREATE TYPE hours AS RANGE (subtype = time);
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TABLE b (
    id int PRIMARY KEY, own aclitem, mine grants, many aclitem[], deep pair[],
    r regtype, rs regtype[], c places, hs hours, hm hours_multirange, m mood[], ov oidvector,
    p point[], n numeric);
"""


@pytest.mark.pg(">= 15")  # a column list
def test_what_binary_mode_cannot_send_or_read(
    shop: Database, pgsluice: Command, write_config: WriteConfig
) -> None:
    shop.execute(_TYPES)
    path = write_config(shop.dsn, extra="binary = true")
    outcome = pgsluice("check", path)
    assert outcome.code == 1
    findings = {
        tuple(line.split(": ")[:2])
        for line in outcome.out.splitlines()
        if line.split()[1:2] == ["binary:"]
    }
    assert findings == {
        ("error   binary", "column public.b.many (aclitem[])"),
        ("error   binary", "column public.b.deep (public.pair[])"),
        ("warning binary", "column public.b.r (regtype)"),
        ("warning binary", "column public.b.rs (regtype[])"),
        ("warning binary", "column public.b.c (public.places)"),
    }
    # Columns that are not sent do not matter.
    shop.execute("CREATE PUBLICATION pgsluice FOR TABLE t, b (id, own, m)")
    outcome = pgsluice("check", path)
    assert outcome.code == 0
    assert "ok      binary: every published column has an exact binary form" in outcome.out
    outcome = pgsluice("check", write_config(shop.dsn))
    assert "binary:" not in outcome.out


@pytest.mark.pg(">= 14")  # binary
def test_an_array_without_binary_form_stops_the_servers_stream(shop: Database) -> None:
    """The server behaves as the error of ``check`` says."""
    shop.execute(
        "CREATE TABLE b (id int PRIMARY KEY, many aclitem[])",
        "CREATE PUBLICATION p FOR TABLE b",
        f"SELECT pg_create_logical_replication_slot('{shop.name}', 'pgoutput')",
        "INSERT INTO b VALUES (1, ARRAY[makeaclitem(10, 10, 'SELECT', false)])",
    )
    peek = (
        f"SELECT data FROM pg_logical_slot_peek_binary_changes('{shop.name}', NULL, NULL,"
        " 'proto_version', '1', 'publication_names', 'p', 'binary', '{}')"
    )
    assert len(shop.execute(peek.format("false"))) == 4
    for _ in range(2):
        with pytest.raises(psycopg.errors.UndefinedFunction, match="no binary output function"):
            shop.execute(peek.format("true"))


def test_messages_in_streams(shop: Database, pgsluice: Command, write_config: WriteConfig) -> None:
    for streaming, is_warned in (("", False), ('streaming = "on"', True)):
        outcome = pgsluice("check", write_config(shop.dsn, extra=f"messages = true\n{streaming}"))
        assert outcome.code == 0
        assert ("warning messages: with streaming" in outcome.out) == is_warned


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ("pg_create_physical_replication_slot('{}')", "'{}' is a physical slot"),
        ("pg_create_logical_replication_slot('{}', 'pgoutput')", "this spool has never used it"),
    ],
)
def test_a_slot_that_is_not_ours(
    shop: Database, pgsluice: Command, write_config: WriteConfig, make: str, message: str
) -> None:
    slot = shop.name
    shop.execute(f"SELECT {make.format(slot)}")
    try:
        outcome = pgsluice("check", write_config(shop.dsn, slot))
    finally:
        shop.execute(f"SELECT pg_drop_replication_slot('{slot}')")
    assert message.format(slot) in outcome.out


def test_a_slot_of_another_database(
    shop: Database, database: MakeDatabase, pgsluice: Command, write_config: WriteConfig
) -> None:
    other = database()
    other.execute(f"SELECT pg_create_logical_replication_slot('{other.name}', 'pgoutput')")
    outcome = pgsluice("check", write_config(shop.dsn, other.name))
    assert outcome.code == 1
    assert (
        f"belongs to database {other.name} (plugin pgoutput), so pgsluice cannot use it for "
        f"database {shop.name}" in outcome.out
    )


def test_an_impossible_spool(shop: Database, pgsluice: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "c.toml"
    path.write_text(f'[source]\ndsn = "{shop.dsn}"\n[spool]\npath = "file/spool"\n')
    outcome = pgsluice("check", path)
    assert outcome.code == 1
    assert "is not a folder" in outcome.out
    assert "but applies them nowhere" in outcome.out


def test_the_configuration_is_checked_first(pgsluice: Command, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[source]\n")
    outcome = pgsluice("check", path)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("pgsluice: c.toml has 2 mistakes:")


@pytest.mark.pg(">= 15")
def test_column_lists_that_differ_are_refused_by_check_and_at_the_start(
    shop: Database, pgsluice: Command, write_config: WriteConfig
) -> None:
    shop.execute(
        "CREATE PUBLICATION one FOR TABLE t (id)", "CREATE PUBLICATION two FOR TABLE t (id, v)"
    )
    path = write_config(shop.dsn, shop.name, 'publications = ["one", "two"]')
    message = 'cannot use different column lists for table "public.t" in different publications'
    assert f"error   publication: {message}" in pgsluice("check", path).out
    outcome = pgsluice("capture", path, "--once")
    assert outcome.code == 3
    assert message in outcome.err


@pytest.mark.pg(">= 18")
def test_generated_columns_that_only_one_publication_sends_are_refused_likewise(
    shop: Database, pgsluice: Command, write_config: WriteConfig
) -> None:
    shop.execute(
        "ALTER TABLE t ADD g int GENERATED ALWAYS AS (id) VIRTUAL",
        "CREATE PUBLICATION one FOR TABLE t",
        "CREATE PUBLICATION two FOR TABLE t WITH (publish_generated_columns = stored)",
    )
    path = write_config(shop.dsn, shop.name, 'publications = ["one", "two"]')
    message = 'cannot use different values of publish_generated_columns for table "public.t"'
    assert f"error   publication: {message}" in pgsluice("check", path).out
    assert message in pgsluice("capture", path, "--once").err


def test_generated_columns_that_are_not_sent(
    shop: Database, pgsluice: Command, write_config: WriteConfig
) -> None:
    if int(shop.server.version.partition(".")[0]) < 12:
        pytest.skip("generated columns came with 12")
    shop.execute("ALTER TABLE t ADD double int GENERATED ALWAYS AS (id * 2) STORED")
    assert (
        "table public.t: the target will lack the generated column(s) double"
        in pgsluice("check", write_config(shop.dsn)).out
    )
