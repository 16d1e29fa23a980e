"""``mode = "changelog"``: the table at any position, rebuilt from its log alone.

The source's own history is the oracle: after each transaction, a test notes the position and the
rows. Both ways of rebuilding are those of docs/modes.md.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from psycopg.errors import UniqueViolation
from tests.support.change_logs import Rows, by_loop, by_query
from tests.support.databases import Database, MakeDatabase
from tests.support.local_spark import local_spark as local_spark
from tests.support.partition_cases import publish_via_root
from tests.support.pipeline import MakePipeline, Pipeline

from pgsluice.errors import TablesUnfinished
from pgsluice.subscription.verify import Verification, verify

CHANGELOG = 'mode = "changelog"'
BIG = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 120))"

pytestmark = [pytest.mark.usefixtures("local_spark"), pytest.mark.xdist_group("changelog")]


@dataclass
class History:
    """A table at the source, and what it was after each of its transactions."""

    database: Database
    table: str
    moments: list[tuple[int, Rows]] = field(default_factory=list)

    def commit(self, *statements: str) -> None:
        """Run statements as one transaction, and note what the table is then."""
        self.database.execute("BEGIN; " + "; ".join(statements) + "; COMMIT")
        self.note()

    def note(self) -> None:
        """Note what the table is now."""
        ((lsn,),) = self.database.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        names = [
            str(name)
            for (name,) in self.database.execute(
                "SELECT attname FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped"
                f" AND attrelid = '{self.table}'::regclass ORDER BY attnum"
            )
        ]
        rows = [
            dict(zip(names, row, strict=True))
            for row in self.database.execute(f"SELECT * FROM {self.table}")
        ]
        self.moments.append((int(lsn), rows))


def log_of(one: Pipeline, table: str) -> pa.Table:
    delta = one.delta(table)
    read = pa.RecordBatchReader.from_stream(delta.scan()).read_all()
    return read.cast(pa.schema(delta.schema().to_arrow()))


def kinds_of(log: pa.Table) -> list[str]:
    rows = log.sort_by([("_commit_version", "ascending"), ("_ordinal", "ascending")])
    kinds: list[str] = rows["_change_type"].to_pylist()
    return kinds


def in_order(rows: Rows, names: list[str]) -> list[str]:
    return sorted(repr([row.get(name) for name in names]) for row in rows)


def assert_rebuilt(log: pa.Table, moments: list[tuple[int, Rows]], *, with_query: bool) -> None:
    """At all of these moments, the log's table is the source's."""
    ((first,),) = [
        (
            min(
                row["_commit_version"]
                for row in log.to_pylist()
                if row["_change_type"] == "snapshot"
            ),
        )
    ]
    compared = 0
    for position, rows in moments:
        if position < first:
            continue
        compared += 1
        names = list(rows[0]) if rows else ["id"]
        found = by_loop(log, ["id"], position)
        assert in_order(found, names) == in_order(rows, names), (position, "loop")
        if with_query:
            found = by_query(log, position)
            assert in_order(found, names) == in_order(rows, names), (position, "query")
    assert compared


def program(rng: random.Random, history: History, transactions: int) -> Iterator[str]:
    """Random transactions on ids 1 to 30; yields what each one did."""
    t = history.table

    def some() -> str:
        low = rng.randint(1, 30)
        return f"id BETWEEN {low} AND {low + rng.randint(0, 6)}"

    def insert() -> str:
        low, note = rng.randint(1, 30), rng.choice([BIG, "NULL", "'short'"])
        return (
            f"INSERT INTO {t} (id, status, note) SELECT i, 'new', {note}"
            f" FROM generate_series({low}, {low + rng.randint(0, 8)}) i ON CONFLICT DO NOTHING"
        )

    makers = {
        "insert": insert,
        "update": lambda: f"UPDATE {t} SET status = '{rng.randint(1, 99)}' WHERE {some()}",
        "note": lambda: f"UPDATE {t} SET note = {rng.choice([BIG, 'NULL'])} WHERE {some()}",
        "move": lambda: f"UPDATE {t} SET id = id + 100, status = 'moved' WHERE {some()}",
        "back": lambda: (
            f"UPDATE {t} SET id = id - 100 WHERE id > 100 AND id - 100 NOT IN (SELECT id FROM {t})"
        ),
        "delete": lambda: f"DELETE FROM {t} WHERE {some()}",
        "truncate": lambda: f"TRUNCATE {t}",
    }
    weights = [6, 5, 3, 3, 3, 3, 1]
    for _ in range(transactions):
        chosen = rng.choices(list(makers), weights, k=rng.randint(1, 3))
        statements = [makers[name]() for name in chosen]
        try:
            history.commit(*statements)
        except UniqueViolation:  # the transaction changed nothing
            continue
        yield "+".join(chosen)


@pytest.mark.parametrize("seed", [1])
def test_a_table_is_rebuilt_at_any_position(
    database: MakeDatabase, pipeline: MakePipeline, seed: int
) -> None:
    shop = database()
    shop.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, status text, note text)",
        "ALTER TABLE orders ALTER note SET STORAGE EXTERNAL",
        f"INSERT INTO orders SELECT i, 'old', {BIG} FROM generate_series(1, 10) i",
    )
    if seed == 2:
        shop.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    one = pipeline(shop, extra=CHANGELOG)
    one.once()
    history = History(shop, "orders")
    history.note()
    rng = random.Random(seed)
    for _ in range(3):
        for _ in program(rng, history, 12):
            pass
        one.once()
    log = log_of(one, "orders")
    assert_rebuilt(log, history.moments, with_query=True)
    assert_rebuilt(log.select(log.schema.names[::-1]), history.moments[-1:], with_query=True)
    assert set(kinds_of(log)) >= {"snapshot", "insert", "update_postimage", "delete"}


def test_what_the_stream_does_not_say_is_a_row(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    """Added columns with a value in older rows, dropped columns, copies again, and tables without a
    key."""
    shop = database()
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a text)",
        "INSERT INTO t VALUES (1, 'one'), (2, 'two')",
        "CREATE TABLE bag (a int, b text)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        "INSERT INTO bag VALUES (1, 'x'), (1, 'x')",
    )
    one = pipeline(shop, extra=CHANGELOG)
    one.once()
    history = History(shop, "t")
    history.note()
    history.commit("UPDATE t SET a = 'uno' WHERE id = 1")
    history.commit("ALTER TABLE t ADD n int DEFAULT 7")
    history.commit("INSERT INTO t VALUES (3, 'three', 8)", "UPDATE t SET id = 9 WHERE id = 2")
    one.once()
    history.commit("ALTER TABLE t ADD m int DEFAULT 5")  # no change has it
    one.once()
    history.commit("ALTER TABLE t DROP a")
    history.commit("UPDATE t SET n = 1 WHERE id = 1", "INSERT INTO t VALUES (4, 4, 4)")
    shop.execute("UPDATE bag SET b = 'y' WHERE ctid = (SELECT min(ctid) FROM bag)")
    shop.execute("DELETE FROM bag WHERE b = 'x'")
    one.once()
    one.copy("t")
    one.once()
    history.commit("DELETE FROM t WHERE id = 3")
    one.once()
    log = log_of(one, "t")
    assert_rebuilt(log, history.moments, with_query=False)
    assert kinds_of(log).count("snapshot") == 2
    added = [row for row in log.to_pylist() if row["_change_type"] == "add_column"]
    assert [(row["n"], row["m"], row["_xid"]) for row in added] == [
        (7, None, None),
        (None, 5, None),
    ]
    assert kinds_of(log_of(one, "bag"))[3:] == ["update_preimage", "update_postimage", "delete"]
    assert not any(table.is_parked for table in one.record().tables.values())


OTHER_IDENTITY = {
    "identity of another index, in one transaction": (
        (
            "BEGIN; ALTER TABLE t REPLICA IDENTITY USING INDEX t_k_key;"
            " UPDATE t SET id = 1001 WHERE id = 1; ALTER TABLE t REPLICA IDENTITY DEFAULT; COMMIT"
        ),
    ),
    "identity of another index, for a while": (
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_k_key",
        "UPDATE t SET id = 1001 WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
        "ALTER TABLE t REPLICA IDENTITY DEFAULT",
    ),
    "another primary key, in one transaction": (
        (
            "BEGIN; ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD PRIMARY KEY (k);"
            " UPDATE t SET id = 1001 WHERE id = 1; ALTER TABLE t DROP CONSTRAINT t_pkey;"
            " ALTER TABLE t ADD PRIMARY KEY (id); COMMIT"
        ),
    ),
}
"""Statements after which the source has the identity that it had, and changes have come without
the key."""


@pytest.mark.parametrize("statements", OTHER_IDENTITY.values(), ids=[*OTHER_IDENTITY])
@pytest.mark.parametrize("moment", ["before a run", "while a run waits"])
def test_changes_without_the_key_are_a_declared_gap(
    database: MakeDatabase, pipeline: MakePipeline, statements: tuple[str, ...], moment: str
) -> None:
    """The log's row of the old key is unknown, so that the table could not be rebuilt: it is copied
    again, as in the other modes. While the identity stays, the table is parked."""
    shop = database()
    shop.execute(
        "CREATE TABLE t (id int PRIMARY KEY, k int UNIQUE NOT NULL, b text)",
        "INSERT INTO t VALUES (1, 10, 'x'), (2, 20, 'y'), (3, 30, 'z')",
    )
    one = pipeline(shop, extra=CHANGELOG)
    one.once()
    history = History(shop, "t")
    history.note()
    for statement in statements:
        shop.execute(statement)
        if moment != "before a run":
            with suppress(TablesUnfinished):
                one.once()
    one.once()
    history.note()
    history.commit("UPDATE t SET id = 5, k = 50 WHERE id = 3", "INSERT INTO t VALUES (6, 60, 'a')")
    one.once()
    log = log_of(one, "t")
    assert_rebuilt(log, history.moments, with_query=False)
    assert kinds_of(log).count("snapshot") == 2


def test_an_identity_without_the_key_parks_the_table(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    """With the message of the other modes, whose remedies end it. Inserts alone need no key. A
    table without a key needs whole rows: two partitions may have rows with the same key."""
    shop = database()
    for name in ("t", "u", "appended"):
        shop.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, k int UNIQUE NOT NULL, b text)",
            f"INSERT INTO {name} VALUES (1, 10, 'x'), (2, 20, 'y'), (3, 30, 'z')",
        )
    shop.execute(
        "CREATE TABLE bag (id int, k int NOT NULL)",
        "CREATE UNIQUE INDEX bag_k ON bag (k)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        "INSERT INTO bag VALUES (1, 1)",
        "CREATE TABLE parts (id int NOT NULL, p int NOT NULL) PARTITION BY LIST (p)",
        "CREATE TABLE parts_1 PARTITION OF parts (PRIMARY KEY (id)) FOR VALUES IN (1)",
        "CREATE TABLE parts_2 PARTITION OF parts (PRIMARY KEY (p, id)) FOR VALUES IN (2)",
        "CREATE TABLE parts_3 PARTITION OF parts (PRIMARY KEY (id)) FOR VALUES IN (3)",
        "INSERT INTO parts VALUES (1, 1), (1, 2), (1, 3)",
        # pgsluice's would send only inserts of parts.
        f"CREATE PUBLICATION {shop.name} FOR TABLE t, u, appended, bag, parts",
    )
    one = pipeline(shop, extra=CHANGELOG)
    one.once()
    for name in ("t", "u", "appended"):
        shop.execute(f"ALTER TABLE {name} REPLICA IDENTITY USING INDEX {name}_k_key")
    shop.execute(
        "UPDATE t SET id = 1001 WHERE id = 1",
        "DELETE FROM u WHERE id = 2",
        "INSERT INTO appended VALUES (4, 40, 'a')",
    )
    shop.execute(
        "BEGIN; ALTER TABLE bag REPLICA IDENTITY USING INDEX bag_k; UPDATE bag SET id = 2; "
        "ALTER TABLE bag REPLICA IDENTITY FULL; COMMIT",
        "UPDATE parts SET id = id + 1",
    )
    with pytest.raises(TablesUnfinished):
        one.once()
    assert not one.table("appended").is_parked
    for name in ("bag", "parts"):
        assert "do not carry the whole old row" in str(one.table(name).error)
    assert kinds_of(log_of(one, "parts")) == ["snapshot", *["insert"] * 3]
    assert any("no key that is valid for all" in why for why in one.table("parts").incomplete)
    for name in ("t", "u"):
        said = f"updates and deletes of table public.{name} do not carry the key column id"
        assert one.table(name).is_parked
        assert str(one.table(name).error).startswith(said)
        assert kinds_of(log_of(one, name)) == ["snapshot", "insert", "insert", "insert"]

    for name in ("t", "appended"):
        shop.execute(f"ALTER TABLE {name} REPLICA IDENTITY DEFAULT")
    for number in (1, 2, 3):
        shop.execute(f"ALTER TABLE parts_{number} REPLICA IDENTITY FULL")
    one.write(f'{CHANGELOG}\nkey = {{ "public.u" = ["k"] }}')
    for name in ("u", "bag", "parts"):
        one.copy(name)
    one.once()
    shop.execute(
        "UPDATE t SET id = 7 WHERE id = 3",
        "UPDATE u SET k = 31 WHERE id = 3",
        "UPDATE parts SET id = 9 WHERE p = 3",
        "UPDATE parts SET p = 3 WHERE p = 1",
        "DELETE FROM parts WHERE p = 2",
    )
    one.once()
    assert not one.table("parts").incomplete
    for name, key in (("t", "id"), ("u", "k")):
        log, position = log_of(one, name), 2**62
        found = by_loop(log, [key], position)
        rows = [dict(zip(("id", "k", "b"), r, strict=True)) for r in shop.execute(f"TABLE {name}")]
        assert in_order(found, ["id", "k", "b"]) == in_order(rows, ["id", "k", "b"]), name
    [subscription] = one.config.subscriptions
    for each in verify(
        one.config,
        subscription,
        Verification(["public.t", "public.u", "public.bag", "public.parts"]),
    ):
        assert each.comparison is not None, each.reason
        assert each.comparison.equal, each.comparison


def test_another_mode_does_not_continue_a_target(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    shop = database()
    shop.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    one = pipeline(shop)
    one.once()
    one.write(CHANGELOG)
    shop.execute("INSERT INTO t VALUES (2)")
    with pytest.raises(Exception, match="t"):
        one.once()
    assert "in another mode" in str(one.table("t").error)
    rows: list[dict[str, Any]] = one.delta("t").to_pyarrow_table().to_pylist()
    assert rows == [{"id": 1}]


def test_truncated_and_gone_partitions_are_copies(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    shop = database()
    shop.execute(
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)",
        "INSERT INTO p SELECT i, 'x' FROM generate_series(1, 19) i",
    )
    one = pipeline(shop, extra=CHANGELOG)
    one.once()
    history = History(shop, "p")
    history.note()
    history.commit("TRUNCATE p")
    history.commit("INSERT INTO p VALUES (1, 'a'), (11, 'b')")
    one.once()
    assert kinds_of(log_of(one, "p")).count("truncate") == 1
    history.commit("TRUNCATE p1")
    one.once()
    history.commit("ALTER TABLE p DETACH PARTITION p2")
    one.once()
    history.commit("INSERT INTO p VALUES (2, 'c')")
    one.once()
    log = log_of(one, "p")
    # The copy is later than the TRUNCATE that it stands for: its position is the copy's.
    assert_rebuilt(log, [*history.moments[:3], history.moments[-1]], with_query=False)


@pytest.mark.parametrize(
    "is_via_root", [False, pytest.param(True, marks=pytest.mark.pg(">= 13"))], ids=["leaf", "root"]
)
def test_a_partition_and_its_root_are_truncated(
    database: MakeDatabase, pipeline: MakePipeline, is_via_root: bool
) -> None:
    """A ``truncate`` row says that all rows are gone. Where a single partition is truncated in the
    same batch, and the stream tells, the log has a copy instead."""
    shop, refill = database(), "INSERT INTO {t} VALUES (1, 'a'), (11, 'b')"
    cases = {
        "earlier": ("TRUNCATE {t}_1", "UPDATE {t} SET v = 'y'", "TRUNCATE {t}", refill),
        "later": ("TRUNCATE {t}", refill, "TRUNCATE {t}_1", "INSERT INTO {t} VALUES (2, 'c')"),
        "alone": ("UPDATE {t} SET v = 'y'", "TRUNCATE {t}_1", "DELETE FROM {t} WHERE id = 12"),
    }
    for name in cases:
        shop.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
            f"CREATE TABLE {name}_1 PARTITION OF {name} FOR VALUES FROM (0) TO (10)",
            f"CREATE TABLE {name}_2 PARTITION OF {name} FOR VALUES FROM (10) TO (20)",
            f"INSERT INTO {name} SELECT i, 'x' FROM generate_series(1, 19) i",
        )
    if is_via_root:
        publish_via_root(shop, cases)
    one = pipeline(shop, extra=CHANGELOG)
    one.once()
    histories = {name: History(shop, name) for name in cases}
    for name, history in histories.items():
        history.note()
        for statement in cases[name]:
            history.commit(statement.format(t=name))
    one.once()
    for name, history in histories.items():
        history.commit(f"UPDATE {name} SET v = 'later' WHERE id > 10")
    one.once()
    for name, (before, *_, after) in {n: h.moments for n, h in histories.items()}.items():
        log = log_of(one, name)
        assert_rebuilt(log, [before, after], with_query=False)
        kinds = kinds_of(log)
        assert kinds.count("snapshot") == 2, name
        if not is_via_root:
            assert not {"truncate", "delete"} & {*kinds}, name


def test_verify_rebuilds_the_table(database: MakeDatabase, pipeline: MakePipeline) -> None:
    shop = database()
    shop.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, status text, note text)",
        "ALTER TABLE orders ALTER note SET STORAGE EXTERNAL",
        f"INSERT INTO orders SELECT i, 'old', {BIG} FROM generate_series(1, 10) i",
        "CREATE TABLE bag (a int, b float8[], c text)",
        "ALTER TABLE bag ALTER c SET STORAGE EXTERNAL",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        f"INSERT INTO bag SELECT i % 3, ARRAY[i % 2, 'NaN'::float8], {BIG}"
        " FROM generate_series(1, 9) i",
        "INSERT INTO bag SELECT * FROM bag WHERE a < 2",
    )
    one = pipeline(shop, extra=CHANGELOG)
    one.once()
    shop.execute(
        "UPDATE bag SET b = b || 1 WHERE a = 1",
        "DELETE FROM bag WHERE ctid = (SELECT ctid FROM bag WHERE a = 0 LIMIT 1)",
        "ALTER TABLE bag ADD d int DEFAULT 7",
        "DELETE FROM bag WHERE ctid = (SELECT ctid FROM bag WHERE a = 1 LIMIT 1)",
        "UPDATE bag SET d = NULL WHERE a = 2",
        "BEGIN; INSERT INTO bag (a) VALUES (6), (6); ALTER TABLE bag ADD e int DEFAULT 9;"
        "DELETE FROM bag WHERE ctid = (SELECT ctid FROM bag WHERE a = 6 LIMIT 1); COMMIT",
        "INSERT INTO bag (a) VALUES (NULL), (NULL), (5)",
        "DELETE FROM bag WHERE a = 5",
    )
    history = History(shop, "orders")
    for _ in program(random.Random(3), history, 20):
        pass
    history.commit("ALTER TABLE orders ADD n numeric(8, 2) DEFAULT 1.5")
    history.commit("INSERT INTO orders VALUES (77, 'x', 'y', 2.5)")
    history.commit("INSERT INTO orders VALUES (78)", "ALTER TABLE orders ADD m int DEFAULT 3")
    one.once()
    [subscription] = one.config.subscriptions
    for each in verify(one.config, subscription, Verification()):
        assert each.comparison is not None, each.reason
        assert each.comparison.equal, each.comparison

    log = one.delta("orders")
    log.update({"status": "'lost'"}, predicate="id = 77")
    [changed] = verify(one.config, subscription, Verification(["public.orders"]))
    assert changed.comparison is not None
    assert changed.comparison.differing_keys == (("77",),)

    one.delta("bag").delete("_change_type = 'insert' AND a = 5")  # it has the row's deletion, too
    [changed] = verify(one.config, subscription, Verification(["public.bag"]))
    assert changed.comparison is not None
    assert not changed.comparison.missing_keys
    assert len(changed.comparison.extra_keys) == 1
