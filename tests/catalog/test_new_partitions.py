"""Which partitions came with rows that the stream does not have."""

from __future__ import annotations

from tests.support.clusters import CopiedServer
from tests.support.databases import Database, MakeDatabase

from pgsluice.catalog.partitions.new_partitions import inspect_new_partitions
from pgsluice.embedded import EmbeddedServer
from pgsluice.replication import connect_sql

ROOT = "CREATE TABLE {t} (id int NOT NULL, a int, b text) PARTITION BY RANGE (id)"
CREATE = "CREATE TABLE {t}_leaf PARTITION OF {t} FOR VALUES FROM (0) TO (9)"
PLAIN = "CREATE TABLE {t}_leaf (LIKE {t})"
ATTACH = "ALTER TABLE {t} ATTACH PARTITION {t}_leaf FOR VALUES FROM (0) TO (9)"
FILL = "INSERT INTO {t}_leaf VALUES (1)"
UPDATE = "UPDATE {t}_leaf SET a = 8"
IN_SAVEPOINT = "SAVEPOINT s; {}; RELEASE s"
MID = "CREATE TABLE {t}_leaf (LIKE {t}) PARTITION BY RANGE (id)"
BELOW = "CREATE TABLE {t}_low PARTITION OF {t}_leaf FOR VALUES FROM (0) TO (9)"

EMPTY = (
    (PLAIN, ATTACH),
    (PLAIN, FILL, ATTACH, "DELETE FROM {t}_leaf"),
    (f"BEGIN; {PLAIN}; {ATTACH}; COMMIT",),
    (f"BEGIN; {PLAIN}; {FILL}; {ATTACH}; COMMIT", "TRUNCATE {t}_leaf"),
    (MID, ATTACH),
    (MID, BELOW, ATTACH),
)
CREATED = (
    (CREATE, FILL),
    (f"BEGIN; {CREATE} PARTITION BY RANGE (id); {BELOW}; {FILL}; COMMIT",),
    (CREATE, FILL, UPDATE, "ALTER TABLE {t}_leaf ALTER a SET DEFAULT 9"),
    (f"BEGIN; {CREATE}; {FILL}; COMMIT",),
    (f"BEGIN; {CREATE}; ALTER TABLE {{t}}_leaf OWNER TO pg_monitor; {FILL}; {UPDATE}; COMMIT",),
    (f"BEGIN; {IN_SAVEPOINT.format(CREATE)}; {FILL}; COMMIT",),
    (f"DO $$ BEGIN {CREATE}; {FILL}; END $$",),
    (f"BEGIN; CREATE TABLE {{t}}_other (); {CREATE}; {FILL}; COMMIT",),
)
"""Made by CREATE TABLE ... PARTITION OF, as the catalog proves from 11 on."""
UNKNOWN = (
    (f"BEGIN; {PLAIN}; {ATTACH}; COMMIT", FILL),
    (f"BEGIN; {PLAIN}; {FILL}; {ATTACH}; COMMIT",),
    (f"BEGIN; {PLAIN}; {FILL}; {ATTACH}; COMMIT", "BEGIN; DELETE FROM {t}_leaf; ROLLBACK"),
    # Rows of another (sub)transaction than the partition.
    (f"BEGIN; {PLAIN}; {IN_SAVEPOINT.format(FILL)}; {ATTACH}; COMMIT",),
    (f"BEGIN; {PLAIN}; {FILL}; {ATTACH}; {IN_SAVEPOINT.format(UPDATE)}; COMMIT",),
    (f"BEGIN; {PLAIN}; {FILL}; {ATTACH}; COMMIT", UPDATE),
    # A command that is rolled back leaves its number, here that of the creation.
    (
        f"BEGIN; {PLAIN}; {FILL}; {ATTACH}; COMMIT",
        "BEGIN; ALTER TABLE {t} DROP a, DROP b, ALTER id SET DEFAULT 3; ROLLBACK",
    ),
    (f"BEGIN; {MID}; {BELOW}; {FILL}; {ATTACH}; COMMIT",),
    # Another transaction has written the row in pg_class.
    (CREATE, "ALTER TABLE {t}_leaf SET (autovacuum_enabled = off)", FILL),
    (CREATE + " PARTITION BY RANGE (id)", BELOW, FILL),
)
"""Made and attached by one transaction, as far as the catalog tells."""
FILLED = (
    (PLAIN, FILL, ATTACH),
    (PLAIN, FILL, ATTACH, UPDATE),
    (PLAIN, f"BEGIN; {FILL}; {ATTACH}; COMMIT"),
    (f"BEGIN; {PLAIN}; {FILL}; {IN_SAVEPOINT.format(ATTACH)}; COMMIT",),
    (f"{PLAIN}; {FILL}", ATTACH),
    (MID, BELOW, FILL, ATTACH),
)


def make(database: Database, name: str, *statements: str) -> None:
    """A partitioned table, and what happens to its partition."""
    database.execute(*(text.replace("{t}", name) for text in (ROOT, *statements)))


def came(database: Database) -> dict[str, str]:
    """Name of a partitioned table -> what is known of its new partition."""
    found = database.execute(
        "SELECT oid::int8, replace(relname, '_leaf', '') FROM pg_class"
        " WHERE relname LIKE '%_leaf' AND relispartition"
    )
    with connect_sql(database.dsn) as connection:
        known = inspect_new_partitions(connection, [oid for oid, _ in found])
    return {
        name: "empty" if oid in known.empty else "unknown" if oid in known.unknown else "filled"
        for oid, name in found
    }


def test_what_partitions_came_with(each_server: EmbeddedServer, database: MakeDatabase) -> None:
    shop = database(each_server)
    proven = "empty" if each_server.programs.major > 10 else "unknown"
    groups = (("empty", EMPTY), (proven, CREATED), ("unknown", UNKNOWN), ("filled", FILLED))
    expected: dict[str, str] = {}
    for group, cases in groups:
        for case in cases:
            name = f"t{len(expected)}"
            make(shop, name, *case)
            expected[name] = group
    assert came(shop) == expected


def test_nothing_is_proven_of_a_partition_that_was_published_later(database: MakeDatabase) -> None:
    shop = database()
    make(shop, "bare", CREATE)
    make(shop, "filled", CREATE, FILL)
    ((bare, filled),) = shop.execute(
        "SELECT 'bare_leaf'::regclass::oid::int8, 'filled_leaf'::regclass::oid::int8"
    )
    both = {bare, filled}
    with connect_sql(shop.dsn) as connection:
        assert inspect_new_partitions(connection, both).empty == both
        assert inspect_new_partitions(connection, both, published_later=both).unknown == {filled}
        # An open transaction may have written to a partition that seems to be empty.
        old = inspect_new_partitions(connection, both, both, published_are_sent=False)
        assert (old.empty, old.unknown) == (frozenset(), both)


def test_after_a_crash_nothing_is_proven() -> None:
    """The same on a standby: WAL does not have the numbers, so that all commands look like the
    first."""
    with CopiedServer(18, settings={"fsync": "off"}) as server:
        shop = Database(server, "postgres")
        # The first change of a page after it is written with the whole page: then the row of
        # pg_inherits has its number, and those of the columns lose theirs.
        shop.execute("CHECKPOINT")
        make(shop, "filled", f"BEGIN; {PLAIN}; {FILL}; {ATTACH}; COMMIT", UPDATE)
        make(shop, "created", CREATE, FILL)
        make(shop, "bare", CREATE)
        server.stop("immediate")
        server.start()
        assert came(shop) == {"filled": "unknown", "created": "unknown", "bare": "empty"}


def test_a_locked_partition_may_have_rows(database: MakeDatabase) -> None:
    shop = database()
    make(shop, "t", PLAIN, ATTACH)
    ((leaf,),) = shop.execute("SELECT 't_leaf'::regclass::oid::int8")
    with connect_sql(shop.dsn) as connection, shop.connect() as migration:
        connection.execute("SET lock_timeout = '100ms'")
        migration.execute("BEGIN; LOCK TABLE t_leaf")
        assert inspect_new_partitions(connection, [leaf]).empty == frozenset()
        migration.execute("ROLLBACK")
        assert inspect_new_partitions(connection, [leaf]).empty == {leaf}
