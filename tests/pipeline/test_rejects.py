"""Values that their column cannot hold: NULL at the target, and a row of the rejects table."""

from __future__ import annotations

import json
import random
import signal
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from psycopg.errors import UniqueViolation
from tests.pipeline.test_changelog import History, in_order
from tests.support.databases import Database, MakeDatabase
from tests.support.histories import as_of, history_of
from tests.support.local_spark import local_spark as local_spark
from tests.support.local_spark import run_killed_at
from tests.support.pipeline import MakePipeline, Pipeline

from pgsluice.cli.app import run_command
from pgsluice.subscription.verify import Verification, verify

pytestmark = [pytest.mark.usefixtures("local_spark"), pytest.mark.xdist_group("rejects")]

Value = tuple[str, str, str]
"""Column, key and text of a reject."""


def rejects_of(one: Pipeline) -> list[dict[str, Any]]:
    """All rows of the rejects table, in order."""
    table = DeltaTable(one.target("lake", "pg_rejects"), storage_options=one.reading_options)
    rows = pa.RecordBatchReader.from_stream(table.scan()).read_all().to_pylist()
    return sorted(rows, key=lambda row: (row["position"], row["ordinal"], row["column_name"]))


def values_of(one: Pipeline, *, is_open: bool | None = None) -> list[Value]:
    """The rejects, as often as they are there."""
    return sorted(
        (row["column_name"], row["key"], row["text"])
        for row in rejects_of(one)
        if is_open is None or (row["resolved_position"] is None) == is_open
    )


def bad_values(shop: Database, table: str = "t") -> list[Value]:
    """The values of the source that a date or an array cannot hold now."""
    rows = shop.execute(
        f"SELECT id, day::text, list::text FROM {table}"
        " WHERE NOT isfinite(day) OR array_ndims(list) > 1"
    )
    found = []
    for number, day, numbers in rows:
        key = json.dumps({"id": str(number)})
        found += [("day", key, day)] if day and "inf" in str(day) else []
        found += [("list", key, numbers)] if numbers and str(numbers).startswith("{{") else []
    return sorted(found)


def assert_verified(one: Pipeline, *tables: str) -> None:
    [subscription] = one.config.subscriptions
    for each in verify(one.config, subscription, Verification(tables)):
        assert each.comparison is not None, each
        assert each.comparison.equal, each.comparison


def test_a_value_that_does_not_fit_is_rejected_until_the_row_has_another(
    database: MakeDatabase, pipeline: MakePipeline, capfd: pytest.CaptureFixture[str]
) -> None:
    shop = database()
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY, day date, note text)",
        "INSERT INTO t VALUES (1, 'infinity', 'copied'), (2, '2024-01-01', 'copied')",
        "CREATE TABLE by_day (day date PRIMARY KEY)",
    )
    one = pipeline(shop)
    one.once()
    assert values_of(one) == [("day", '{"id": "1"}', "infinity")]
    assert one.table("t").rejects == 1
    shop.execute(
        "INSERT INTO t VALUES (3, '-infinity', 'streamed')",
        "UPDATE t SET note = 'the same value again' WHERE id IN (1, 3)",
        "UPDATE t SET day = '2024-02-02' WHERE id = 1",
    )
    one.once()
    assert values_of(one, is_open=True) == [("day", '{"id": "3"}', "-infinity")]
    assert values_of(one, is_open=False) == [("day", '{"id": "1"}', "infinity")]
    assert one.table("t").rejects == 1
    rows = {row["id"]: row["day"] for row in one.delta("t").to_pyarrow_table().to_pylist()}
    assert (rows[3], str(rows[1])) == (None, "2024-02-02")
    assert_verified(one, "public.t")

    capfd.readouterr()
    assert run_command(["rejects", str(one.path), "t"]) == 0
    assert '.day {"id": "3"} at ' in (said := capfd.readouterr().out)
    assert said.endswith(": -infinity\n")
    assert run_command(["rejects", str(one.path), "--all", "--json"]) == 0
    listed = json.loads(capfd.readouterr().out)
    assert [(row["text"], row["resolved"] is None) for row in listed] == [
        ("infinity", False),
        ("-infinity", True),
    ]
    assert run_command(["status", str(one.path)]) == 0
    assert f"`pgsluice rejects {one.path} public.t` lists them" in capfd.readouterr().out

    # They are those of the table, whatever it is called.
    shop.execute("ALTER TABLE t RENAME TO u")
    one.once()
    assert run_command(["rejects", str(one.path), "u"]) == 0
    assert 'public.u.day {"id": "3"} at ' in capfd.readouterr().out
    shop.execute("ALTER TABLE u RENAME TO t")
    one.once()

    # A key column parks, and names no value.
    shop.execute("INSERT INTO by_day VALUES ('infinity')", "DELETE FROM t WHERE id = 3")
    with pytest.raises(Exception, match="1 table is parked"):
        one.once()
    assert "infinity" not in str(one.table("by_day").error)
    assert one.table("t").rejects == 0
    assert not values_of(one, is_open=True)


BAD_BIG = "array_fill(1, ARRAY[40, 50])"
MODES = {
    "on_read": "",
    "changelog": 'mode = "changelog"',
    "deleted_column": 'deleted_column = "gone_at"',
    "history": 'mode = "history"',
    "large": "",
    "large history": 'mode = "history"',
}
LONG = ("on_read", "deleted_column", "large history")
TABLE = (
    "CREATE TABLE t (id int PRIMARY KEY, day date, list int[])",
    "ALTER TABLE t ALTER list SET STORAGE EXTERNAL",  # an update may not send it
    (
        "INSERT INTO t SELECT i, CASE WHEN i % 3 = 0 THEN 'infinity' ELSE '2024-01-01' END::date,"
        " CASE WHEN i % 4 = 0 THEN '{{1,2},{3,4}}' END::int[] FROM generate_series(1, 40) i"
    ),
)


@pytest.mark.parametrize(
    "mode",
    [  # those of make soak AREA=long have a mark
        pytest.param(mode, marks=[pytest.mark.soak] * (mode in LONG)) for mode in MODES
    ],
)
def test_rejects_are_those_of_the_source_in_each_mode(
    database: MakeDatabase, pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    if mode.startswith("large"):
        in_pieces(monkeypatch)
    shop = database()
    assert_rejects_of_random_changes(shop, pipeline(shop, extra=MODES[mode]), random.Random(mode))


def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of the test are large."""
    module = "pgsluice.subscription.batches.tasks.large_batch"
    monkeypatch.setattr(f"{module}.LARGE_BYTES", 500)
    monkeypatch.setattr(f"{module}.PIECE_BYTES", 700)


def assert_rejects_of_random_changes(shop: Database, one: Pipeline, rng: random.Random) -> None:
    """The open rejects are the source's bad values, each once. Those of a history are the bad
    values as of each transaction."""
    shop.execute(*TABLE)
    one.once()
    source = Texts(shop, "t")
    source.note()
    for _ in range(2):
        for _ in range(12):
            change(shop, rng)
            source.note()
        one.once()
        assert_rejects_are_the_sources(one, shop)
        assert_verified(one, "public.t")
    one.copy("t")
    one.once()
    assert_rejects_are_the_sources(one, shop)
    if one.config.subscriptions[0].mode == "history":
        assert_history_with_rejects(one, source)


def test_an_update_that_does_not_send_a_rejected_value_leaves_it(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    """A value that is TOASTed: the history's next version has NULL, too, and the reject is open,
    also under another key."""
    shop = database()
    shop.execute(*TABLE[:2], f"INSERT INTO t VALUES (1, NULL, {BAD_BIG}), (2, NULL, '{{5}}')")
    one = pipeline(shop, extra=MODES["history"])
    one.once()
    source = Texts(shop, "t")
    for statement in (
        f"UPDATE t SET list = {BAD_BIG} WHERE id = 2",
        "UPDATE t SET day = '2024-01-01'",
        "UPDATE t SET day = 'infinity' WHERE id = 1",
        "UPDATE t SET id = id + 10",
    ):
        source.commit(statement)
        one.once()
        assert_rejects_are_the_sources(one, shop)
    source.commit("UPDATE t SET list = '{7}' WHERE id = 12", "DELETE FROM t WHERE id = 11")
    one.once()
    assert not values_of(one, is_open=True)
    assert len(values_of(one, is_open=False)) == 6  # three, each moved once
    assert_history_with_rejects(one, source)
    assert_verified(one, "public.t")


@pytest.mark.parametrize(
    "place",
    [  # the others: make soak AREA=long
        pytest.param("rejects.written", marks=pytest.mark.soak),
        "rejects.folding",
        pytest.param("rejects.folded", marks=pytest.mark.soak),
    ],
)
def test_a_kill_loses_and_doubles_no_reject(
    database: MakeDatabase, pipeline: MakePipeline, place: str
) -> None:
    """Between the file, the commit, the fold and the record."""
    shop = database()
    shop.execute(*TABLE)
    one = pipeline(shop)
    one.once()
    rng = random.Random(place)
    for _ in range(12):
        change(shop, rng)
    shop.execute(f"INSERT INTO t VALUES (-1, NULL, {BAD_BIG}), (-2, 'infinity', NULL)")
    assert run_killed_at(one.path, place) == -signal.SIGKILL
    # The next run divides the changes otherwise. Its own do not have these two values.
    shop.execute("UPDATE t SET id = -3 WHERE id = -1", "UPDATE t SET day = NULL WHERE id = -2")
    for _ in range(4):
        change(shop, rng)
    one.once()
    assert_rejects_are_the_sources(one, shop)
    assert_verified(one, "public.t")


def assert_rejects_are_the_sources(one: Pipeline, shop: Database) -> None:
    """The open ones are its bad values, and a value has one reject at a time."""
    assert values_of(one, is_open=True) == (bad := bad_values(shop))
    assert one.table("t").rejects == len(bad)
    by_value: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rejects_of(one):
        by_value.setdefault((row["column_name"], row["key"]), []).append(row)
    for rows in by_value.values():
        for before, after in pairwise(rows):
            assert before["resolved_position"] is not None
            assert before["resolved_position"] <= after["position"]


class Texts(History):
    """What the table was, each value as text."""

    def note(self) -> None:
        ((lsn,),) = self.database.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        rows = self.database.execute("SELECT id, day::text, list::text FROM t")
        names = ("id", "day", "list")
        self.moments.append((int(lsn), [dict(zip(names, row, strict=True)) for row in rows]))


def assert_history_with_rejects(one: Pipeline, source: Texts) -> None:
    """As of each transaction, the versions are the source's rows: where a value has a reject at
    that position, the version has NULL, and the reject the value."""
    versions, rejects = history_of(one.delta("t")), rejects_of(one)
    for position, rows in source.moments:
        found = []
        for row in as_of(versions, position):
            key = json.dumps({"id": str(row["id"])})
            numbers = row["list"] and ",".join(map(str, row["list"]))
            texts = {"day": row["day"] and str(row["day"]), "list": numbers and f"{{{numbers}}}"}
            for each in rejects:
                end = each["resolved_position"]
                is_open = each["position"] <= position and (end is None or end > position)
                if each["key"] == key and is_open:
                    assert texts[each["column_name"]] is None, each
                    texts[each["column_name"]] = each["text"]
            found.append({"id": row["id"], **texts})
        assert in_order(found, ["id", "day", "list"]) == in_order(rows, ["id", "day", "list"])


def change(shop: Database, rng: random.Random) -> None:
    low = rng.randint(1, 40)
    some = f"id BETWEEN {low} AND {low + 4}"
    day = rng.choice(["'infinity'", "'-infinity'", "'2024-05-05'", "NULL"])
    numbers = rng.choice(["'{{1},{2}}'", "'{1,2}'", "NULL", BAD_BIG])
    statements = [
        (
            f"INSERT INTO t SELECT i, {day}, {numbers}::int[] FROM"
            f" generate_series({low}, {low + 4}) i ON CONFLICT DO NOTHING"
        ),
        f"UPDATE t SET day = {day} WHERE {some}",
        f"UPDATE t SET list = {numbers} WHERE {some}",
        f"UPDATE t SET id = id + 1000 * (1 + (SELECT max(id) FROM t) / 1000) WHERE {some}",
        f"DELETE FROM t WHERE {some}",
    ]
    statements = rng.sample(statements, rng.choice([1, 1, 1, 2]))
    if rng.random() < 0.03:
        statements.append("TRUNCATE t")
    if rng.random() < 0.04:
        statements.append(f"ALTER TABLE t ADD c{rng.randrange(10**6)} int DEFAULT 7")
    with suppress(UniqueViolation):  # then the transaction changed nothing
        shop.execute("BEGIN; " + "; ".join(statements) + "; COMMIT")
