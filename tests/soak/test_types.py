"""Every type of the registry: PostgreSQL, Delta, Spark's SQL, and the same text, or a reject."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from tests.columnar.type_cases import CASES, NAMES_OF_OIDS, USER_TYPES, Case
from tests.pipeline.test_rejects import rejects_of
from tests.soak.report import Report
from tests.support.databases import Database
from tests.support.delta_spark import delta_spark
from tests.support.pipeline import MakePipeline
from tests.types.test_types_oracle import RANDOM as OF_THE_ORACLE

from pgsluice.embedded import EmbeddedServer
from pgsluice.types import ENTRIES
from pgsluice.verification.postgres_text import TextForm, postgres_text

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("engine")]

ROWS = 1000
_LETTERS = "translate(md5(random()::text), '0123456789', E'ü🐘,\"\\\\{}() ')"
_DAY = "date '1900-01-01' + (random() * 70000)::int"
RANDOM = {
    **OF_THE_ORACLE,
    "bool": "random() < 0.5",
    "int2": "(random() * 65535)::int - 32768",
    "int4": "(random() * 4294967295)::bigint - 2147483648",
    "oid": "(random() * 4294967295)::bigint",
    "numeric(10,2)": "(random() - 0.5) * 199999999",
    "text": f"left({_LETTERS}, (random() * 33)::int)",
    "varchar(5)": f"left({_LETTERS}, (random() * 5)::int)",
    "char(5)": f"left({_LETTERS}, (random() * 5)::int)",
    "json": f"json_build_object({_LETTERS}, random(), 'b', ARRAY[{_LETTERS}, NULL])",
    "jsonb": f"jsonb_build_object({_LETTERS}, random(), 'b', ARRAY[{_LETTERS}, NULL])",
    "money": "((random() - 0.5) * 1e12)::numeric::money",
    "bit(16)": "(random() * 65535)::int::bit(16)",
    "varbit": "right((random() * 65535)::int::bit(16)::text, (random() * 16)::int)::varbit",
    "box": "box(point(random(), random()), point(random() * 1e20, -random()))",
    "circle": "circle(point(random() * 1e-9, random()), random())",
    "pg_lsn": "'0/0'::pg_lsn + (random() * 1e18)::numeric",
    "int4range": "int4range((random() * 9)::int, 9 + (random() * 9)::int)",
    "numrange": "numrange(random()::numeric, 1 + random()::numeric, '(]')",
    "daterange": f"daterange({_DAY}, NULL)",
    "public.pair": f"ROW((random() * 9)::int, {_LETTERS})",
    "public.textrange": f'public.textrange({_LETTERS} COLLATE "C", NULL)',
}
"""A random value of a type; of the others, one of the case's own values."""
STRUCTS = ("range", "public.pair", "public.nested")
VARIANTS = ("json", "jsonb")


def is_variant(name: str, kind: str) -> bool:
    """Whether a column of the table is VARIANT at the target."""
    return name.startswith("s_") and kind in VARIANTS


def as_jsonb(name: str, kind: str) -> str:
    """The cast by which a json is printed as a VARIANT is."""
    return "::jsonb" if is_variant(name, kind) and kind == "json" else ""


def of_random(case: Case) -> str:
    if case.type in RANDOM:
        return f"({RANDOM[case.type]})::{case.type}"
    listed = ", ".join("'" + value.replace("'", "''") + "'" for value in case.values)
    return f"((ARRAY[{listed}])[1 + floor(random() * {len(case.values)})::int])::{case.type}"


def of_case(case: Case) -> str:
    """The values of a case, one a row; then NULL."""
    listed = ", ".join("'" + value.replace("'", "''") + "'" for value in case.values)
    return f"((ARRAY[{listed}])[n])::{case.type}"


def cases_of(connection: psycopg.Connection[Any]) -> list[Case]:
    """The cases that the server can have."""
    version = connection.info.server_version // 10000
    user = connection.info.user
    names = [Case(name, [value]) for name, value in NAMES_OF_OIDS.items()]
    found = []
    for case in [*CASES, *names]:
        if case.needs or case.since > version:
            continue
        case = replace(case, values=[value.replace("{user}", user) for value in case.values])
        try:
            connection.execute(f"SELECT {of_case(case)} FROM (VALUES (1)) AS one (n)")
        except psycopg.Error:
            continue
        found.append(case)
    return found


def test_every_type_arrives_as_the_same_text_or_a_reject(
    pipeline: MakePipeline, tmp_path: Path, report: Report, seed: int
) -> None:
    what = "every type through Delta and Spark's SQL"
    with report.row(what, seed) as row, EmbeddedServer(18) as server:
        shop = Database(server, "postgres")
        options = "-c datestyle=ISO -c extra_float_digits=3 -c timezone=UTC"
        with psycopg.connect(shop.dsn, autocommit=True, options=options) as connection:
            connection.execute(USER_TYPES)
            cases = cases_of(connection)
            kinds = {f"v{n}": case.type for n, case in enumerate(cases)}
            kinds |= {f"a{n}": f"{case.type}[]" for n, case in enumerate(cases) if case.has_array}
            nested = {
                name: "variant" if kind in VARIANTS else "struct"
                for name, kind in kinds.items()
                if kind in VARIANTS or any(s in kind for s in STRUCTS)
            }
            kinds |= {f"s_{name}": kinds[name] for name in nested}
            columns = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
            connection.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
            fill(connection, cases, nested, "0", max(len(case.values) for case in cases) + 1, seed)
            fill(connection, cases, nested, "1000", ROWS // 2, seed + 1)
            one = pipeline(shop)
            chosen = "".join(f'"public.t.s_{name}" = "{kind}"\n' for name, kind in nested.items())
            one.write(f"[subscription.types]\n{chosen}")
            one.once()
            fill(connection, cases, nested, "5000", ROWS // 2, seed + 2)
            fill(connection, cases, nested, "9000", max(len(case.values) for case in cases), seed)
            one.once()
            source = {
                number: values
                for number, *values in connection.execute(
                    "SELECT id, "
                    + ", ".join(
                        f"CASE WHEN num_nulls({name}) = 0 THEN concat({name}{as_jsonb(name, kind)})"
                        " END"
                        for name, kind in kinds.items()
                    )
                    + " FROM t"
                ).fetchall()
            }
        assert one.table("t").error is None
        with delta_spark(tmp_path) as spark:
            variants = [n for n, kind in kinds.items() if is_variant(n, kind)]
            # Arrow refuses Spark's NULL of a VARIANT: a struct of bytes that are never NULL.
            others = "".join(
                f", coalesce({n}, parse_json('null')) AS {n}, {n} IS NULL AS null_{n}"
                for n in variants
            )
            read = spark.table(
                f"SELECT * EXCEPT ({', '.join(variants)}){others} FROM delta.`{one.target('t')}`"
            )
        rejects = {
            (each["column_name"], each["key"]): each["text"]
            for each in rejects_of(one)
            if each["resolved_position"] is None
        }
        ids = read.column("id").to_pylist()
        assert sorted(ids) == sorted(source)
        rejected = 0
        for place, (name, kind) in enumerate(kinds.items()):
            form = TextForm(";" if "box" in kind else ",", is_array=kind.endswith("[]"))
            column = read.column(name).combine_chunks()
            if is_variant(name, kind):
                parts = [column.field("metadata"), column.field("value")]
                fields = ["metadata", "value"]  # Spark has them in the other order
                null = read.column(f"null_{name}").combine_chunks()
                column = pa.StructArray.from_arrays(parts, fields, mask=null)
            texts = postgres_text(column, form).to_pylist()
            for number, text in zip(ids, texts, strict=True):
                expected = source[number][place]
                if text is None and expected is not None:
                    rejected += 1
                    text = rejects[name, f'{{"id": "{number}"}}']
                assert text == expected, f"{name} {kind} of the row {number}"
        assert rejected == len(rejects)
        known = {case.type.strip('"').partition("(")[0] for case in cases}
        known |= {"bpchar"} if "char" in known else set()
        missing = sorted(entry.name for entry in ENTRIES if entry.name not in known)
        row["figures"] = (
            f"{len(cases)} types and {len(kinds) - len(cases)} arrays, structs and VARIANTs of "
            f"them; all of the registry but {', '.join(missing) or 'none'}; their extreme values, "
            f"and {ROWS} random ones of {len(RANDOM.keys() & {*kinds.values()})} of them, copied "
            "and streamed; of the others, their extreme values in random order"
        )
        row["shown"] = (
            f"{len(source) * len(kinds)} values: Spark reads the source's text, or NULL with this "
            f"text as a reject ({rejected})"
        )


def fill(
    connection: psycopg.Connection[Any],
    cases: list[Case],
    nested: Iterable[str],
    first: str,
    count: int,
    seed: int,
) -> None:
    """Rows from an id on: with the cases' own values up to 1000 and from 9000 on, else random."""
    value = of_case if first in ("0", "9000") else of_random
    names = {f"v{n}": value(case) for n, case in enumerate(cases)}
    names |= {
        f"a{n}": f"ARRAY[{value(case)}, NULL]::{case.type}[]"
        for n, case in enumerate(cases)
        if case.has_array
    }
    connection.execute(f"SELECT setseed({seed % 1000 / 1000})")
    connection.execute("DROP TABLE IF EXISTS drawn")
    columns = ", ".join(f"{expression} AS {name}" for name, expression in names.items())
    connection.execute(
        f"CREATE TEMP TABLE drawn AS SELECT {first} + n AS id, {columns}"
        f" FROM generate_series(1, {count}) n"
    )
    own, copied = ", ".join(names), ", ".join(nested)
    wanted = ", ".join(f"s_{name}" for name in nested)
    connection.execute(f"INSERT INTO t (id, {own}, {wanted}) SELECT id, {own}, {copied} FROM drawn")
