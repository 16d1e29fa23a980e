"""Tables of users' own, made of change rows of a real server, are equal to their source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.capturing import configure
from tests.support.databases import Database, MakeDatabase

import pgsluice
from pgsluice.capture import run_capture
from pgsluice.errors import ConfigError
from pgsluice.spool import SpoolReader

LARGE = "repeat('x', 9000)"
"""A value that the server does not send again while it stays."""


class Mirror:
    """A table of its own that takes the changes of ``public.t`` batch by batch."""

    def __init__(self, spark: Any, shop: Database, folder: Path) -> None:
        self._spark, self._shop = spark, shop
        self._config = configure(shop, folder / "spool")
        self.rows: dict[int, Any] = {}
        run_capture(self._config, once=True)
        self._reached = SpoolReader(self._config.spool.path).start()

    def changes(self, *statements: str) -> Any:
        """The rows of these statements' changes."""
        self._shop.execute(*statements)
        run_capture(self._config, once=True)
        start, self._reached = self._reached, SpoolReader(self._config.spool.path).position()
        return (
            self._spark.read.format("pgoutput")
            .options(spool=str(self._config.spool.path), table="public.t")
            .options(starting_lsn=str(start), ending_lsn=str(self._reached))
            .load()
        )

    def current(self) -> Any:
        """The table, as a DataFrame."""
        return self._spark.createDataFrame(
            [*self.rows.values()], "id int, note string, big string, tags array<int>, day date"
        )

    def apply(self, latest: Any, **options: Any) -> list[Any]:
        """Apply what is the last of each key, and return it."""
        found = pgsluice.fill_absent(latest, self.current(), **options).collect()
        assert len({row.id for row in found}) == len(found), "a key is there once"
        if any(row["_change_type"] == "truncate" for row in found):
            self.rows.clear()
        for row in found:
            if row["_change_type"] == "delete":
                self.rows.pop(row.id, None)
            elif row["_change_type"] != "truncate":
                self.rows[row.id] = row[:5]
        return found

    def differs(self) -> Any:
        """None, or both sides if they are not equal."""
        source = self._shop.execute("SELECT * FROM t ORDER BY id")
        ours = [tuple(self.rows[key]) for key in sorted(self.rows)]
        return None if ours == source else (ours, source)


@pytest.fixture
def shop(database: MakeDatabase) -> Database:
    shop = database()
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY, note text, big text, tags int[], day date)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
    )
    return shop


@pytest.mark.soak  # make soak AREA=long
def test_the_last_of_each_key_keeps_a_table_equal(
    spark: Any, shop: Database, tmp_path: Path
) -> None:
    mirror = Mirror(spark, shop, tmp_path)
    first = mirror.changes(
        f"INSERT INTO t SELECT n, 'a', {LARGE} || n, ARRAY[n] FROM generate_series(1, 9) n",
        "UPDATE t SET note = 'b' WHERE id <= 3",
        "DELETE FROM t WHERE id = 9",
    )
    mirror.apply(pgsluice.latest_per_key(first))
    assert mirror.differs() is None
    second = pgsluice.latest_per_key(
        mirror.changes(
            "UPDATE t SET note = 'of the table' WHERE id = 1",
            "UPDATE t SET note = 'twice' WHERE id = 2; UPDATE t SET tags = NULL WHERE id = 2",
            f"DELETE FROM t WHERE id = 3; INSERT INTO t VALUES (3, 'again', {LARGE} || 'n')",
            "UPDATE t SET note = 'of the insert' WHERE id = 3",
            "UPDATE t SET id = 40, big = 'sent' WHERE id = 4",
            "INSERT INTO t VALUES (4, 'another row')",
            "BEGIN; UPDATE t SET id = 100, big = '5' WHERE id = 5;"
            " UPDATE t SET id = 5, big = '6' WHERE id = 6; UPDATE t SET id = 6 WHERE id = 100;"
            " COMMIT",
            f"INSERT INTO t VALUES (7 + 10, NULL, {LARGE}); DELETE FROM t WHERE id = 17",
        )
    )
    found = {row.id: row for row in mirror.apply(second)}
    assert mirror.differs() is None
    assert {key: row["_change_type"] for key, row in found.items()} == {
        **dict.fromkeys((1, 2, 5, 6, 40), "update_postimage"),
        3: "update_postimage",
        4: "insert",
        **dict.fromkeys((17, 100), "delete"),
    }
    assert not any(row["_absent"] for row in found.values() if row["_change_type"] != "delete")
    third = mirror.changes(
        "INSERT INTO t VALUES (11)",
        "TRUNCATE t",
        "INSERT INTO t (id, day) VALUES (12, 'infinity')",
        "UPDATE t SET note = 'n' WHERE id = 12",
    )
    truncate, row = sorted(
        mirror.apply(pgsluice.latest_per_key(third)), key=lambda row: row["_commit_version"]
    )
    assert (truncate["_change_type"], row.id, row.note) == ("truncate", 12, "n")
    assert (row.day, row["_unfit"], row["_unfit_text"]) == (None, ["day"], {"day": "infinity"})
    assert [*mirror.rows] == [12]


def test_a_value_that_is_nowhere_is_an_error_or_stays_absent(
    spark: Any, shop: Database, tmp_path: Path
) -> None:
    """The target has it under the former key; a row of the new key there is another one."""
    mirror = Mirror(spark, shop, tmp_path)
    rows = f"INSERT INTO t SELECT n, 'a', {LARGE} || n FROM generate_series(1, 2) n"
    mirror.apply(pgsluice.latest_per_key(mirror.changes(rows)))
    moved = pgsluice.latest_per_key(
        mirror.changes("DELETE FROM t WHERE id = 2; UPDATE t SET id = 2 WHERE id = 1"), ["id"]
    )
    with pytest.raises(Exception, match='did not send column "big" of a row that the current'):
        mirror.apply(moved)
    found = {row.id: row for row in mirror.apply(moved, missing="keep")}
    assert (found[2]["_absent"], found[2].big, found[2].note) == (["big"], None, "a")
    assert found[1]["_change_type"] == "delete"
    # With whole old rows, every value is sent.
    shop.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    mirror.rows[2] = (2, "a", shop.execute("SELECT big FROM t")[0][0], None, None)
    full = mirror.changes("UPDATE t SET note = 'b'", "UPDATE t SET id = 3")
    mirror.apply(pgsluice.latest_per_key(full))
    assert mirror.differs() is None
    with pytest.raises(Exception, match=r"did not send the key \(note\) with a change"):
        pgsluice.latest_per_key(
            mirror.changes("ALTER TABLE t REPLICA IDENTITY DEFAULT", "DELETE FROM t"), ["note"]
        ).collect()


def test_rows_of_another_kind_are_refused(spark: Any, shop: Database, tmp_path: Path) -> None:
    mirror = Mirror(spark, shop, tmp_path)
    changes = mirror.changes("INSERT INTO t VALUES (1)")
    latest = pgsluice.latest_per_key(changes)
    with pytest.raises(ConfigError, match="the given rows do not have the column _is_new"):
        pgsluice.fill_absent(changes, changes)
    with pytest.raises(ConfigError, match='no column "id", which is part of the key'):
        pgsluice.fill_absent(latest, spark.range(1).toDF("n"))
    with pytest.raises(ConfigError, match="bigint in the argument current, but the type int in"):
        pgsluice.fill_absent(latest, spark.range(1))
    with pytest.raises(ConfigError, match='argument changes have no column "no", which is part'):
        pgsluice.latest_per_key(changes, ["no"])
    with pytest.raises(ConfigError, match="call the function in foreachBatch"):
        pgsluice.latest_per_key(spark.readStream.format("rate").load())
    with pytest.raises(ConfigError, match="envelope rows, which have changes of many tables"):
        pgsluice.latest_per_key(
            spark.read.format("pgoutput").option("spool", str(tmp_path / "spool")).load()
        )
