"""What is published changes, on our side and on the server's, while a subscription lives."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from deltalake.exceptions import TableNotFoundError
from tests.pipeline.own_publications import lake, publishing
from tests.pipeline.stories import Story, tell
from tests.support.databases import MakeDatabase
from tests.support.pipeline import MakePipeline, Pipeline

from pgsluice.capture import run_capture

PARTS = (
    "CREATE TABLE {t} (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE {t}_low PARTITION OF {t} FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE {t}_high PARTITION OF {t} FOR VALUES FROM (100) TO (200)",
)
VIA_ROOT = "WITH (publish_via_partition_root = true)"


def parts(table: str) -> list[str]:
    """The statements that make a partitioned table."""
    return [statement.format(t=table) for statement in PARTS]


def ids(one: Pipeline, name: str, table: str) -> list[Any]:
    return [row[0] for row in lake(one, name, table)]


def copies(one: Pipeline, table: str) -> int:
    return one.table(table).copy_number


@pytest.mark.usefixtures("spark")
def test_what_is_published_changes_between_runs(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    tell(
        pipeline(database()),
        truncates_of_a_partitioned_table_are_those_of_its_root,
        a_table_that_becomes_a_partition_goes_on_as_itself,
        an_added_column_is_no_other_rule,
        a_table_that_leaves_and_comes_back_is_copied,
        a_table_made_anew_under_its_name_is_copied,
        an_unchanged_value_of_an_update_that_became_an_insert_is_never_null,
        a_filter_that_fails_parks_its_table_alone,
        a_column_outside_the_replica_identity_parks_at_the_first_update,
    )


def truncates_of_a_partitioned_table_are_those_of_its_root(one: Pipeline) -> Story:
    """As PostgreSQL's: the root's is sent, a partition's alone is not; a look sees that one."""
    one.publications["cut"] = f"FOR TABLE cut WHERE (id % 2 = 1) {VIA_ROOT}"
    one.database.execute(*parts("cut"), "INSERT INTO cut VALUES (1), (2), (101), (102)")
    yield
    assert ids(one, "lake", "cut") == [1, 101]
    one.database.execute("TRUNCATE cut_low", "INSERT INTO cut VALUES (3)")
    yield
    assert ids(one, "lake", "cut") == [3, 101]
    one.database.execute("TRUNCATE cut", "INSERT INTO cut VALUES (5), (6)")
    yield
    assert ids(one, "lake", "cut") == [5]


def a_table_that_becomes_a_partition_goes_on_as_itself(one: Pipeline) -> Story:
    one.publications["joins"] = "FOR TABLE joins WHERE (id < 300)"
    one.database.execute(
        *parts("joined"),
        "CREATE TABLE joins (id int PRIMARY KEY, v text)",
        "INSERT INTO joins VALUES (201)",
    )
    yield
    one.database.execute(
        "ALTER TABLE joined ATTACH PARTITION joins FOR VALUES FROM (200) TO (400)",
        "INSERT INTO joined VALUES (202), (302)",
    )
    yield
    one.database.execute("INSERT INTO joins VALUES (203)")
    yield
    one.database.execute(
        "ALTER TABLE joined DETACH PARTITION joins", "INSERT INTO joins VALUES (204), (304)"
    )
    yield
    assert ids(one, "lake", "joins") == [201, 202, 203, 204]
    # Attached, another row of pg_publication_rel lists it (its root's); detached, its own again.
    # Changes between two listings may not have been sent: each change of listing is copied.
    assert copies(one, "joins") == 3


def an_added_column_is_no_other_rule(one: Pipeline) -> Story:
    """Nor is one that goes: nothing is copied again, unless a list has it."""
    one.publications["wider"] = "FOR TABLE wider WHERE (id < 10)"
    one.database.execute(
        "CREATE TABLE wider (id int PRIMARY KEY, v text)", "INSERT INTO wider VALUES (1, 'a')"
    )
    yield
    one.database.execute(
        "ALTER TABLE wider ADD COLUMN n int", "INSERT INTO wider VALUES (2, 'b', 7)"
    )
    yield
    one.database.execute("ALTER TABLE wider DROP COLUMN v", "INSERT INTO wider VALUES (3, 8)")
    yield
    assert lake(one, "lake", "wider") == [(1, "a", None), (2, "b", 7), (3, None, 8)]
    assert copies(one, "wider") == 1


def a_table_that_leaves_and_comes_back_is_copied(one: Pipeline) -> Story:
    one.publications["leaving"] = "FOR TABLE leaves, stays"
    one.database.execute(
        "CREATE TABLE leaves (id int PRIMARY KEY)", "CREATE TABLE stays (id int PRIMARY KEY)"
    )
    yield
    one.database.execute("INSERT INTO leaves VALUES (1), (2)")
    yield
    one.publications["leaving"] = "FOR TABLE stays"
    yield
    one.database.execute("DELETE FROM leaves WHERE id = 1", "INSERT INTO leaves VALUES (3)")
    yield
    assert ids(one, "lake", "leaves") == [1, 2]
    one.publications["leaving"] = "FOR TABLE leaves, stays"
    yield
    one.database.execute("INSERT INTO leaves VALUES (4)")
    yield
    assert ids(one, "lake", "leaves") == [2, 3, 4]


def a_table_made_anew_under_its_name_is_copied(one: Pipeline) -> Story:
    one.publications["anew"] = "FOR TABLES IN SCHEMA anew"
    made = "CREATE TABLE anew.t (id int PRIMARY KEY)"
    one.database.execute("CREATE SCHEMA anew", made, "INSERT INTO anew.t VALUES (1)")
    yield
    one.database.execute("DROP TABLE anew.t")
    yield
    one.database.execute(made, "INSERT INTO anew.t VALUES (2)")
    yield
    assert one.delta("t", schema="anew").to_pyarrow_table().to_pylist() == [{"id": 2}]


def an_unchanged_value_of_an_update_that_became_an_insert_is_never_null(one: Pipeline) -> Story:
    """PostgreSQL's subscriber stores NULL; here the table parks, and a copy has the value."""
    one.publications["moving"] = "FOR TABLE moving WHERE (region = 'EU')"
    one.database.execute(
        "CREATE TABLE moving (id int, region text, doc text, PRIMARY KEY (id, region))",
        "ALTER TABLE moving ALTER doc SET STORAGE EXTERNAL",
    )
    yield
    one.database.execute("INSERT INTO moving VALUES (1, 'US', repeat('x', 9000)), (2, 'EU', 'y')")
    yield
    one.database.execute("UPDATE moving SET region = 'EU' WHERE id = 1")
    yield {"moving": "doc"}
    assert ids(one, "lake", "moving") == [2]
    one.copy("moving")
    yield
    assert lake(one, "lake", "moving") == [(1, "EU", "x" * 9000), (2, "EU", "y")]


def a_filter_that_fails_parks_its_table_alone(one: Pipeline) -> Story:
    one.publications["failing"] = "FOR TABLE works, fails WHERE (10 / d > 1)"
    one.database.execute(
        "CREATE TABLE fails (d int PRIMARY KEY)", "CREATE TABLE works (d int PRIMARY KEY)"
    )
    for _ in range(3):  # `pgsluice copy` of other stories would end with 1 while this is parked
        yield
    one.database.execute("INSERT INTO works VALUES (1)", "INSERT INTO fails VALUES (5), (0)")
    yield {"fails": "division by zero"}
    assert lake(one, "lake", "works") == [(1,)]
    assert "(0" not in (one.table("fails").error or ""), "no value of the row"


def a_column_outside_the_replica_identity_parks_at_the_first_update(one: Pipeline) -> Story:
    one.publications["outside"] = "FOR TABLE outside WHERE (e > 1)"
    one.database.execute("CREATE TABLE outside (d int PRIMARY KEY, e int)")
    yield
    one.database.execute("INSERT INTO outside VALUES (1, 2), (2, 0)")
    yield
    assert lake(one, "lake", "outside") == [(1, 2)]
    yield  # as above
    one.database.execute("UPDATE outside SET e = 5")
    yield {"outside": "not part of the replica identity"}
    assert lake(one, "lake", "outside") == [(1, 2)]


@pytest.mark.usefixtures("spark")
def test_a_subscription_gets_publications_and_loses_them(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    """The root's table, its leaves' tables, the root's again: all with what came meanwhile."""
    shop = database()
    shop.execute(*parts("parts"), "INSERT INTO parts VALUES (1), (101)")
    one = pipeline(shop)
    publishing(one, "", lake=None)
    one.once()
    assert ids(one, "lake", "parts") == [1, 101]
    shop.execute("INSERT INTO parts VALUES (2)")
    publishing(one, "CREATE PUBLICATION p FOR TABLE parts", lake=("p",))
    one.once()
    shop.execute("INSERT INTO parts VALUES (3)")
    one.once()
    assert ids(one, "lake", "parts_low") == [1, 2, 3]
    assert ids(one, "lake", "parts_high") == [101]
    assert ids(one, "lake", "parts") == [1, 101]
    publishing(one, "", lake=None)
    one.once()
    shop.execute("INSERT INTO parts VALUES (4), (104)")
    one.once()
    assert ids(one, "lake", "parts") == [1, 2, 3, 4, 101, 104]
    assert ids(one, "lake", "parts_low") == [1, 2, 3]
    assert {table.name for table in one.record().tables.values()} == {"parts"}


@pytest.mark.soak  # make soak AREA=long
@pytest.mark.usefixtures("spark")
@pytest.mark.pg(">= 13")
def test_the_server_goes_over_to_publishing_the_root(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    """What waits in the spool has the partitions' names, and the rules are of the root now."""
    shop = database()
    shop.execute(*parts("parts"), "INSERT INTO parts VALUES (1), (101)")
    shop.execute(f'CREATE PUBLICATION "{shop.name}" FOR TABLE parts')
    one = pipeline(shop)
    publishing(
        one, f"CREATE PUBLICATION p FOR TABLE parts WHERE (id % 2 = 1) {VIA_ROOT}", lake=("p",)
    )
    one.once()
    shop.execute("INSERT INTO parts VALUES (3), (4)")
    run_capture(one.config, once=True)
    shop.execute(
        f'ALTER PUBLICATION "{shop.name}" SET (publish_via_partition_root = true)',
        "INSERT INTO parts VALUES (5), (6)",
    )
    one.once()
    shop.execute("INSERT INTO parts VALUES (7), (8)")
    one.once()
    assert ids(one, "lake", "parts") == [1, 3, 5, 7, 101]


@pytest.mark.soak  # make soak AREA=long
@pytest.mark.usefixtures("spark")
@pytest.mark.pg(">= 13")
def test_a_partition_that_the_server_sends_again_brings_what_was_missed(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    """Into a subscription with publications of ours, and into one without."""
    shop = database()
    shop.execute(*parts("parts"), "INSERT INTO parts VALUES (1), (101)")
    shop.execute(f'CREATE PUBLICATION "{shop.name}" FOR TABLE parts_low, parts_high')
    one = pipeline(shop)
    publishing(one, f"CREATE PUBLICATION p FOR TABLE parts {VIA_ROOT}", servers=None, ours=("p",))
    one.once()
    shop.execute(f'ALTER PUBLICATION "{shop.name}" DROP TABLE parts_high')
    one.once()
    shop.execute("INSERT INTO parts VALUES (2), (102)")
    one.once()
    for name in ("servers", "ours"):
        assert ids(one, name, "parts")[:2] == [1, 2]
    shop.execute(f'ALTER PUBLICATION "{shop.name}" ADD TABLE parts_high')
    one.once()
    shop.execute("INSERT INTO parts VALUES (3), (103)")
    one.once()
    for name in ("servers", "ours"):
        assert ids(one, name, "parts") == [1, 2, 3, 101, 102, 103]


@pytest.mark.soak  # make soak AREA=long
@pytest.mark.usefixtures("spark")
@pytest.mark.pg(">= 13")
def test_partitions_that_come_while_it_runs(database: MakeDatabase, pipeline: MakePipeline) -> None:
    """Attached with rows, made as partitions, and empty; through the root and by themselves."""
    shop = database()
    shop.execute(*parts("parts"), "INSERT INTO parts VALUES (1), (2), (101)")
    one = pipeline(shop)
    publishing(
        one,
        f"CREATE PUBLICATION root FOR TABLE parts WHERE (id % 2 = 1) {VIA_ROOT};"
        "CREATE PUBLICATION leaves FOR TABLE parts, parts_low WHERE (id = 1)",
        root=("root",),
        leaves=("leaves",),
    )

    def holds(subscription: str, table: str, expected: list[int]) -> bool:
        with suppress(TableNotFoundError):
            return ids(one, subscription, table) == expected
        return False

    with one.live():
        one.wait_until(
            lambda: holds("root", "parts", [1, 101]) and holds("leaves", "parts_low", [1])
        )
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
        shop.execute(
            "INSERT INTO parts VALUES (401), (402)", "DELETE FROM parts WHERE id IN (1, 203)"
        )
        one.wait_until(lambda: holds("root", "parts", [3, 101, 201, 301, 401]))
        one.wait_until(
            lambda: holds("leaves", "still", [401, 402]) and holds("leaves", "parts_low", [])
        )
