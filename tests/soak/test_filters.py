"""Row filters against PostgreSQL 18, many of them: random typed expressions over every type.

The figures that part 3 names: at least 10,000 cases. Each seed is a table of its own; every
second one has only values that fit the Arrow types of its columns.
"""

from __future__ import annotations

from collections import Counter

import psycopg
import pytest
from tests.soak.report import Report
from tests.support.filter_cases import CaseMaker, FilterCatalog, make_table
from tests.support.filter_oracle import (
    Oracle,
    Outcome,
    Verdict,
    compare_truth,
    compare_values,
)

from pgsluice.embedded import EmbeddedServer

pytestmark = pytest.mark.soak

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
        different = [one.detail for one in outcomes if one.verdict is Verdict.DIFFERENT]
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
