"""The ranges of a key together have each row once, whatever its type is."""

from __future__ import annotations

from tests.support.databases import MakeDatabase

from pgsluice.catalog.tables.key_bounds import key_ranges
from pgsluice.replication import connect_sql

DIVIDED = {
    "int8": "n - 500",
    "numeric": "CASE n WHEN 1 THEN 'NaN' ELSE n / 7.0 END",
    "float8": "CASE n WHEN 1 THEN 'NaN' WHEN 2 THEN '-Infinity' ELSE n / 3.0 END",
    "uuid": "md5(n::text)::uuid",
    "timestamptz": "CASE n WHEN 1 THEN 'infinity' WHEN 2 THEN '-infinity'"
    " ELSE timestamptz '2024-01-01' + n * interval '1 day' END",
    "bytea": "decode(md5(n::text), 'hex')",
    "bit(12)": "n::bit(12)",
    "public.grade": "(enum_range(NULL::public.grade))[n]",
    "public.price": "n / 4.0",
}
WHOLE = {
    "text": "n::text",
    "text[]": "ARRAY[n::text]",
    "public.pair": "ROW(n, n::text)::public.pair",
    "jsonb": "to_jsonb(n::text)",
    "regproc": "n::oid::regproc",
    "vector": "ARRAY[n]::vector",
}
"""Their order depends on a collation, or their operators are not in pg_catalog."""


def test_each_row_is_in_one_range(database: MakeDatabase) -> None:
    shop = database()
    grades = ", ".join(f"'it''s {{\"{n}\"}}'" for n in range(100, 0, -1))
    shop.execute(
        "CREATE EXTENSION vector",
        f"CREATE TYPE grade AS ENUM ({grades})",
        "CREATE DOMAIN price AS numeric CHECK (VALUE > 0)",
        "CREATE TYPE pair AS (n int, t text)",
    )
    names = {f"t_{number}": key for number, key in enumerate(DIVIDED | WHOLE)}
    for table, key in names.items():
        count = 100 if key == "public.grade" else 1000
        value = (DIVIDED | WHOLE)[key]
        shop.execute(
            f'CREATE TABLE {table} ("a ""key""" {key} PRIMARY KEY)',
            f"INSERT INTO {table} SELECT ({value})::{key} FROM generate_series(1, {count}) n",
            f"ANALYZE {table}",
            f"DELETE FROM {table} WHERE ctid < '(0,30)'",  # the statistics are old
        )
    with connect_sql(shop.dsn) as connection:
        oids = dict(
            connection.execute("SELECT relname, oid::int FROM pg_class WHERE relname ~ '^t_'")
        )
        ranges = key_ranges(connection, dict.fromkeys(oids.values(), 5))
        assert {key for table, key in names.items() if oids[table] in ranges} == DIVIDED.keys()
        for table, key in names.items():
            conditions = ranges.get(oids[table], ("true",))
            fulfilled = " + ".join(f"({condition})::int" for condition in conditions)
            query = f"SELECT array_agg(DISTINCT {fulfilled}) FROM public.{table}"
            assert connection.execute(query.encode()).fetchall() == [([1],)], key
            assert len(conditions) in (1, 5), key
