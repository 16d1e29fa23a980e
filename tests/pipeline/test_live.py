"""What may happen while a run goes on: to its tables, to the server, beside it."""

from __future__ import annotations

import threading

import pytest
from tests.support.clusters import CopiedServer
from tests.support.databases import Database, MakeDatabase
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.threads import beside

from pgsluice.errors import SpoolBusy

pytestmark = pytest.mark.usefixtures("spark")

ROWS = "SELECT i, md5(i::text) FROM generate_series({}, {}) i"

SMALL_WORK = """
INSERT INTO busy VALUES (-:n, 1, 'new');
UPDATE busy SET n = n + 1, id = id + 100000 WHERE id = :n;
UPDATE busy SET n = n + 1 WHERE id % 500 = :n % 500;
DELETE FROM busy WHERE id = 5001 - :n;
UPDATE cut SET n = n + 1 WHERE id % 100 = 0;
INSERT INTO rewritten VALUES (-:n, 0);
"""


def is_ready(one: Pipeline, name: str) -> bool:
    """A table of that name is copied; until the next commit it stays at f."""
    return any(table.is_active for table in one.record().tables.values() if table.name == name)


def test_tables_come_and_go_while_it_runs(pipeline: MakePipeline) -> None:
    with CopiedServer(settings={"fsync": "off"}) as server:
        shop = Database(server, "postgres")
        shop.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v text)",
            "CREATE TABLE renamed (id int PRIMARY KEY, v text)",
            "CREATE TABLE gone (id int PRIMARY KEY)",
            "CREATE TABLE again (id int PRIMARY KEY, v text)",
            "INSERT INTO t " + ROWS.format(1, 200),
            "INSERT INTO gone VALUES (1)",
            "INSERT INTO again VALUES (1, 'first')",
        )
        one = pipeline(shop)
        with one.live():
            one.wait_until(one.spool.exists)
            one.wait_applied()
            with pytest.raises(SpoolBusy, match="another process runs the subscription lake"):
                one.once()

            # One table again, beside the run; it is ready also while nothing happens. The command
            # ends when the table is copied.
            one.copy("public.t")
            assert one.table("t").is_active
            one.wait_until(
                lambda: (one.table("t").state, one.table("t").copy_number) == ("r", 2),
                why="t is copied and ready",
            )

            # A new table, with rows from before it was seen, and more while it is copied.
            shop.execute("CREATE TABLE late (id int PRIMARY KEY, v text)")
            for begin in range(0, 500, 100):
                shop.execute("INSERT INTO late " + ROWS.format(begin, begin + 99))
            shop.execute("CREATE TABLE late_log (v text)", "INSERT INTO late_log VALUES ('a')")
            one.wait_until(lambda: is_ready(one, "late") and is_ready(one, "late_log"))
            shop.execute("DELETE FROM late WHERE id < 50", "INSERT INTO late_log VALUES ('b')")

            # A table has the target of its name; from the look on, that of its old name stays.
            shop.execute("ALTER TABLE renamed RENAME TO other", "DROP TABLE gone")
            shop.execute("INSERT INTO other VALUES (1, 'x')")
            one.wait_until(lambda: is_ready(one, "other"))
            shop.execute("INSERT INTO other VALUES (2, 'y')")
            # Another table under an old name is another table.
            shop.execute("DROP TABLE again", "CREATE TABLE again (id int PRIMARY KEY, w int)")
            shop.execute("INSERT INTO again VALUES (7, 8)")
            one.wait_until(
                lambda: "w" in one.delta("again").schema().to_arrow().names, why="copied anew"
            )

            # A crash of the server: everything connects again.
            shop.execute("INSERT INTO t " + ROWS.format(1000, 1100))
            server.restart("immediate")
            shop.execute("INSERT INTO t " + ROWS.format(2000, 2100), "DELETE FROM t WHERE id < 9")
            one.wait_applied()
        one.assert_equal("t", "late", "late_log", "again", "other")
        assert {"id": 2, "v": "y"} not in one.delta("renamed").to_pyarrow_table().to_pylist()
        assert one.delta("gone").to_pyarrow_table().to_pylist() == [{"id": 1}]
        states = {table.name: table.state for table in one.record().tables.values()}
        assert {states["t"], states["late"], states["again"]} <= {"f", "r"}


def test_copies_join_the_stream_while_others_write(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    """Rows written, tables truncated and rewritten while the first copies are made."""
    one = pipeline(shop := database())
    shop.execute(
        "CREATE TABLE busy (id int PRIMARY KEY, n int, v text)",
        "CREATE TABLE cut (id int PRIMARY KEY, n int)",
        "CREATE TABLE rewritten (id int PRIMARY KEY, n int)",
        "INSERT INTO busy SELECT i, 0, repeat(md5(i::text), 20) FROM generate_series(1, 5000) i",
        "INSERT INTO cut SELECT i, 0 FROM generate_series(1, 2000) i",
        "INSERT INTO rewritten SELECT i, 0 FROM generate_series(1, 2000) i",
    )

    def write(ended: threading.Event) -> None:
        """A few hundred small transactions a second, and the big ones once the slot is there."""
        has_cut = False
        with shop.connect() as connection:
            for number in range(1, 10**9):
                if ended.is_set():
                    return
                connection.execute(SMALL_WORK.replace(":n", str(number)))
                slots = connection.execute(
                    "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s"
                    " AND confirmed_flush_lsn IS NOT NULL",
                    [shop.name],
                ).fetchall()
                if slots and not has_cut:
                    # After the snapshot, and likely before the tables are locked for the copy.
                    has_cut = True
                    connection.execute("TRUNCATE cut; INSERT INTO cut VALUES (1, 1), (100, 1)")
                    connection.execute("VACUUM FULL rewritten")

    with beside(write):
        one.once()
    one.once()
    one.assert_equal("busy", "cut", "rewritten")
