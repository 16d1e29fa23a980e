"""A table's snapshot: planned and read as Spark does it, but in this process."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql.datasource import EqualTo
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import IntegerType, StructType
from tests.support.databases import Database, MakeDatabase
from tests.support.spools import SCHEMA
from tests.support.typed_tables import fill, slot_of
from tests.support.waiting import await_that

from pgsluice.errors import ConfigError, PgsluiceError, SourceUnreachable, TableError
from pgsluice.lsn import Lsn
from pgsluice.replication import connect_sql
from pgsluice.snapshots.ranges import WHOLE
from pgsluice.snapshots.snapshot import temporary_snapshot
from pgsluice.spark.source.data_source import PgoutputDataSource
from pgsluice.spark.source.lookup import catalog_types
from pgsluice.spark.source.options import SnapshotOptions, TableName
from pgsluice.spark.source.rows import table_batches
from pgsluice.spark.source.snapshot import reader as snapshot_reader
from pgsluice.spark.source.snapshot.pushed_filters import FilteringSnapshotReader
from pgsluice.spark.source.snapshot.reader import SnapshotReader, gathered
from pgsluice.spark.source.snapshot.rows import SnapshotRows
from pgsluice.spark.source.snapshot.table import TableSelection, find_table, hints_of_a_read
from pgsluice.types import TypeOptions

CHANGE_COLUMNS = 9


@pytest.fixture
def shop(database: MakeDatabase) -> Database:
    return database()


def reader(
    shop: Database, table: str, kind: Callable[..., SnapshotReader] = SnapshotReader, **given: str
) -> SnapshotReader:
    """A reader as Spark's worker makes it: from the schema that the source declares."""
    all_given = {"dsn": shop.dsn, "table": table, "snapshot": "true", **given}
    source = PgoutputDataSource(all_given)
    schema = declared(all_given, source.schema())
    made = source.reader(schema)
    assert type(made) is SnapshotReader, "filters are taken only in Spark's worker for them"
    return made if kind is SnapshotReader else kind(options_of(all_given), schema)


def options_of(given: dict[str, str]) -> SnapshotOptions:
    options = SnapshotOptions.asked_for(given)
    assert options is not None
    return options


def declared(given: dict[str, str], ddl: str) -> StructType:
    """The source's schema; without a JVM, nothing parses Spark's DDL."""
    options = options_of(given)
    with connect_sql(options.dsn) as connection:
        facts = find_table(connection, options.table)
    types = catalog_types(facts, TypeOptions(numeric=options.numeric))
    columns = [(name, types[name].arrow_type) for name in types if f"`{name}` " in ddl]
    return with_change_columns(pa.schema(columns))


def with_change_columns(own: pa.Schema) -> StructType:
    return StructType([*from_arrow_schema(own).fields, *SCHEMA.fields[2:]])


def rows_of(made: SnapshotReader) -> list[dict[str, Any]]:
    """All rows, read in tasks."""
    batches = [
        batch
        for partition in made.partitions()
        for batch in pickle.loads(pickle.dumps(made)).read(pickle.loads(pickle.dumps(partition)))
    ]
    return [row for batch in batches for row in batch.to_pylist()]


def values(shop: Database, table: str, **options: str) -> list[tuple[Any, ...]]:
    """The table's own columns of all rows, sorted."""
    rows = rows_of(reader(shop, table, **options))
    return sorted(tuple(row.values())[:-CHANGE_COLUMNS] for row in rows)


def test_rows_have_the_position_of_their_snapshot(shop: Database) -> None:
    shop.execute(
        "CREATE TABLE t (id int, day date, note text)",
        "INSERT INTO t VALUES (1, '2024-02-29', NULL), (2, 'infinity', 'b')",
    )
    before = Lsn.parse(str(shop.execute("SELECT pg_current_wal_lsn()")[0][0]))
    first, second = sorted(rows_of(reader(shop, "public.t")), key=lambda row: row["id"])
    assert first["day"].isoformat() == "2024-02-29"
    assert first["note"] is None
    assert (second["day"], second["_unfit"], second["_unfit_text"]) == (
        None,
        ["day"],
        [("day", "infinity")],
    )
    for row in (first, second):
        assert row["_commit_version"] >= int(before)
        assert row["_change_type"] == "insert"
        assert (row["_commit_timestamp"], row["_xid"], row["_absent"]) == (None, None, [])
    assert first["_commit_version"] == second["_commit_version"]
    assert first["_ordinal"] != second["_ordinal"]
    shop.await_no_temporary_slot()


def test_the_portions_of_a_large_table_are_read_under_one_snapshot(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_reader, "PORTION_BYTES", 0)
    monkeypatch.setattr("pgsluice.snapshots.plan.PORTION_BYTES", 16384)
    shop.execute(
        "CREATE TABLE t (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (3000)",
        "CREATE TABLE high PARTITION OF t FOR VALUES FROM (3000) TO (10000)",
        "INSERT INTO t SELECT generate_series(0, 4999)",
    )
    made = reader(shop, "public.t", partial(SnapshotReader, idle_s=0.5), copy_workers="3")
    partitions = made.partitions()
    assert len(partitions) == 3
    shop.execute("DELETE FROM t WHERE id % 2 = 0", "INSERT INTO t VALUES (9999)")
    rows = [row for each in partitions for batch in made.read(each) for row in batch.to_pylist()]
    assert sorted(row["id"] for row in rows) == list(range(5000))
    assert len({row["_commit_version"] for row in rows}) == 1
    assert len({row["_ordinal"] for row in rows}) == 5000
    await_no_keeper(shop)
    with pytest.raises(SourceUnreachable, match=r"snapshot .* no longer exists") as gone:
        list(made.read(partitions[0]))
    assert "call load() again" in str(gone.value).lower()


def await_no_keeper(shop: Database) -> None:
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    with connect_sql(shop.dsn) as connection:
        await_that(lambda: connection.execute(query).fetchall() == [(1,)])


def test_every_type_is_read_as_it_is_streamed(database: MakeDatabase) -> None:
    db = database()
    with slot_of(db) as slot:
        tables = fill(slot)
        streamed = slot.decode(slot.messages(binary=False), unfit_texts=True)
        with temporary_snapshot(db.dsn, 60) as snapshot:
            for table in tables:
                name = TableName("public", table)
                types = catalog_types(find_table(slot.connection, name), TypeOptions())
                selection = TableSelection(name, tuple(types), TypeOptions())
                columns = [(column, type_.arrow_type) for column, type_ in types.items()]
                declared = to_arrow_schema(with_change_columns(pa.schema(columns)), timezone="UTC")
                query = selection.query(slot.connection)
                rows = SnapshotRows(db.dsn, snapshot, query, declared)
                sent = table_batches(streamed[table], declared)
                for name, read, changed in columns_by_id(rows.read(WHOLE[0], 0), sent):
                    assert read == changed, f"{tables[table].type}: {name}"


def columns_by_id(
    read: Iterable[pa.RecordBatch], sent: Iterable[pa.RecordBatch]
) -> Iterator[tuple[str, str, str]]:
    """Both sides of each column but those of the transaction, as text: NaN is not equal to NaN."""
    of_transaction = ("_commit_version", "_commit_timestamp", "_ordinal", "_xid")
    tables = [pa.Table.from_batches(batches).sort_by("id") for batches in (read, sent)]
    assert tables[0].schema.equals(tables[1].schema, check_metadata=True)
    for name in tables[0].column_names:
        if name not in of_transaction:
            one, other = (table.column(name).combine_chunks() for table in tables)
            if not one.equals(other):
                yield name, one.to_string(window=1000), other.to_string(window=1000)


def test_columns_and_what_publications_send(shop: Database) -> None:
    shop.execute(
        "CREATE TABLE p (id int PRIMARY KEY, a text, b text,"
        " c text GENERATED ALWAYS AS (a || 'c') STORED) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)",
        "INSERT INTO p VALUES (1, 'a1', 'b1'), (2, 'a2', 'b2'), (11, 'a11', 'b11')",
        "CREATE PUBLICATION lists FOR TABLE p1 (id, a) WHERE (id < 2), p2 (id, a)",
        "CREATE PUBLICATION other FOR TABLE p2 (id)",
    )
    assert values(shop, "public.p") == [
        (1, "a1", "b1"), (2, "a2", "b2"), (11, "a11", "b11"),
    ]  # fmt: skip
    assert values(shop, "public.p", columns="c, id") == [(1, "a1c"), (2, "a2c"), (11, "a11c")]
    assert values(shop, "public.p2") == [(11, "a11", "b11")]
    assert values(shop, "public.p", columns="id, a", publications="lists") == [
        (1, "a1"),
        (11, "a11"),
    ]
    with pytest.raises(ConfigError, match=r'lists do not send column "b" of table public\.p'):
        values(shop, "public.p", publications="lists")
    with pytest.raises(ConfigError, match="cannot use different column lists"):
        values(shop, "public.p", columns="id", publications="lists, other")
    with pytest.raises(ConfigError, match=r"table public\.p1 is not in the publications other"):
        values(shop, "public.p1", columns="id", publications="other")


def test_what_cannot_be_read_is_refused_in_words(shop: Database) -> None:
    shop.execute(
        "CREATE TABLE t (id int)",
        "CREATE VIEW v AS SELECT 1",
        "CREATE MATERIALIZED VIEW m AS SELECT 1",
        "CREATE TABLE nothing ()",
    )
    for options, words in (
        ({"table": "public.x"}, "the server has no table public.x"),
        ({"table": "public.v"}, "public.v is a view"),
        ({"table": "public.m"}, "public.m is a materialized view"),
        ({"table": "public.nothing"}, "public.nothing has no columns"),
        ({"table": "pg_catalog.pg_class"}, "pg_catalog.pg_class is a system table"),
        ({"table": "information_schema.sql_features"}, "sql_features is a system table"),
        (
            {"table": "public.t", "columns": "idd"},
            'column "idd", which table public.t does not have',
        ),
        (
            {"table": "public.t", "spool": "s"},
            "option spool does not work with the option snapshot",
        ),
    ):
        with pytest.raises(ConfigError, match=words):
            rows_of(reader(shop, **{"table": "public.t", **options}))
    with pytest.raises(ConfigError, match="the snapshot of a table needs the option dsn"):
        PgoutputDataSource({"table": "public.t", "snapshot": "true"}).schema()
    role = f"{shop.name}_reader"
    shop.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
    try:
        given = {"dsn": make_conninfo(shop.dsn, user=role), "table": "public.t"}
        with pytest.raises(PgsluiceError, match=rf"{role} may not read public\.t") as refused:
            PgoutputDataSource({**given, "snapshot": "true"}).schema()
        assert f"GRANT SELECT ON public.t TO {role};" in str(refused.value)
    finally:
        shop.execute(f"DROP ROLE {role}")


def test_a_table_that_another_session_has_locked(shop: Database) -> None:
    shop.execute("CREATE TABLE t (id int)")
    # A lock from before the snapshot would already hold up its slot.
    with temporary_snapshot(shop.dsn, 60) as snapshot, connect_sql(shop.dsn) as other:
        query = TableSelection(TableName("public", "t"), ("id",), TypeOptions()).query(other)
        rows = SnapshotRows(shop.dsn, snapshot, query, pa.schema([]), lock_timeout_s=1)
        with other.transaction():
            other.execute("LOCK TABLE public.t IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(TableError, match="locked") as locked, hints_of_a_read(""):
                list(rows.read(WHOLE[0], 0))
    assert str(locked.value.hint).startswith("read the table again")


def test_a_filter_leaves_rows_out_at_the_server(shop: Database) -> None:
    shop.execute("CREATE TABLE t (id int)", "INSERT INTO t SELECT generate_series(1, 100)")
    made = reader(shop, "public.t", FilteringSnapshotReader)
    assert isinstance(made, FilteringSnapshotReader)
    given = [EqualTo(("id",), 7), EqualTo(("_change_type",), "insert")]
    assert made.pushFilters(given) == given
    assert [row["id"] for row in rows_of(made)] == [7]


def test_neighbouring_portions_are_gathered() -> None:
    portions: list[Any] = [(1,), (2, 3), (4,), (5,)]
    assert gathered(portions, 2) == [(1, 2, 3), (4, 5)]
    assert gathered(portions, 9) == portions
    assert gathered(portions, 3) == [(1,), (2, 3), (4, 5)]


def test_no_schema_of_ones_own(shop: Database) -> None:
    shop.execute("CREATE TABLE t (id int)")
    given = {"dsn": shop.dsn, "table": "public.t", "snapshot": "true"}
    with pytest.raises(
        ConfigError, match=r"schema\(...\) does not end with the columns _change_type"
    ):
        PgoutputDataSource(given).reader(StructType().add("id", IntegerType()))
