"""Row filters as users write them, bound and computed, beside the server's answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest
from tests.support.filter_cases import OIDS, CaseMaker, Expression, FilterCatalog, make_table
from tests.support.filter_oracle import Oracle, Verdict, compare_truth

from pgsluice.embedded import EmbeddedServer
from pgsluice.row_filter import FilterColumn, FilterNotExact, bind_row_filter

SEED = 19960708
RANDOM = 250

FILTERS = """
a_int4 > 5 AND a_text = 'a'
NOT (a_int4 < 5)
a_int4 BETWEEN 0 AND 10
a_int4 NOT BETWEEN SYMMETRIC 10 AND b_int4
a_int4 IN (0, 1, 2, 10)
a_int4 NOT IN (0, 1, NULL)
a_int8 IN (0, 5)
a_text IN ('a', 'A', 'é')
a_text <> ALL (ARRAY['a', b_text])
a_int4 = ANY (a_int4_array)
a_int4 % 2 = 0
a_int4 / 2 * 2 = a_int4
a_int2 + a_int2 > 0
a_int8 - 1 < 0
a_int4 > 1.5
a_numeric / 3 > b_numeric
a_numeric % 7 = 0
round(a_numeric, 2) = a_numeric
a_float8 = 'NaN' OR a_float8 > 1
a_float4 = 0.1::float4
a_text LIKE 'a%'
a_text NOT LIKE '%b'
a_text LIKE '100!%' ESCAPE '!'
a_text COLLATE "C" ILIKE 'A%'
a_text SIMILAR TO '(a|b)%'
a_text SIMILAR TO '[a-c]_(b|%)' ESCAPE '#'
a_text ~ '^[a-c]+$'
a_text !~ 'b'
a_text COLLATE "C" ~* '^a'
a_text COLLATE "C" > 'B'
a_bpchar = 'a'
a_bpchar || 'x' = 'ax'
a_varchar = 'EU' OR a_varchar IS NULL
length(a_text) > 2
char_length(a_bpchar) = octet_length(a_bpchar)
upper(a_text COLLATE "C") = 'AB'
substring(a_text FROM 2 FOR 3) = 'bc'
trim(both from a_text) = 'a'
trim(leading 'a' from a_text) = ''
position('b' in a_text) = 2
left(a_text, -1) = right(a_text, 2)
md5(a_text) = '0cc175b9c0f1b6a831c399e269772661'
a_text || b_text = 'ab'
starts_with(a_text, 'a')
a_date > '2000-01-01'
a_date + 1 = b_date
a_date - b_date > 100
a_date < a_timestamp
extract(year from a_date) = 2024
extract(isodow from a_timestamp) IN (6, 7)
date_trunc('month', a_timestamp) = '2024-02-01'
date_part('hour', a_timestamp) > 10
a_timestamp + interval '1 mon' > '2000-02-01'
a_timestamp - b_timestamp > interval '1 day'
a_interval > interval '1 day'
a_time > '12:00'
a_timestamptz > '2000-01-01 00:00:00+00'
a_uuid = 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'
a_inet << '10.0.0.0/8'
a_bool
NOT a_bool
a_bool IS NOT TRUE
a_bool IS UNKNOWN OR b_bool IS FALSE
a_int4 IS DISTINCT FROM b_int4
a_text IS NOT DISTINCT FROM NULL
(a_int4, a_int8) < (1, 5)
(a_int4, a_int2) = (b_int4, b_int2)
(a_int4, b_int4) IS NULL
ROW(a_int4, b_int4) IS NOT NULL
CASE WHEN a_int4 > 0 THEN a_bool ELSE b_bool END
CASE a_int4 WHEN 0 THEN true WHEN 1 THEN NULL ELSE false END
CASE a_int4 WHEN 0 THEN false ELSE 10 / a_int4 > 1 END
a_int4 <> 0 AND 10 / a_int4 > 1
a_int4 = 0 OR 10 / a_int4 > 1
10 / a_int4 > 1
1 / 0 = 1
COALESCE(a_int4, b_int4, 0) = 0
NULLIF(a_int4, 0) IS NULL
GREATEST(a_int4, b_int4, 0) > LEAST(a_int8, 3)
a_jsonb ->> 'a' = '1'
a_jsonb -> 'b' -> 0 = '1'
a_jsonb #>> '{b,2,c}' IS NULL
a_jsonb @> '{"a": 1}'
a_jsonb ? 'a'
a_jsonb = '{}'
a_json ->> 'a' = '1'
a_int4_array @> ARRAY[1]
a_int4_array && b_int4_array
a_text_array = ARRAY['a', 'b']
cardinality(a_int4_array) > 1
a_bytea = '\\x00'
a_bit & b_bit = B'00000000'
abs(a_int4) > 5
mod(a_int4, 2) = 1
floor(a_float8) = ceil(a_float8)
a_numeric::int4 > 0
a_float8::numeric(10,2) = 0.10
a_int8::int2 = 5
a_numeric::float8 > 0
1 < a_oid
true
NULL
""".strip().splitlines()


@dataclass(frozen=True, slots=True)
class Bench:
    """A table with every type, its columns for the binder, and the server's answers."""

    oracle: Oracle
    columns: tuple[FilterColumn, ...]
    maker: CaseMaker

    def bound(self, text: str) -> Expression:
        return Expression(text, bind_row_filter(text, self.columns).expression)


@pytest.fixture(scope="module")
def bench(pg18: EmbeddedServer) -> Iterator[Bench]:
    with psycopg.connect(pg18.dsn(), autocommit=True) as connection:
        connection.execute("SET timezone = UTC")
        columns = make_table(connection, "every_type", 40, SEED)
        typmods = dict(
            connection.execute(
                "SELECT attname, atttypmod FROM pg_attribute"
                " WHERE attrelid = 'every_type'::regclass"
            ).fetchall()
        )
        yield Bench(
            Oracle(connection, "every_type", columns),
            tuple(
                FilterColumn(name, OIDS[type_name], typmods[name])
                for name, type_name in columns.items()
            ),
            CaseMaker(FilterCatalog.read(connection), columns, SEED),
        )


@pytest.mark.parametrize("typed", [False, True], ids=["text", "typed"])
@pytest.mark.parametrize("text", FILTERS)
def test_filters_as_users_write_them(bench: Bench, text: str, typed: bool) -> None:
    outcome = compare_truth(bench.oracle, bench.bound(text), typed)
    assert outcome.verdict is Verdict.SAME, outcome


def test_random_filters_through_the_binder(bench: Bench) -> None:
    compared = 0
    for number in range(RANDOM):
        expression = bench.maker.boolean()
        try:
            bound = bench.bound(expression.sql)
        except FilterNotExact:
            continue
        outcome = compare_truth(bench.oracle, bound, typed=number % 2 == 0)
        assert outcome.verdict is not Verdict.DIFFERENT, str(outcome)
        compared += outcome.verdict is Verdict.SAME
    assert compared > 0.7 * RANDOM
