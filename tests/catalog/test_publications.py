"""Publications: what the server's send, and those that pgsluice makes and keeps in step."""

from __future__ import annotations

from collections.abc import Collection

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgsluice.catalog.publications.managed import (
    PublicationReport,
    drop_publications,
    ensure_publications,
    publish_for_stream,
    stream_publication,
)
from pgsluice.catalog.publications.publications import publications_of
from pgsluice.catalog.publications.published import relations_of
from pgsluice.embedded import EmbeddedServer
from pgsluice.errors import SourceRefused
from pgsluice.replication import connect_sql

ALL = {"insert", "update", "delete", "truncate"}


def _ensure(db, *names: str, lock_timeout_s: float = 10.0) -> PublicationReport:
    with connect_sql(db.dsn) as connection:
        names = names or ("pgsluice",)
        return ensure_publications(connection, names, lock_timeout_s=lock_timeout_s)


def _published(db, publication: str) -> set[str]:
    rows = db.execute(
        "SELECT schemaname || '.' || tablename FROM pg_publication_tables"
        f" WHERE pubname = '{publication}'"
    )
    return {row[0] for row in rows}


def _listings(db) -> list[tuple[str]]:
    return db.execute("SELECT oid::text FROM pg_publication_rel ORDER BY oid")


def test_tables_go_by_their_identity(each_server: EmbeddedServer, database) -> None:
    db = database(each_server)
    db.execute(
        'CREATE TABLE "Orders" (id int PRIMARY KEY, a text)',
        "CREATE TABLE full_row (a int)",
        "ALTER TABLE full_row REPLICA IDENTITY FULL",
        "CREATE TABLE log (a int)",
        "CREATE TABLE silent (id int PRIMARY KEY)",
        "ALTER TABLE silent REPLICA IDENTITY NOTHING",
        "CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY)",
        "CREATE VIEW v AS SELECT 1 AS a",
        "CREATE MATERIALIZED VIEW m AS SELECT 1 AS a",
        "CREATE SEQUENCE numbers",
        "CREATE FOREIGN DATA WRAPPER nowhere",
        "CREATE SERVER far FOREIGN DATA WRAPPER nowhere",
        "CREATE FOREIGN TABLE far_away (id int) SERVER far",
        "CREATE SCHEMA pgsluice",
        "CREATE TABLE pgsluice.staging (id int PRIMARY KEY)",
    )
    report = _ensure(db)
    assert report.names == report.created == ("pgsluice", "pgsluice_insert")
    assert report.left == ()
    assert _published(db, "pgsluice") == {"public.Orders", "public.full_row"}
    assert _published(db, "pgsluice_insert") == {"public.log", "public.silent"}
    truncates = {"truncate"} if each_server.programs.major >= 11 else set()
    with connect_sql(db.dsn) as connection:
        infos = publications_of(connection, ["pgsluice", "pgsluice_insert", "nothing"])
        assert {name: info.actions for name, info in infos.items()} == {
            "pgsluice": ALL - {"truncate"} | truncates,
            "pgsluice_insert": {"insert"} | truncates,
        }
        assert all(one.is_ours and one.may_alter for one in infos.values())
        assert not any(one.all_tables or one.via_root for one in infos.values())

    # The application's own writes go on, on every table.
    for table in ('"Orders"', "full_row", "log", "silent"):
        column = "a" if table in ("full_row", "log") else "id"
        db.execute(
            f"INSERT INTO {table} ({column}) VALUES (1)",
            f"UPDATE {table} SET {column} = 2",
            f"DELETE FROM {table}",
        )


def test_a_second_look_writes_nothing(each_server: EmbeddedServer, database) -> None:
    db = database(each_server)
    db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    first = _ensure(db)
    xmin = db.execute("SELECT xmin::text FROM pg_publication ORDER BY pubname")
    second = _ensure(db)
    assert second.created == ()
    assert second.names == first.names
    assert second.position >= first.position
    assert db.execute("SELECT xmin::text FROM pg_publication ORDER BY pubname") == xmin


def test_they_are_kept_in_step(each_server: EmbeddedServer, database) -> None:
    db = database(each_server)
    db.execute(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE b (id int)",
        "CREATE TABLE gone (id int PRIMARY KEY)",
    )
    _ensure(db)
    db.execute(
        "DROP TABLE gone",
        "CREATE TABLE fresh (id int PRIMARY KEY)",
        "ALTER TABLE a DROP CONSTRAINT a_pkey",
        "ALTER TABLE b ADD PRIMARY KEY (id)",
    )
    _ensure(db)
    assert _published(db, "pgsluice") == {"public.b", "public.fresh"}
    assert _published(db, "pgsluice_insert") == {"public.a"}
    db.execute("INSERT INTO a VALUES (1)", "UPDATE a SET id = 2")


def test_partitioned_tables(each_server: EmbeddedServer, database) -> None:
    db = database(each_server)
    major = each_server.programs.major
    key = ", PRIMARY KEY (a)" if major >= 11 else ""  # partitioned keys came with 11
    db.execute(
        f"CREATE TABLE keyed (a int NOT NULL{key}) PARTITION BY LIST (a)",
        "CREATE TABLE keyed_1 PARTITION OF keyed FOR VALUES IN (1)",
        "CREATE TABLE keyless (a int) PARTITION BY LIST (a)",
        "CREATE TABLE keyless_1 PARTITION OF keyless FOR VALUES IN (1)",
        # Named by all its leaves today, but not by those to come.
        "CREATE TABLE later (a int NOT NULL) PARTITION BY LIST (a)",
        "CREATE TABLE later_1 PARTITION OF later FOR VALUES IN (1)",
        "ALTER TABLE later_1 REPLICA IDENTITY FULL",
        f"CREATE TABLE mixed (a int NOT NULL{key}) PARTITION BY LIST (a)",
        "CREATE TABLE mixed_1 PARTITION OF mixed FOR VALUES IN (1)",
        "ALTER TABLE mixed_1 REPLICA IDENTITY NOTHING",
    )
    _ensure(db)
    if major < 13:
        # By leaves, each with its own identity; a new leaf comes by the next look.
        assert _published(db, "pgsluice") == (
            {"public.keyed_1", "public.later_1"} if major >= 11 else {"public.later_1"}
        )
        db.execute("CREATE TABLE keyed_2 PARTITION OF keyed FOR VALUES IN (2)")
        before = _published(db, "pgsluice") | _published(db, "pgsluice_insert")
        _ensure(db)
        after = _published(db, "pgsluice") | _published(db, "pgsluice_insert")
        assert after - before == {"public.keyed_2"}
        return
    assert _published(db, "pgsluice") == {"public.keyed_1"}
    # A new partition comes by itself, and its rows can be updated.
    db.execute("CREATE TABLE keyed_2 PARTITION OF keyed FOR VALUES IN (2)")
    db.execute("CREATE TABLE later_2 PARTITION OF later FOR VALUES IN (2)")
    listings = _listings(db)
    _ensure(db)
    assert _listings(db) == listings
    assert _published(db, "pgsluice") == {"public.keyed_1", "public.keyed_2"}
    for table in ("keyed", "keyless", "later", "mixed"):
        db.execute(f"INSERT INTO {table} VALUES (1)", f"UPDATE {table} SET a = 1")
    db.execute("INSERT INTO later VALUES (2)", "DELETE FROM later")


def test_inheritance_children_stand_for_themselves(each_server: EmbeddedServer, database) -> None:
    db = database(each_server)
    db.execute(
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child () INHERITS (parent)",  # inherits no primary key
    )
    _ensure(db)
    assert _published(db, "pgsluice") == {"public.parent"}
    assert _published(db, "pgsluice_insert") == {"public.child"}
    db.execute("INSERT INTO child VALUES (1)", "UPDATE parent SET id = 2")


def test_the_users_own_publication_is_used_as_is(each_server: EmbeddedServer, database) -> None:
    db = database(each_server)
    db.execute(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE b (id int PRIMARY KEY)",
        "CREATE PUBLICATION pgsluice FOR TABLE a",
        "COMMENT ON PUBLICATION pgsluice IS 'the shop''s own'",
    )
    report = _ensure(db)
    assert report.names == ("pgsluice",)
    assert report.created == ()
    assert _published(db, "pgsluice") == {"public.a"}
    with connect_sql(db.dsn) as connection:
        assert drop_publications(connection, ["pgsluice"]) == ()
        assert set(publications_of(connection)) == {"pgsluice"}


def test_dropping_takes_ours_and_no_other(each_server: EmbeddedServer, database) -> None:
    db = database(each_server)
    db.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE PUBLICATION own FOR TABLE a")
    _ensure(db, "own", "we make")
    with connect_sql(db.dsn) as connection:
        dropped = drop_publications(connection, ["own", "we make", "nothing"])
        assert set(dropped) == {"we make", "we make_insert"}
        assert set(publications_of(connection)) == {"own"}


def test_after_the_first_start_only_ours_are_made_again(each_server, database) -> None:
    db = database(each_server)
    db.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE PUBLICATION shop FOR TABLE a")
    requested = _ensure(db, "shop", "pgsluice").names
    assert requested == ("shop", "pgsluice", "pgsluice_insert")
    db.execute("ALTER PUBLICATION shop RENAME TO moved", "DROP PUBLICATION pgsluice")
    with connect_sql(db.dsn) as connection:
        report = ensure_publications(connection, ["shop", "pgsluice", "typo"], requested)
        assert report.created == ("pgsluice",)
        assert report.missing == ("shop", "typo")
        assert report.names == ("shop", "pgsluice", "pgsluice_insert", "typo")
        assert report.problem is not None
        assert "'shop', 'typo' of [source] publications do not exist" in report.problem
        assert set(publications_of(connection)) == {"moved", "pgsluice", "pgsluice_insert"}


def test_both_named_in_the_configuration(database) -> None:
    db = database()
    db.execute("CREATE TABLE a (id int PRIMARY KEY)")
    report = _ensure(db, "p", "p_insert")
    assert report.names == ("p", "p_insert")
    assert _ensure(db, "p", "p_insert").names == ("p", "p_insert")
    db.execute("COMMENT ON PUBLICATION p_insert IS NULL")
    with pytest.raises(SourceRefused, match="'p_insert' was not created by pgsluice"):
        _ensure(db, "p")


def test_without_the_right_the_sql_is_shown(each_server: EmbeddedServer, database) -> None:
    db = database(each_server)
    db.execute(
        'CREATE TABLE "it\'s" (id int PRIMARY KEY)',
        "CREATE TABLE log (a int)",
        "DROP ROLE IF EXISTS guest",
        "CREATE ROLE guest LOGIN",
    )
    with (
        connect_sql(db.server.dsn(db.name, user="guest")) as connection,
        pytest.raises(SourceRefused) as caught,
    ):
        ensure_publications(connection, ["pgsluice"])
    assert caught.value.exit_code == 3
    assert caught.value.hint is not None
    statements = caught.value.hint.partition("\n")[2]
    # What it shows is what makes it right.
    db.execute(*statements.splitlines())
    with connect_sql(db.server.dsn(db.name, user="guest")) as connection:
        report = ensure_publications(connection, ["pgsluice"])
        assert (report.created, report.left) == ((), ())
        # A new table, later: said, while the others go on.
        db.execute("CREATE TABLE fresh (id int PRIMARY KEY)")
        report = ensure_publications(connection, ["pgsluice"])
        assert report.left == ('ALTER PUBLICATION "pgsluice" ADD TABLE ONLY "public"."fresh"',)
    db.execute("DROP OWNED BY guest", "DROP ROLE guest")


def test_a_role_whose_sessions_may_not_write(database) -> None:
    db = database()
    db.execute("CREATE TABLE a (id int PRIMARY KEY)")
    read_only = make_conninfo(db.dsn, options="-c default_transaction_read_only=on")
    with connect_sql(read_only) as connection, pytest.raises(SourceRefused) as caught:
        ensure_publications(connection, ["pgsluice"])
    first, *statements = str(caught.value.hint).splitlines()
    let_write = f"ALTER ROLE postgres IN DATABASE {db.name} SET default_transaction_read_only = off"
    assert first == f"let the role write ({let_write};), or run these statements as another:"
    db.execute(*statements)
    with connect_sql(read_only) as connection:
        assert ensure_publications(connection, ["pgsluice"]).created == ()


def test_a_locked_table_delays_the_others_not_the_caller(database) -> None:
    db = database()
    _ensure(db)
    db.execute("CREATE TABLE busy (id int PRIMARY KEY)")
    with psycopg.connect(db.dsn) as other:
        other.execute("LOCK TABLE busy IN ACCESS EXCLUSIVE MODE")
        report = _ensure(db, lock_timeout_s=0.05)
        assert report.left == ('ALTER PUBLICATION "pgsluice" ADD TABLE ONLY "public"."busy"',)
    _ensure(db)
    assert _published(db, "pgsluice") == {"public.busy"}


def test_what_publications_send(each_server: EmbeddedServer, database) -> None:
    db = database(each_server)
    major = each_server.programs.major
    db.execute(
        "CREATE TABLE a (id int PRIMARY KEY, b int, c int)",
        "CREATE TABLE z (id int PRIMARY KEY)",
        "CREATE PUBLICATION every FOR ALL TABLES",
        "CREATE PUBLICATION inserts FOR TABLE a WITH (publish = 'insert')",
    )
    if major >= 15:
        db.execute(
            "CREATE PUBLICATION deletes FOR TABLE a (id, b) WHERE (id > 5)"
            " WITH (publish = 'delete')"
        )
    with connect_sql(db.dsn) as connection:
        by_name = {r.name: r for r in relations_of(connection, ["every", "inserts"]).values()}
        assert set(by_name) == {"a", "z"}
        assert [one.publication for one in by_name["a"].by] == ["every", "inserts"]
        assert by_name["a"].actions == (ALL if major >= 11 else ALL - {"truncate"})
        assert publications_of(connection)["every"].all_tables
        if major >= 15:
            ((one,),) = (r.by for r in relations_of(connection, ["deletes"]).values())
            assert one.columns == ("id", "b")
            assert one.row_filter == "(id > 5)"
            assert one.actions == {"delete"}


@pytest.mark.pg(">= 13")
def test_a_publication_via_root_names_the_root(database) -> None:
    db = database()
    db.execute(
        "CREATE TABLE root (a int) PARTITION BY LIST (a)",
        "CREATE TABLE leaf PARTITION OF root FOR VALUES IN (1)",
        "CREATE PUBLICATION by_leaf FOR TABLE root",
        "CREATE PUBLICATION by_root FOR TABLE root WITH (publish_via_partition_root)",
    )
    with connect_sql(db.dsn) as connection:
        assert publications_of(connection, ["by_root"])["by_root"].via_root
        assert [r.name for r in relations_of(connection, ["by_leaf"]).values()] == ["leaf"]
        assert [r.name for r in relations_of(connection, ["by_root"]).values()] == ["root"]


@pytest.mark.pg(">= 18")
def test_ours_send_generated_columns_that_are_wanted(database) -> None:
    db = database()
    db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id * 2) STORED,"
        " v int GENERATED ALWAYS AS (id * 3))",
        "CREATE TABLE log (a int, g int GENERATED ALWAYS AS (a * 2) STORED)",
    )

    def sent(names: Collection[str] | None) -> set[tuple[str, ...] | None]:
        with connect_sql(db.dsn) as connection:
            report = ensure_publications(connection, ["pgsluice"], generated_columns=names)
            assert report.left == ()
            relations = relations_of(connection, report.names).values()
            return {by.columns for relation in relations for by in relation.by}

    assert sent(["id", "v"]) == {None}
    with_generated: set[tuple[str, ...] | None] = {("id", "g"), ("a", "g")}
    assert sent(["g"]) == with_generated
    assert sent(()) == with_generated, "another configuration may rely on it"
    db.execute("DROP PUBLICATION pgsluice, pgsluice_insert")
    assert sent(None) == with_generated


def _for_stream(db, table: tuple[str, str] | None) -> None:
    with connect_sql(db.dsn) as connection:
        publish_for_stream(connection, "s_stream", table)


def test_those_of_streams_have_the_tables_that_streams_ask_for(
    each_server: EmbeddedServer, database
) -> None:
    db = database(each_server)
    db.execute(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE b (id int)",
        "CREATE TABLE c (id int PRIMARY KEY)",
        "CREATE TABLE days (day int NOT NULL) PARTITION BY LIST (day)",
        "CREATE TABLE day_1 PARTITION OF days FOR VALUES IN (1)",
    )
    assert stream_publication("s") == "s_stream"
    _for_stream(db, ("public", "a"))
    assert _published(db, "s_stream") == {"public.a"}
    # The look of a capture, which knows nothing of streams.
    report = _ensure(db, "s_stream")
    assert report.created == ()
    _for_stream(db, ("public", "b"))
    _for_stream(db, ("public", "day_1"))
    everything = _published(db, "s_stream") | _published(db, "s_stream_insert")
    assert everything == {"public.a", "public.b", "public.day_1"}
    assert "public.b" in _published(db, "s_stream_insert")
    _for_stream(db, None)
    assert "public.c" in _published(db, "s_stream")
    _for_stream(db, ("public", "a"))
    assert "public.c" in _published(db, "s_stream"), "a stream of all tables reads it"


def test_a_users_publication_of_that_name_is_used_as_it_is(database) -> None:
    db = database()
    db.execute(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE c (id int PRIMARY KEY)",
        "CREATE PUBLICATION s_stream FOR TABLE c",
    )
    _for_stream(db, ("public", "a"))
    assert _published(db, "s_stream") == {"public.c"}


def test_the_longest_slot_has_publications_of_its_streams() -> None:
    names = {stream_publication(slot) for slot in ("s" * 63, "s" * 62, "s" * 49)}
    assert len(names) == 3
    assert all(len(name + "_insert") <= 63 for name in names)
