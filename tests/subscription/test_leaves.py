"""A partitioned table is one target, mapped from its leaves."""

from __future__ import annotations

import pytest
from tests.support.databases import MakeDatabase

from pgsluice.embedded import EmbeddedServer
from pgsluice.published.discovery import source_tables
from pgsluice.published.leaf_keys import KeyProblem
from pgsluice.snapshots.plan import plan_portions
from pgsluice.snapshots.snapshot import import_snapshot, temporary_snapshot


def test_a_root_without_a_key_has_its_leaves_key(database: MakeDatabase) -> None:
    shop = database()
    leaves = ("low", "high")
    shop.execute(
        "CREATE TABLE p (a int, b int) PARTITION BY RANGE (b)",
        "CREATE TABLE low PARTITION OF p (PRIMARY KEY (b, a)) FOR VALUES FROM (0) TO (9)",
        "CREATE TABLE high PARTITION OF p (PRIMARY KEY (b, a)) FOR VALUES FROM (9) TO (20)",
        f"CREATE PUBLICATION pub FOR TABLE {', '.join(leaves)}",
    )

    def key() -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        with shop.connect() as connection:
            (table,) = source_tables(connection, ["pub"])
        return table.facts.name, table.facts.primary_key, table.facts.identity_key

    assert key() == ("p", ("b", "a"), ("b", "a"))
    shop.execute(*(f"ALTER TABLE {leaf} REPLICA IDENTITY FULL" for leaf in leaves))
    assert key() == ("p", ("b", "a"), ())
    shop.execute("ALTER TABLE high DROP CONSTRAINT high_pkey")
    assert key() == ("p", (), ()), "one of them would be wrong"
    shop.execute("ALTER TABLE high ADD PRIMARY KEY (a, b)")
    assert key() == ("p", ("b", "a"), ()), "the order does not matter"


@pytest.mark.pg(">= 13")
@pytest.mark.parametrize("options", ["", "WITH (publish_via_partition_root)"])
def test_rows_of_foreign_partitions_are_left_out(options: str, database: MakeDatabase) -> None:
    """They are in no WAL. A copy reads them as little as a verification counts them."""
    shop = database()
    shop.execute(
        "CREATE FOREIGN DATA WRAPPER nowhere",
        "CREATE SERVER far FOREIGN DATA WRAPPER nowhere",
        "CREATE TABLE p (a int) PARTITION BY LIST (a)",
        "CREATE TABLE near PARTITION OF p FOR VALUES IN (1)",
        "CREATE TABLE mid PARTITION OF p FOR VALUES IN (2) PARTITION BY LIST (a)",
        "CREATE FOREIGN TABLE far_away PARTITION OF mid FOR VALUES IN (2) SERVER far",
        f"CREATE PUBLICATION pub FOR TABLE p {options}",
    )
    with shop.connect() as connection:
        (table,) = source_tables(connection, ["pub"])
        portions = plan_portions(connection, [table.facts])
    oids = dict(
        shop.execute("SELECT relname, oid::int FROM pg_class WHERE relname ~ '^(near|far)'")
    )
    assert table.foreign_partitions == ("public.far_away",)
    assert table.row_filter == f"(tableoid NOT IN ({oids['far_away']}))"
    assert table.fingerprint.sent == {oids["near"]}
    reads = [read.leaf for portion in portions[table.facts.oid] for read in portion]
    assert {leaf.oid for leaf in reads if leaf is not None} == {oids["near"]}


def test_leaves_with_different_keys_are_named(database: MakeDatabase) -> None:
    shop = database()
    shop.execute(
        "CREATE TABLE p (a int, b int) PARTITION BY RANGE (b)",
        "CREATE TABLE low PARTITION OF p (PRIMARY KEY (a)) FOR VALUES FROM (0) TO (9)",
        "CREATE TABLE high PARTITION OF p (PRIMARY KEY (b, a)) FOR VALUES FROM (9) TO (20)",
        "CREATE PUBLICATION pub FOR TABLE low, high",
        "CREATE PUBLICATION inserts FOR TABLE low, high WITH (publish = 'insert')",
    )
    with shop.connect() as connection:
        (table,) = source_tables(connection, ["pub"])
        (inserts_only,) = source_tables(connection, ["inserts"])
    assert table.facts.primary_key == ()
    assert table.key_problem == KeyProblem(
        "public.p has no key that is valid for all of its partitions: their keys are public.low "
        "(a), public.high (b, a)",
        'give public.p a primary key; or set key = { "public.p" = ["a", "b"] } in the '
        "subscription, so that all updates and deletes carry it: ALTER TABLE public.low REPLICA "
        "IDENTITY FULL",
    )
    assert inserts_only.key_problem is None, "rows are only appended"


LEAF_KEYS = (
    ("PARTITION OF {t} FOR VALUES FROM (0) TO (9)", "part, id", None),
    ("PARTITION OF {t} FOR VALUES FROM (0) TO (9)", "id", "column part"),
    ("PARTITION OF {t}_mid FOR VALUES IN (1)", "part, id, kind", None),
    ("PARTITION OF {t}_mid FOR VALUES IN (1)", "part, id", "column kind"),
    ("PARTITION OF {t}_mid FOR VALUES IN (1)", "id", "column kind, part"),
    ("PARTITION OF {t}_ex FOR VALUES IN (1)", "part, id", "expression"),
)
"""How a leaf is made, its key, and what the key lacks."""


def test_a_leafs_key_holds_for_all_leaves_only_with_the_partition_columns(
    each_server: EmbeddedServer, database: MakeDatabase
) -> None:
    """PostgreSQL's own rule for a unique constraint of a partitioned table."""
    shop = database(each_server)
    statements = (
        "CREATE TABLE {t} (id int, part int, kind int) PARTITION BY RANGE (part)",
        "CREATE TABLE {t}_mid PARTITION OF {t} FOR VALUES FROM (1) TO (2) PARTITION BY LIST (kind)",
        "CREATE TABLE {t}_ex PARTITION OF {t} FOR VALUES FROM (2) TO (3) PARTITION BY LIST ((-id))",
    )
    for number, (leaf, key, _) in enumerate(LEAF_KEYS):
        # Only the partitioned tables that the leaf lies below.
        above = statements[0], *(one for one in statements[1:] if one.split()[2] in leaf)
        made = f"CREATE TABLE {{t}}_leaf {leaf}", f"ALTER TABLE {{t}}_leaf ADD PRIMARY KEY ({key})"
        shop.execute(*(one.replace("{t}", f"t{number}") for one in (*above, *made)))
    leaves = ", ".join(f"t{number}_leaf" for number in range(len(LEAF_KEYS)))
    shop.execute(f"CREATE PUBLICATION pub FOR TABLE {leaves}")
    with shop.connect() as connection:
        tables = source_tables(connection, ["pub"])
    for table, (_, key, lacks) in zip(tables, LEAF_KEYS, strict=True):
        columns = tuple(key.split(", "))
        if lacks is None:
            assert (table.facts.primary_key, table.key_problem) == (columns, None)
            continue
        assert table.facts.primary_key == ()
        assert table.key_problem is not None
        what, hint = table.key_problem
        assert f"the same ({key}), since their keys lack the partition {lacks}" in what
        names = ", ".join(f'"{column}"' for column in columns)
        assert f'set key = {{ "public.{table.facts.name}" = [{names}] }} in the' in hint


@pytest.mark.pg(">= 13")
def test_a_partitioned_table_below_the_root_is_a_target_if_it_is_published_via_root(
    database: MakeDatabase,
) -> None:
    shop = database()
    via_root = "WITH (publish_via_partition_root)"
    shop.execute(
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE mid PARTITION OF p FOR VALUES FROM (0) TO (20) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF mid FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE top PARTITION OF p FOR VALUES FROM (20) TO (30)",
        "CREATE TABLE bare PARTITION OF p FOR VALUES FROM (30) TO (40) PARTITION BY RANGE (id)",
        f"CREATE PUBLICATION mids FOR TABLE mid, bare {via_root}",
        "CREATE PUBLICATION leaves FOR TABLE p",
        f"CREATE PUBLICATION root FOR TABLE p {via_root}",
    )

    def rows(*publications: str) -> dict[str, str | None]:
        """Target -> which rows a copy reads."""
        with shop.connect() as connection:
            tables = source_tables(connection, publications)
        return {table.facts.name: table.row_filter for table in tables}

    ((top,),) = shop.execute("SELECT 'top'::regclass::oid")
    assert rows("leaves") == {"p": None}
    assert rows("mids") == {"mid": None, "bare": None}
    assert rows("mids", "leaves") == {"mid": None, "bare": None, "p": f"tableoid IN ({top})"}
    assert rows("mids", "leaves", "root") == {"p": None}


def test_the_shape_to_compare_with_has_the_leaves_of_the_snapshot(database: MakeDatabase) -> None:
    shop = database()
    published = "p" if shop.server.programs.major >= 13 else "p1"  # no roots before 13
    shop.execute(
        "CREATE TABLE p (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE p2 (id int)",
        f"CREATE PUBLICATION pub FOR TABLE {published}",
    )
    with temporary_snapshot(shop.dsn, 60) as snapshot:
        # Rows that the publication did not send, and that the snapshot does not see.
        shop.execute(
            "INSERT INTO p2 VALUES (100)",
            "ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (100) TO (200)",
        )
        with shop.connect() as connection:
            (table,) = source_tables(connection, ["pub"])
            root = table.facts.oid
            import_snapshot(connection, snapshot)
            of_copy = {one.facts.oid: one for one in source_tables(connection, ["pub"])}[root]
            leaves = of_copy.fingerprint.filenodes
    ((p1, p2),) = shop.execute("SELECT 'p1'::regclass::oid::int8, 'p2'::regclass::oid::int8")
    assert set(leaves) == {p1}
    assert set(table.fingerprint.filenodes) - set(leaves) == {p2}
