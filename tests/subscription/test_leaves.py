"""A partitioned table is one target, mapped from its leaves."""

from __future__ import annotations

from tests.support.databases import MakeDatabase

from pgsluice.copy import import_snapshot, temporary_snapshot
from pgsluice.subscription.discovery import source_tables


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
            import_snapshot(connection, snapshot.name)
            of_copy = {one.facts.oid: one for one in source_tables(connection, ["pub"])}[root]
            leaves = of_copy.fingerprint.filenodes
    ((p1, p2),) = shop.execute("SELECT 'p1'::regclass::oid::int8, 'p2'::regclass::oid::int8")
    assert set(leaves) == {p1}
    assert set(table.fingerprint.filenodes) - set(leaves) == {p2}
