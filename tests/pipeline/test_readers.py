"""Who reads the lake: deltalake, DuckDB and Spark SQL, each with the types it should find.

What a reader gives back is compared by the server, like everything else: it is loaded into a
table at the source and compared there. Spark SQL also reads a table whose copy was staged by tasks.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyarrow import feather
from tests.support.arrow_rows import ArrowRows
from tests.support.databases import MakeDatabase
from tests.support.delta_spark import EXCLUDED, PACKAGE
from tests.support.oracle import assert_equal
from tests.support.pipeline import MakePipeline, Pipeline
from tests.support.waiting import HANGS_S

from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import TargetTable
from pgsluice.sinks.delta.config import Merge
from pgsluice.sinks.delta.sink import DeltaSink
from pgsluice.sinks.fence import TableWriter
from pgsluice.testing.changes import ABSENT, ChangesBuilder
from pgsluice.testing.sink_contract import SCHEMA, batches, identity, net, row

pytestmark = pytest.mark.usefixtures("spark")

# name, PostgreSQL's type, Delta's, Spark's, DuckDB's, two values
COLUMNS = (
    ("id", "bigint PRIMARY KEY", "long", "bigint", "BIGINT", "1", "2"),
    ("flag", "bool", "boolean", "boolean", "BOOLEAN", "true", "false"),
    ("small", "int2", "short", "smallint", "SMALLINT", "-32768", "32767"),
    ("mid", "int4", "integer", "int", "INTEGER", "-2147483648", "2147483647"),
    ("big", "int8", "long", "bigint", "BIGINT", "-9223372036854775808", "9223372036854775807"),
    ("single", "float4", "float", "float", "FLOAT", "'NaN'", "'-Infinity'"),
    ("twice", "float8", "double", "double", "DOUBLE", "1e-308", "'Infinity'"),
    ("money", "numeric(12,2)", "decimal(12,2)", "decimal(12,2)", "DECIMAL(12,2)", "-0.01", "9e9"),
    ("exact", "numeric(38,10)", "decimal(38,10)", "decimal(38,10)", "DECIMAL(38,10)",
     "-9999999999999999999999999999.9999999999", "0.0000000001"),
    ("free", "numeric", "string", "string", "VARCHAR", "'NaN'", "1e-40"),
    ("label", "text", "string", "string", "VARCHAR", "''", "E'é\\n\"€😀'"),
    ("code", "varchar(10)", "string", "string", "VARCHAR", "'a b'", "''"),
    ("fixed", "char(3)", "string", "string", "VARCHAR", "'x'", "'xyz'"),
    ("raw", "bytea", "binary", "binary", "BLOB", "'\\x'", "'\\x00ff'"),
    ("day", "date", "date", "date", "DATE", "'0001-01-01'", "'9999-12-31'"),
    ("local", "timestamp", "timestamp_ntz", "timestamp_ntz", "TIMESTAMP",
     "'1900-01-01 00:00:00.000001'", "'9999-12-31 23:59:59.999999'"),
    ("moment", "timestamptz", "timestamp", "timestamp", "TIMESTAMP WITH TIME ZONE",
     "'1900-01-01 00:00:00.000001+14'", "'2024-02-29 23:59:59.999999-12'"),
    ("clock", "time", "string", "string", "VARCHAR", "'24:00:00'", "'12:34:56.789'"),
    ("span", "interval", "string", "string", "VARCHAR", "'-1 year 2 days'", "'0.000001 s'"),
    ("token", "uuid", "string", "string", "VARCHAR",
     "'00000000-0000-0000-0000-000000000000'", "md5('')::uuid"),
    ("doc", "json", "string", "string", "VARCHAR", "'{\"a\": 1,  \"a\": 2}'", "'null'"),
    ("tree", "jsonb", "string", "string", "VARCHAR", "'{\"b\": [1.10]}'", "'\"\"'"),
    ("mood", "mood", "string", "string", "VARCHAR", "'ok'", "'not so'"),
    ("host", "inet", "string", "string", "VARCHAR", "'::1/64'", "'10.0.0.1'"),
    ("whole", "positive", "integer", "int", "INTEGER", "1", "2"),
    ("numbers", "int[]", "list<integer>", "array<int>", "INTEGER[]", "'{1,NULL,-1}'", "'{}'"),
    ("words", "text[]", "list<string>", "array<string>", "VARCHAR[]",
     "ARRAY['', NULL, 'NULL', 'a,\"b']", "'{}'"),
    ("days", "date[]", "list<date>", "array<date>", "DATE[]", "'{2024-02-29}'", "'{NULL}'"),
    ("moods", "mood[]", "list<string>", "array<string>", "VARCHAR[]", "'{\"not so\"}'", "'{ok}'"),
    ("prices", "numeric(6,2)[]", "list<decimal(6,2)>", "array<decimal(6,2)>", "DECIMAL(6,2)[]",
     "'{1.5,NULL}'", "'{}'"),
)  # fmt: skip

SPARK_SQL = """
import sys
import pyarrow.feather
from pyspark.sql import SparkSession
import pgsluice

package, excluded, config, *paths = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars.packages", package)
    .config("spark.jars.excludes", excluded)
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "1")
    .config("spark.databricks.delta.snapshotPartitions", "1")
    # Otherwise a VACUUM has ten thousand tasks.
    .config("spark.sql.sources.parallelPartitionDiscovery.parallelism", "1")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    .getOrCreate()
)
for path, out in zip(paths[::2], paths[1::2]):
    frame = spark.sql(f"SELECT * FROM delta.`{path}`")
    for name, kind in frame.dtypes:
        print("TYPE", path, name, kind, sep="\\t")
    pyarrow.feather.write_feather(frame.toArrow(), out, compression="uncompressed")
for name, frame in pgsluice.read_at(spark, config).items():
    print("READ_AT", name, frame.count(), sep="\\t")
spark.sql(f"VACUUM delta.`{path}`")  # of the last one, which is merged on read
"""


@pytest.mark.soak  # make soak AREA=long
def test_delta_duckdb_and_spark_sql_read_what_the_source_has(
    database: MakeDatabase, pipeline: MakePipeline, tmp_path: Path
) -> None:
    one = pipeline(shop := database())
    columns = ", ".join(f"{name} {kind}" for name, kind, *_ in COLUMNS)
    first, second = (", ".join(column[place] for column in COLUMNS) for place in (5, 6))
    shop.execute(
        "CREATE TYPE mood AS ENUM ('ok', 'not so')",
        "CREATE DOMAIN positive AS int CHECK (VALUE > 0)",
        f"CREATE TABLE t ({columns})",
        f"INSERT INTO t VALUES ({first})",
    )
    one.once()
    # One row is copied, one streamed, one has NULLs only, one was changed.
    shop.execute(
        f"INSERT INTO t VALUES ({second})",
        "INSERT INTO t (id) VALUES (3), (4)",
        f"UPDATE t SET ({', '.join(c[0] for c in COLUMNS[1:])}) = "
        f"(SELECT {', '.join(c[0] for c in COLUMNS[1:])} FROM t WHERE id = 2) WHERE id = 4",
    )
    one.once()
    one.assert_equal("t")
    _deltalake(one)
    _duckdb(one)
    _spark_sql(one, tmp_path)


def _equal(one: Pipeline, rows: pa.Table) -> None:
    with one.database.connect() as connection:
        assert_equal(connection, "public.t", ArrowRows(rows))


def _deltalake(one: Pipeline) -> None:
    fields = one.delta("t").schema().fields
    found = {field.name: _delta_type(field.type) for field in fields}
    assert found == {name: delta for name, _, delta, *_ in COLUMNS}
    assert {field.name for field in fields if not field.nullable} == {"id"}
    # Without it Delta on Spark refuses a table with timestamp_ntz and a column that is NOT NULL.
    assert "invariants" in (one.delta("t").protocol().writer_features or ())
    _equal(one, one.delta("t").to_pyarrow_table())


def _delta_type(kind: object) -> str:
    element = getattr(kind, "element_type", None)
    if element is not None:
        return f"list<{_delta_type(element)}>"
    return str(getattr(kind, "type", kind))


def _duckdb(one: Pipeline) -> None:
    """Over the Arrow dataset: DuckDB's own Delta reader is a download."""
    connection = duckdb.connect()
    try:
        lake = one.delta("t").to_pyarrow_dataset()
        connection.register("lake", lake)
        described = connection.execute("DESCRIBE SELECT * FROM lake").fetchall()
        assert {row[0]: row[1] for row in described} == {c[0]: c[4] for c in COLUMNS}
        rows = connection.sql("SELECT * FROM lake WHERE id > 0").to_arrow_table()
        assert connection.execute("SELECT max(exact), sum(mid) FROM lake").fetchone() is not None
    finally:
        connection.close()
    _equal(one, rows)


def _spark_sql(one: Pipeline, tmp_path: Path) -> None:
    """With Delta's own jar, in a session of its own: the tests' session is without it."""
    script, out = tmp_path / "spark_sql.py", tmp_path / "t"
    script.write_text(SPARK_SQL)
    path = str(one.lake / "public" / "t")
    ways: tuple[Merge, ...] = ("on_write", "on_read")
    staged = {_staged(tmp_path, way): tmp_path / f"{way}.rows" for way in ways}
    others = [str(each) for pair in staged.items() for each in pair]
    done = subprocess.run(
        [sys.executable, str(script), PACKAGE, EXCLUDED, str(one.path), path, str(out), *others],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )
    if done.returncode and "unresolved dependency" in (done.stdout + done.stderr).lower():
        pytest.skip(f"Maven Central cannot be reached for {PACKAGE}; deltalake and DuckDB agree")
    assert done.returncode == 0, done.stderr[-3000:]
    lines = (
        tuple(line.split("\t")[2:])
        for line in done.stdout.splitlines()
        if line.startswith(f"TYPE\t{path}\t")
    )
    assert dict(lines) == {c[0]: c[3] for c in COLUMNS}
    _equal(one, feather.read_table(out))
    assert "READ_AT\tpublic.t\t4\n" in done.stdout
    for rows in staged.values():
        assert feather.read_table(rows).sort_by("id").to_pylist() == STAGED_AND_CHANGED


STAGED_AND_CHANGED = [{**row(1), "local": None}, {**row(2, 20), "local": None}]


def _staged(tmp_path: Path, way: Merge) -> str:
    """A table whose copy was staged by tasks, with changes after it: its location."""
    sink = DeltaSink(f"{tmp_path}/{way}/{{table}}", merge=way, cache_dir=f"{tmp_path}/keys")
    schema = SCHEMA.append(pa.field("local", pa.timestamp("us")))
    table = TargetTable("public", "staged_copy", schema, ("id",))
    rows = [{**row(id_), "local": None} for id_ in (1, 2, 3)]
    parts = [
        TableWriter(sink, table, identity()).stage_load(batches(*part, schema=schema), Lsn(100))
        for part in (rows[:2], rows[2:])
    ]
    TableWriter(sink, table, identity()).commit_load(parts, Lsn(100))
    changes = ChangesBuilder(schema)
    changes.update({**row(2, 20, ABSENT), "local": None})
    changes.delete({"id": 3})
    TableWriter(sink, table, identity()).apply(net(changes, table=table), Lsn(110))
    return sink.location("public", "staged_copy")
