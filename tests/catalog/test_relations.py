"""Facts of relations and types, on the versions that differ."""

from __future__ import annotations

from pgsluice.catalog.tables.relations import fetch_many, fetch_relation_facts
from pgsluice.catalog.tables.tables import leaf_filenodes, user_tables
from pgsluice.embedded import EmbeddedServer
from pgsluice.facts import RelationFacts
from pgsluice.replication import connect_sql


def _facts(db, *names: str) -> list[RelationFacts]:
    with connect_sql(db.dsn) as connection:
        facts = []
        for name in names:
            (oid,) = connection.execute("SELECT %s::regclass::oid::bigint", [name]).fetchone()
            one = fetch_relation_facts(connection, oid)
            assert one is not None
            facts.append(one)
        return facts


def test_a_plain_table(each_server: EmbeddedServer, database) -> None:
    db = database(each_server)
    db.execute(
        'CREATE SCHEMA "Odd ""Schema"""',
        'CREATE TABLE "Odd ""Schema"""."T able" (b int NOT NULL DEFAULT 5, gone int,'
        ' a numeric(10, 2), id bigint GENERATED ALWAYS AS IDENTITY, "c,d" varchar(7),'
        " PRIMARY KEY (id, b))",
        'ALTER TABLE "Odd ""Schema"""."T able" DROP COLUMN gone',
    )
    (facts,) = _facts(db, '"Odd ""Schema"""."T able"')
    assert (facts.namespace, facts.name, facts.kind) == ('Odd "Schema"', "T able", "r")
    assert facts.root_oid == facts.oid
    assert (facts.root_namespace, facts.root_name) == ('Odd "Schema"', "T able")
    assert facts.primary_key == facts.identity_key == ("id", "b")
    assert facts.replica_identity == "d"
    assert facts.filenode > 0
    assert [(c.name, c.attnum, c.type_oid, c.typmod) for c in facts.columns] == [
        ("b", 1, 23, -1),
        ("a", 3, 1700, (10 << 16 | 2) + 4),
        ("id", 4, 20, -1),
        ("c,d", 5, 1043, 11),
    ]
    assert [c.not_null for c in facts.columns] == [True, False, True, False]
    assert [c.identity for c in facts.columns] == ["", "", "a", ""]
    assert [column.attnum for column in facts.dropped or ()] == [2]
    assert (facts.dropped or ())[0].length == 4
    assert (facts.dropped or ())[0].align == "i"
    assert (facts.types, facts.above) == ((), ())
    assert RelationFacts.from_json(facts.to_json()) == facts


def test_the_row_version_changes_with_the_column(each_server: EmbeddedServer, database) -> None:
    db = database(each_server)
    db.execute("CREATE TABLE t (a int, b int)")
    (before,) = _facts(db, "public.t")
    db.execute("ALTER TABLE t ALTER b TYPE int USING b * 2")
    (after,) = _facts(db, "public.t")
    assert before.columns[0].row_version == after.columns[0].row_version
    assert before.columns[1].row_version != after.columns[1].row_version
    assert before.filenode != after.filenode


def test_what_names_a_row(each_server: EmbeddedServer, database) -> None:
    db = database(each_server)
    db.execute(
        "CREATE TABLE by_index (id int PRIMARY KEY, a int NOT NULL, b int NOT NULL)",
        "CREATE UNIQUE INDEX by_index_b_a ON by_index (b, a)",
        "ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_b_a",
        "CREATE TABLE full_row (id int PRIMARY KEY)",
        "ALTER TABLE full_row REPLICA IDENTITY FULL",
        "CREATE TABLE nothing (id int PRIMARY KEY)",
        "ALTER TABLE nothing REPLICA IDENTITY NOTHING",
        "CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE)",
        "CREATE TABLE keyless (id int)",
    )
    names = ["by_index", "full_row", "nothing", "deferred", "keyless"]
    by_name = {f.name: f for f in _facts(db, *(f"public.{name}" for name in names))}
    assert {
        name: (one.replica_identity, one.primary_key, one.identity_key)
        for name, one in by_name.items()
    } == {
        "by_index": ("i", ("id",), ("b", "a")),
        "full_row": ("f", ("id",), ()),
        "nothing": ("n", ("id",), ()),
        "deferred": ("d", ("id",), ()),
        "keyless": ("d", (), ()),
    }
    with connect_sql(db.dsn) as connection:
        usable = {t.name: t.has_identity for t in user_tables(connection)}
    assert usable == {
        "by_index": True,
        "full_row": True,
        "nothing": False,
        "deferred": False,
        "keyless": False,
    }


def test_types_with_all_that_they_stand_on(each_server: EmbeddedServer, database) -> None:
    db = database(each_server)
    # Arrays of domains came with 11.
    element = "good_mood" if each_server.programs.major >= 11 else "mood"
    db.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "ALTER TYPE mood ADD VALUE 'in between' BEFORE 'ok'",
        "CREATE DOMAIN good_mood AS mood CHECK (VALUE <> 'sad')",
        "CREATE DOMAIN price AS numeric(8, 2)",
        f"CREATE TYPE pair AS (x int, y price, moods {element}[])",
        "CREATE TABLE t (a pair[], b int[], c text, d good_mood)",
        "CREATE TABLE u (m mood)",
    )
    t, u = _facts(db, "public.t", "public.u")
    types = {one.name: one for one in t.types}
    assert set(types) == {"pair", "_pair", "price", "mood", "good_mood", f"_{element}"}
    assert types["mood"].enum_labels == ("sad", "in between", "ok")
    assert types["mood"].kind == "e"
    assert types["good_mood"].kind == "d"
    assert types["good_mood"].base_oid == types["mood"].oid
    assert (types["price"].base_oid, types["price"].base_typmod) == (1700, (8 << 16 | 2) + 4)
    assert types["_pair"].element_oid == types["pair"].oid
    assert types["pair"].element_oid == 0
    assert [field.name for field in types["pair"].fields] == ["x", "y", "moods"]
    assert types["pair"].fields[1].type_oid == types["price"].oid
    assert types["pair"].namespace == "public"
    assert [one.name for one in u.types] == ["mood"]
    assert t.type_definitions()[types["mood"].oid] == types["mood"]


def test_what_rows_from_before_a_column_have(
    pg18: EmbeddedServer, pg16: EmbeddedServer, database
) -> None:
    for server in (pg18, pg16):
        db = database(server)
        db.execute(
            "CREATE TABLE t (id int)",
            "INSERT INTO t VALUES (1)",
            "ALTER TABLE t ADD a text DEFAULT 'it''s \"x\", {y}\\'",
            "ALTER TABLE t ADD b int[] DEFAULT '{1,NULL}', ADD c timestamptz DEFAULT '2024-01-01Z'",
            "ALTER TABLE t ADD d box DEFAULT '(1,1),(0,0)', ADD e float8 DEFAULT 0.1::float8 + 0.2",
            "ALTER TABLE t ADD f text DEFAULT 'NULL', ADD g text",
            # These rewrite the table, and their rows have values.
            "CREATE TABLE u (id int)",
            "ALTER TABLE u ADD a float8 DEFAULT random()",
            "ALTER TABLE u ADD b int GENERATED ALWAYS AS (id + 1) STORED",
        )
        facts, rewritten = _facts(db, "public.t", "public.u")
        assert {c.name: c.missing for c in facts.columns} == {
            "id": None,
            "a": 'it\'s "x", {y}\\',
            "b": "{1,NULL}",
            "c": "2024-01-01 00:00:00+00",
            "d": "(1,1),(0,0)",
            "e": "0.30000000000000004",
            "f": "NULL",
            "g": None,
        }
        assert {c.missing for c in rewritten.columns} == {None}
        assert [c.generated for c in rewritten.columns] == ["", "", "s"]


def test_partitions_know_their_root(each_server: EmbeddedServer, database) -> None:
    db = database(each_server)
    db.execute(
        "CREATE SCHEMA parts",
        "CREATE TABLE root (a int, b int) PARTITION BY LIST (a)",
        "CREATE TABLE parts.middle PARTITION OF root FOR VALUES IN (1) PARTITION BY LIST (b)",
        "CREATE TABLE parts.leaf PARTITION OF parts.middle FOR VALUES IN (1)",
        "CREATE TABLE parts.other PARTITION OF root FOR VALUES IN (2)",
        "CREATE TABLE parent (a int)",
        "CREATE TABLE child () INHERITS (parent)",
    )
    root, middle, leaf, child = _facts(
        db, "public.root", "parts.middle", "parts.leaf", "public.child"
    )
    assert (leaf.root_oid, leaf.root_namespace, leaf.root_name) == (root.oid, "public", "root")
    assert (middle.root_oid, middle.root_name) == (middle.oid, "middle")  # it has a name if sent
    assert (root.kind, leaf.kind, root.filenode) == ("p", "r", 0)
    assert child.root_oid == child.oid  # inheritance is no partitioning
    with connect_sql(db.dsn) as connection:
        names = {t.oid: t.name for t in user_tables(connection)}
        nodes = leaf_filenodes(connection, [root.oid, child.oid])
        assert {names[oid] for oid in nodes[root.oid]} == {"leaf", "other"}
        assert nodes[leaf.root_oid][leaf.oid].in_snapshot == leaf.filenode
        assert set(nodes[child.oid]) == {child.oid}


def test_a_leaf_has_the_numbers_of_its_columns_above(each_server: EmbeddedServer, database) -> None:
    db = database(each_server)
    db.execute(
        "CREATE TABLE t (x int, id int, a text) PARTITION BY LIST (id)",
        "ALTER TABLE t DROP x",
        "CREATE TABLE mid (a text, id int) PARTITION BY LIST (id)",
        "CREATE TABLE leaf (y int, id int, z int, a text)",
        "ALTER TABLE leaf DROP y, DROP z",
        "ALTER TABLE mid ATTACH PARTITION leaf FOR VALUES IN (1)",
        "ALTER TABLE t ATTACH PARTITION mid FOR VALUES IN (1)",
    )
    root, mid, leaf = _facts(db, "public.t", "public.mid", "public.leaf")
    assert [(column.name, column.attnum) for column in leaf.columns] == [("id", 2), ("a", 4)]
    assert [column.attnum for column in leaf.dropped or ()] == [1, 3]
    assert leaf.above == ((mid.oid, (2, 1)), (root.oid, (2, 3)))
    assert root.above == ()
    assert RelationFacts.from_json(leaf.to_json()) == leaf


def test_a_rewrite_shows_under_an_older_snapshot(each_server: EmbeddedServer, database) -> None:
    db = database(each_server)
    db.execute("CREATE TABLE t (a int)", "INSERT INTO t VALUES (1)")
    with connect_sql(db.dsn) as connection:
        ((oid,),) = connection.execute("SELECT 'public.t'::regclass::oid::bigint").fetchall()
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        before = leaf_filenodes(connection, [oid])[oid][oid]
        assert before.in_snapshot == before.now
        db.execute("TRUNCATE t")
        after = leaf_filenodes(connection, [oid])[oid][oid]
        assert after.in_snapshot == before.in_snapshot
        assert after.now not in (None, before.now)


def test_only_an_alter_table_that_rewrites_makes_another_toast_table(
    each_server: EmbeddedServer, database
) -> None:
    db = database(each_server)
    db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int, b text)",
        "INSERT INTO t SELECT i, i, repeat('b', 9000) FROM generate_series(1, 3) i",
    )
    (facts,) = _facts(db, "public.t")

    def file_after(statement: str) -> tuple[bool, bool]:
        """Whether a statement makes another file, and another TOAST table."""
        with connect_sql(db.dsn) as connection:
            before = leaf_filenodes(connection, [facts.oid])[facts.oid][facts.oid]
            db.execute(statement)
            after = leaf_filenodes(connection, [facts.oid])[facts.oid][facts.oid]
        assert before.toast_table
        return before.now != after.now, before.toast_table != after.toast_table

    kept = ("VACUUM FULL t", "CLUSTER t USING t_pkey", "TRUNCATE t")
    assert {statement: file_after(statement) for statement in kept} == dict.fromkeys(
        kept, (True, False)
    )
    rewritten = (
        "ALTER TABLE t ALTER a TYPE int USING a * 2",
        "ALTER TABLE t ALTER a TYPE bigint",
        "ALTER TABLE t ADD c float DEFAULT random()",
        "ALTER TABLE t SET UNLOGGED",
        "ALTER TABLE t SET LOGGED",
    )
    assert {statement: file_after(statement) for statement in rewritten} == dict.fromkeys(
        rewritten, (True, True)
    )
    harmless = ("ALTER TABLE t ALTER b TYPE varchar", "REINDEX TABLE t", "ANALYZE t")
    assert {statement: file_after(statement) for statement in harmless} == dict.fromkeys(
        harmless, (False, False)
    )


def test_many_at_once_and_some_that_are_not_there(database) -> None:
    db = database()
    db.execute(*(f"CREATE TABLE t{i} (a int, b text)" for i in range(5)))
    with connect_sql(db.dsn) as connection:
        oids = [table.oid for table in user_tables(connection)]
        found = fetch_many(connection, [*oids, 4_000_000_000])
        assert sorted(found) == sorted(oids)
        assert found[oids[0]] == fetch_relation_facts(connection, oids[0])
        assert fetch_relation_facts(connection, 4_000_000_000) is None
        assert fetch_many(connection, []) == {}
