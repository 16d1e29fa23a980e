"""Row filters against PostgreSQL, many of them: random typed expressions over every type on 18, and
random texts on databases of several locales and encodings, on 15 to 18.

The figures that part 3 names: at least 10,000 cases. Each seed is a table of its own; every
second one has only values that fit the Arrow types of its columns.
"""

from __future__ import annotations

from collections import Counter

import psycopg
import pytest
from tests.soak.filter_texts import TextMaker
from tests.soak.report import Report
from tests.support.filter_cases import CaseMaker, FilterCatalog, make_table
from tests.support.filter_oracle import Oracle, Outcome, Verdict, compare_truth, compare_values
from tests.support.filter_table import TABLE, FilterTable, insert_rows

from pgsluice.embedded import EmbeddedServer

pytestmark = pytest.mark.soak

#: Databases of other locales and encodings: how each is made, and its server.
DATABASES = {
    "UTF8, C, on 18": (18, "LOCALE 'C' ENCODING UTF8"),
    "UTF8, C.UTF-8, on 17": (17, "LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8' ENCODING UTF8"),
    "LATIN1, C, on 16": (16, "LOCALE 'C' ENCODING LATIN1"),
    "UTF8, ICU tr, on 15": (15, "LOCALE_PROVIDER icu ICU_LOCALE 'tr' ENCODING UTF8"),
    "UTF8, ICU en, on 17": (17, "LOCALE_PROVIDER icu ICU_LOCALE 'en' ENCODING UTF8"),
}
TEXTS = 3000
TABLES = 10
ROWS = 40
FILTERS = 1500
CALLS = 3


def test_random_filters_against_the_server(report: Report, seed: int) -> None:
    with report.row("row filters against PostgreSQL 18", seed) as row, EmbeddedServer(18) as server:
        outcomes: list[Outcome] = []
        for number in range(TABLES):
            outcomes += _of_one_table(server, seed + number)
        counts = Counter(one.verdict for one in outcomes)
        different = [str(one) for one in outcomes if one.verdict is Verdict.DIFFERENT]
        row["figures"] = (
            f"{TABLES} tables of {ROWS} rows and every type; {len(outcomes)} expressions;"
            f" {counts[Verdict.REFUSED]} refused, {counts[Verdict.CANNOT_KNOW]} that met a value"
            " of which only the server knows"
        )
        row["shown"] = f"{counts[Verdict.SAME]} the same: value for value, error for error"
        assert not different, "\n".join(different[:10])
        assert counts[Verdict.SAME] > 0.95 * len(outcomes)


def _of_one_table(server: EmbeddedServer, seed: int) -> list[Outcome]:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("SET timezone = UTC")
        columns = make_table(connection, "every_type", ROWS, seed, tame=seed % 2 == 0)
        oracle = Oracle(connection, "every_type", columns)
        catalog = FilterCatalog.read(connection)
        maker = CaseMaker(catalog, columns, seed)
        outcomes = [
            compare_truth(oracle, maker.boolean(depth=3 + number % 2), typed=number % 3 == 0)
            for number in range(FILTERS)
        ]
        outcomes += [
            compare_values(oracle, maker.calling(signature, depth=1 + turn % 2))
            for turn in range(CALLS)
            for signature in sorted(catalog.signatures)
        ]
        return outcomes


@pytest.mark.parametrize("database", DATABASES)
def test_filters_as_text_on_databases_of_several_locales(
    report: Report, seed: int, database: str
) -> None:
    version, options = DATABASES[database]
    with (
        report.row(f"row filters as text, {database}", seed) as row,
        EmbeddedServer(version) as server,
    ):
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE texts TEMPLATE template0 {options}".encode())
        with psycopg.connect(server.dsn("texts"), autocommit=True) as connection:
            connection.execute(TABLE.encode())
            insert_rows(connection, seed)
            table, maker = FilterTable(connection), TextMaker(seed)
            outcomes = [table.compare(maker.filter()) for _ in range(TEXTS)]
        counts = Counter(outcome.verdict for outcome in outcomes)
        different = [str(one) for one in outcomes if one.verdict is Verdict.DIFFERENT]
        row["figures"] = f"{len(outcomes)} filters on {table.rows} rows"
        row["shown"] = ", ".join(f"{counts[v]} {v.value}" for v in Verdict if counts[v])
        assert not different, "\n".join(different[:10])
