"""``binary = true`` from the server to the lake: the same rows as in text form."""

from __future__ import annotations

import pytest
from tests.pipeline.test_tables import BEFORE, MOVE, PARTS, SHOP, SHOP_TABLES, WORK
from tests.support.databases import MakeDatabase
from tests.support.pipeline import MakePipeline

from pgsluice.capture import run_capture
from pgsluice.spool import SpoolReader

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.pg(">= 14")]

TYPES = """
CREATE TYPE size AS ENUM ('small', 'large');
CREATE DOMAIN price AS numeric(10,2);
CREATE TYPE pair AS (n int, s text, p price);
CREATE TABLE types (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), c char(5), n name, by bytea, oi oid,
    num numeric, dec numeric(20,4), pr price, d date, t time, ttz timetz, ts timestamp,
    tstz timestamptz, iv interval, mo money, ip inet, net cidr, mac macaddr, j json, jb jsonb,
    b bit(5), vb varbit, v tsvector, q tsquery, pt point, po polygon, ci circle,
    r int4range, mr nummultirange, tr tstzrange, l pg_lsn, acl aclitem, si size, pa pair,
    ints int[], texts text[], sizes size[], prices price[], pairs pair[], stamps timestamptz[],
    f4 real, f8 float8, big text);
ALTER TABLE types ALTER big SET STORAGE EXTERNAL;
"""
ROW = """
    'ab', 'name', '\\x00ff', 4294967295, 1e40, 0.1, -1.5, '0044-03-15 BC', '24:00', '12:00+05:30',
    '2024-02-29 12:34:56.789', '2024-02-29 12:34:56.789+14', '-1 mons +2 days -00:00:00.5',
    '-12.34', '::1/64', '10.0.0.0/8', '08:00:2b:01:02:03', '{"a" : 1.0}', '{"b": [1, null]}',
    B'10101', B'1', 'a:1 b:2A', 'a & !b', '(1.5,-0)', '((0,0),(1,1),(0,1))', '<(0,0),1>',
    '[1,5)', '{[1.50,2),(3,)}', '["2024-01-01 00:00+00",infinity)', '16/B374D848',
    makeaclitem(10, 10, 'SELECT', false), 'large', ROW(1, 'a "b", (c)', 2.5)::pair,
    '{1,NULL,-2}', ARRAY['', 'NULL', NULL, 'a,"b'], '{small,NULL}', '{1.10,NULL}',
    ARRAY[ROW(1, NULL, 3)::pair, NULL], '{"2024-01-01 00:00+00"}',
    0.1, '-Infinity', (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 300) i)
"""
INSERT = f"INSERT INTO types SELECT gen_random_uuid(), {ROW} FROM generate_series(1, 20)"


def test_every_table_equals_its_source_in_binary_form(
    database: MakeDatabase, pipeline: MakePipeline
) -> None:
    one = pipeline(shop := database(), source="binary = true")
    shop.execute(SHOP, PARTS, TYPES, BEFORE, INSERT)
    one.once()
    one.assert_equal(*SHOP_TABLES, "types")
    shop.execute(*WORK, MOVE, INSERT, "INSERT INTO types DEFAULT VALUES")
    shop.execute("UPDATE types SET mo = mo * 2, iv = iv * 3 WHERE id::text < '8'")
    one.once()
    one.assert_equal(*SHOP_TABLES, "types")
    assert SpoolReader(one.spool).spool.identity.options["binary"] == "true"

    # The form may change between two runs. One batch then holds both: each value says its own.
    for source in ("", "binary = true", ""):
        one.source = source
        one.write()
        shop.execute(INSERT, "UPDATE types SET dec = dec + 1, by = by || by")
        run_capture(one.config, once=True)
    one.once()
    one.assert_equal("types")
