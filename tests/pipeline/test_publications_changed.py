"""What is published changes, on our side and on the server's, while a subscription lives."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import Any

import pytest
from deltalake.exceptions import TableNotFoundError
from tests.pipeline.own_publications import lake, publishing
from tests.support.databases import MakeDatabase
from tests.support.pipeline import MakePipeline, Pipeline

pytestmark = pytest.mark.usefixtures("spark")

PARTS = (
    "CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE high PARTITION OF parts FOR VALUES FROM (100) TO (200)",
)
VIA_ROOT = "WITH (publish_via_partition_root = true)"


def ids(one: Pipeline, name: str, table: str) -> list[Any]:
    return [row[0] for row in lake(one, name, table)]


def copies(one: Pipeline, subscription: str, table: str) -> int:
    tables = one.record(subscription).tables.values()
    return next(found.copy_number for found in tables if found.name == table)


def test_truncates_of_a_partitioned_table_are_those_of_its_root(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    """As PostgreSQL's: the root's is sent, a partition's alone is not; a look sees that one."""
    shop = database()
    shop.execute(*PARTS, "INSERT INTO parts VALUES (1), (2), (101), (102)")
    one = pipeline(shop)
    publishing(
        one, f"CREATE PUBLICATION p FOR TABLE parts WHERE (id % 2 = 1) {VIA_ROOT}", lake=("p",)
    )
    one.once()
    assert ids(one, "lake", "parts") == [1, 101]
    shop.execute("TRUNCATE low", "INSERT INTO parts VALUES (3)")
    one.once()
    assert ids(one, "lake", "parts") == [3, 101]
    assert copies(one, "lake", "parts") == 2
    shop.execute("TRUNCATE parts", "INSERT INTO parts VALUES (5), (6)")
    one.once()
    assert ids(one, "lake", "parts") == [5]


def test_a_subscription_gets_publications_and_loses_them(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    """The root's table, its leaves' tables, the root's again: all with what came meanwhile."""
    shop = database()
    shop.execute(*PARTS, "INSERT INTO parts VALUES (1), (101)")
    one = pipeline(shop)
    publishing(one, "", lake=None)
    one.once()
    assert ids(one, "lake", "parts") == [1, 101]
    shop.execute("INSERT INTO parts VALUES (2)")
    publishing(one, "CREATE PUBLICATION p FOR TABLE parts", lake=("p",))
    one.once()
    shop.execute("INSERT INTO parts VALUES (3)")
    one.once()
    assert (ids(one, "lake", "low"), ids(one, "lake", "high")) == ([1, 2, 3], [101])
    assert ids(one, "lake", "parts") == [1, 101]
    publishing(one, "", lake=None)
    one.once()
    shop.execute("INSERT INTO parts VALUES (4), (104)")
    one.once()
    assert ids(one, "lake", "parts") == [1, 2, 3, 4, 101, 104]
    assert ids(one, "lake", "low") == [1, 2, 3]
    assert {found.name for found in one.record().tables.values()} == {"parts"}


def test_a_table_that_becomes_a_partition_goes_on_as_itself(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    shop = database()
    shop.execute(
        *PARTS, "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (201)"
    )
    one = pipeline(shop)
    publishing(one, "CREATE PUBLICATION p FOR TABLE t WHERE (id < 300)", lake=("p",))
    one.once()
    shop.execute(
        "ALTER TABLE parts ATTACH PARTITION t FOR VALUES FROM (200) TO (400)",
        "INSERT INTO parts VALUES (202), (302)",
    )
    one.once()
    shop.execute("INSERT INTO t VALUES (203)")
    one.once()
    shop.execute("ALTER TABLE parts DETACH PARTITION t", "INSERT INTO t VALUES (204), (304)")
    one.once()
    assert ids(one, "lake", "t") == [201, 202, 203, 204]
    # Attached, another row of pg_publication_rel lists it (its root's); detached, its own again.
    # Changes between two listings may not have been sent: each change of listing is copied.
    assert copies(one, "lake", "t") == 3


def test_an_added_column_is_no_other_rule(database: MakeDatabase, pipeline: MakePipeline) -> None:
    """Nor is one that goes: nothing is copied again, unless a list has it."""
    shop = database()
    shop.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a')")
    one = pipeline(shop)
    statements = "CREATE PUBLICATION p FOR TABLE t WHERE (id < 10)"
    publishing(one, statements, all=None, some=("p",))
    one.once()
    shop.execute("ALTER TABLE t ADD COLUMN n int", "INSERT INTO t VALUES (2, 'b', 7)")
    one.once()
    shop.execute("ALTER TABLE t DROP COLUMN v", "INSERT INTO t VALUES (3, 8)")
    one.once()
    for name in ("all", "some"):
        assert lake(one, name, "t") == [(1, "a", None), (2, "b", 7), (3, None, 8)]
        assert copies(one, name, "t") == 1


@pytest.mark.pg(">= 13")
def test_the_server_goes_over_to_publishing_the_root(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    """What waits in the spool has the partitions' names, and the rules are of the root now."""
    shop = database()
    shop.execute(*PARTS, "INSERT INTO parts VALUES (1), (101)")
    shop.execute(f'CREATE PUBLICATION "{shop.name}" FOR TABLE parts')
    one = pipeline(shop)
    publishing(
        one, f"CREATE PUBLICATION p FOR TABLE parts WHERE (id % 2 = 1) {VIA_ROOT}", lake=("p",)
    )
    one.once()
    shop.execute("INSERT INTO parts VALUES (3), (4)")
    assert one.command("capture", str(one.path), "--once").returncode == 0
    shop.execute(
        f'ALTER PUBLICATION "{shop.name}" SET (publish_via_partition_root = true)',
        "INSERT INTO parts VALUES (5), (6)",
    )
    one.once()
    shop.execute("INSERT INTO parts VALUES (7), (8)")
    one.once()
    assert ids(one, "lake", "parts") == [1, 3, 5, 7, 101]


@pytest.mark.pg(">= 13")
@pytest.mark.parametrize("publications", [None, ("p",)])
def test_a_partition_that_the_server_sends_again_brings_what_was_missed(
    publications: tuple[str, ...] | None, database: MakeDatabase, pipeline: MakePipeline
) -> None:
    shop = database()
    shop.execute(*PARTS, "INSERT INTO parts VALUES (1), (101)")
    shop.execute(f'CREATE PUBLICATION "{shop.name}" FOR TABLE low, high')
    one = pipeline(shop)
    publishing(one, f"CREATE PUBLICATION p FOR TABLE parts {VIA_ROOT}", lake=publications)
    one.once()
    shop.execute(f'ALTER PUBLICATION "{shop.name}" DROP TABLE high')
    one.once()
    shop.execute("INSERT INTO parts VALUES (2), (102)")
    one.once()
    assert ids(one, "lake", "parts")[:2] == [1, 2]
    shop.execute(f'ALTER PUBLICATION "{shop.name}" ADD TABLE high')
    one.once()
    shop.execute("INSERT INTO parts VALUES (3), (103)")
    one.once()
    assert ids(one, "lake", "parts") == [1, 2, 3, 101, 102, 103]


def test_a_table_that_leaves_and_comes_back_is_copied(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    shop = database()
    shop.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    one = pipeline(shop)
    both = "CREATE PUBLICATION p FOR TABLE t, u"
    publishing(one, both, lake=("p",))
    one.once()
    shop.execute("INSERT INTO t VALUES (1), (2)")
    one.once()
    publishing(one, "CREATE PUBLICATION p FOR TABLE u", lake=("p",))
    one.once()
    shop.execute("DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (3)")
    one.once()
    assert ids(one, "lake", "t") == [1, 2]
    publishing(one, both, lake=("p",))
    one.once()
    shop.execute("INSERT INTO t VALUES (4)")
    one.once()
    assert ids(one, "lake", "t") == [2, 3, 4]


def test_an_unchanged_value_of_an_update_that_became_an_insert_is_never_null(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    """PostgreSQL's subscriber stores NULL; here the table parks, and a copy has the value."""
    shop = database()
    shop.execute(
        "CREATE TABLE t (id int, region text, doc text, PRIMARY KEY (id, region))",
        "ALTER TABLE t ALTER doc SET STORAGE EXTERNAL",
    )
    one = pipeline(shop)
    publishing(one, "CREATE PUBLICATION p FOR TABLE t WHERE (region = 'EU')", lake=("p",))
    one.once()
    shop.execute("INSERT INTO t VALUES (1, 'US', repeat('x', 9000)), (2, 'EU', 'y')")
    one.once()
    shop.execute("UPDATE t SET region = 'EU' WHERE id = 1")
    with pytest.raises(Exception, match="doc"):
        one.once()
    assert ids(one, "lake", "t") == [2]
    assert one.command("copy", str(one.path), "t").returncode == 0
    one.once()
    assert lake(one, "lake", "t") == [(1, "EU", "x" * 9000), (2, "EU", "y")]


@pytest.mark.pg(">= 13")
def test_partitions_that_come_while_it_runs(database: MakeDatabase, pipeline: MakePipeline) -> None:
    """Attached with rows, made as partitions, and empty; through the root and by themselves."""
    shop = database()
    shop.execute(*PARTS, "INSERT INTO parts VALUES (1), (2), (101)")
    one = pipeline(shop)
    publishing(
        one,
        f"CREATE PUBLICATION root FOR TABLE parts WHERE (id % 2 = 1) {VIA_ROOT};"
        "CREATE PUBLICATION leaves FOR TABLE parts, low WHERE (id = 1)",
        root=("root",),
        leaves=("leaves",),
    )
    one.start()

    def holds(subscription: str, table: str, expected: list[int]) -> bool:
        with suppress(TableNotFoundError):
            return ids(one, subscription, table) == expected
        return False

    one.wait_until(lambda: holds("root", "parts", [1, 101]) and holds("leaves", "low", [1]))
    shop.execute(
        "CREATE TABLE more (id int PRIMARY KEY, v text)",
        "INSERT INTO more VALUES (201), (202)",
        "ALTER TABLE parts ATTACH PARTITION more FOR VALUES FROM (200) TO (300)",
        "INSERT INTO parts VALUES (203), (204)",
        "CREATE TABLE made PARTITION OF parts FOR VALUES FROM (300) TO (400)",
        "INSERT INTO parts VALUES (301), (302), (3)",
        "CREATE TABLE still PARTITION OF parts FOR VALUES FROM (400) TO (500)",
    )
    one.wait_until(lambda: holds("root", "parts", [1, 3, 101, 201, 203, 301]))
    one.wait_until(lambda: holds("leaves", "more", [201, 202, 203, 204]))
    one.wait_until(lambda: holds("leaves", "made", [301, 302]))
    shop.execute("INSERT INTO parts VALUES (401), (402)", "DELETE FROM parts WHERE id IN (1, 203)")
    one.wait_until(lambda: holds("root", "parts", [3, 101, 201, 301, 401]))
    one.wait_until(lambda: holds("leaves", "still", [401, 402]) and holds("leaves", "low", []))


def test_a_file_is_read_when_that_is_asked_for(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    """Not while somebody writes it; then other names count, too."""
    shop = database()
    shop.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    one = pipeline(shop)
    publishing(one, "CREATE PUBLICATION p FOR TABLE t", lake=("p",))
    process = one.start()
    shop.execute("INSERT INTO t VALUES (1)")
    one.wait_until(lambda: (one.folder / "lake" / "public" / "t").exists())
    (one.folder / "publications.sql").write_text("CREATE PUBLICATION p FOR TAB")
    shop.execute("CREATE TABLE later (id int PRIMARY KEY)", "INSERT INTO t VALUES (2)")
    one.wait_applied()
    assert "syntax error" not in one.log()
    publishing(one, "CREATE PUBLICATION q FOR TABLE t WHERE (id > 1), u", lake=("q",))
    process.send_signal(signal.SIGHUP)
    one.wait_until(lambda: ids(one, "lake", "t") == [2])
    one.wait_until(lambda: (one.folder / "lake" / "public" / "u").exists())


def test_a_table_made_anew_under_its_name_is_copied(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    shop = database()
    made = "CREATE TABLE t (id int PRIMARY KEY)"
    shop.execute(made, "INSERT INTO t VALUES (1)")
    one = pipeline(shop)
    publishing(one, "CREATE PUBLICATION p FOR ALL TABLES", lake=("p",))
    one.once()
    shop.execute("DROP TABLE t")
    one.once()
    shop.execute(made, "INSERT INTO t VALUES (2)")
    one.once()
    assert ids(one, "lake", "t") == [2]
