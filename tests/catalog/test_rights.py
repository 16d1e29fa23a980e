"""Which columns a role has to be able to read for a query with a condition."""

from __future__ import annotations

import pytest
from tests.support.databases import MakeDatabase, Servers

from pgsluice.catalog.rights import columns_to_read
from pgsluice.catalog.tables.relations import fetch_relation_facts
from pgsluice.replication import connect_sql
from pgsluice.sql import quote_identifier

# fmt: off
NAMES = [
    "text", "date", "time", "zone", "at", "timestamp", "without", "with", "precision", "double",
    "varying", "C", "int4", "numeric", "interval", "year", "day", "to", "second", "lower",
    "pg_catalog", "public", "mood", "char", "and", "f", "json", "epoch", "case", "when", "then",
    "else", "end", "null", "is", "from", "extract",
]
# fmt: on
CONDITIONS = {
    "types": "v = 'a'::text AND v <> ALL ('{b,c}'::text[]) AND d > '2026-01-01'::date",
    "types of several words": "ts < '2026-01-01'::timestamp(3) AND tz::time with time zone > '1:0'"
    " AND v::varchar(3) = 'a' AND n::double precision > 1 AND n::bit(4)::bit varying(3) = B'1'"
    " AND ts + '1 day'::interval day to second(3) > '2026-01-01'"
    " AND ts::time without time zone BETWEEN '0:0'::time AND v::text::time",
    "types of schemas": "v::public.mood = 'sad' AND (ARRAY[v]::public.mood[])[n] = 'sad'",
    "modifiers": "n::numeric(9,2) > 1 AND v::char(3) IN ('a', 'b') AND v::\"char\" = 'a'",
    "functions": "lower(v) = 'a' AND date(ts) > d AND public.f(n) > 1 AND n::text ~ lower(v)",
    "collations": """v COLLATE "C" > 'a' AND v > n::text COLLATE pg_catalog."C" """,
    "zones": "ts AT TIME ZONE 'UTC' > tz AND (tz AT TIME ZONE v) > ts",
    "fields": "EXTRACT(year FROM d) > 2000 AND EXTRACT(epoch FROM ts) > EXTRACT(DAY FROM d)",
    "columns beside fields": """EXTRACT(second FROM ts) > EXTRACT(day FROM d) AND year > day
        AND EXTRACT(second FROM lower::interval) > 1 AND "extract" > 'a' AND "from" > epoch""",
    "keywords": """CASE WHEN n > 1 THEN v ELSE lower(v) END IS DISTINCT FROM v
        AND n IS NOT NULL AND CASE n WHEN 1 THEN NULL ELSE v END = 'a'""",
    "columns that are keywords": """CASE WHEN "when" > "then" THEN "case" ELSE "else" END = "end"
        AND "is" IS NOT NULL AND "null" > 'a'""",
    "columns": """text = 'a' AND date > 'b' AND "time" > zone AND at > lower AND "and" > f
        AND "timestamp" > year""",
    "columns behind types": """v::varchar = text AND (date)::varchar > "numeric"::varchar(9)
        AND (n::int4 > int4::int4 OR n::text IS NOT NULL AND day::mood > 'sad')
        AND v::timestamp = "precision"::timestamp AND ts::text COLLATE "C" = "C" """,
}


@pytest.mark.parametrize("version", [18, 12])
def test_columns_of_conditions_as_the_server_prints_them(
    version: int, database: MakeDatabase, servers: Servers
) -> None:
    """The server says which columns a constraint has."""
    shop = database(servers(version))
    columns = "".join(f", {quote_identifier(name)} text" for name in NAMES)
    shop.execute(
        "CREATE TYPE mood AS ENUM ('sad')",
        "CREATE FUNCTION f(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1'",
        f"CREATE TABLE t (v text, n int, d date, ts timestamp, tz timestamptz{columns})",
        *(f'ALTER TABLE t ADD CONSTRAINT "{name}" CHECK ({c})' for name, c in CONDITIONS.items()),
    )
    ((oid,),) = shop.execute("SELECT 't'::regclass::oid::bigint")
    with connect_sql(shop.dsn) as connection:
        facts = fetch_relation_facts(connection, oid)
    assert facts is not None
    found = shop.execute(
        "SELECT conname, pg_get_expr(conbin, conrelid), ARRAY(SELECT attname::text"
        " FROM pg_attribute WHERE attrelid = conrelid AND attnum = ANY (conkey))"
        " FROM pg_constraint WHERE conrelid = 't'::regclass AND contype = 'c'"
    )
    assert len(found) == len(CONDITIONS)
    read = {name: set(columns_to_read(facts, (), [text])) for name, text, _ in found}
    assert read == {name: set(expected) for name, _, expected in found}
