"""Our publications beside PostgreSQL 18's own, many of them, for the same WAL.

The figures that part 3 names: at least 10,000 random (table, filter, change) cases. Each seed is
a database of its own; every second one has only values that fit its columns' Arrow types.
"""

from __future__ import annotations

from collections import Counter

import pytest
from tests.publication.native import Verdict
from tests.publication.publish_cases import Compared
from tests.soak.report import Report
from tests.support.databases import fresh_database

from pgsluice.embedded import EmbeddedServer

pytestmark = pytest.mark.soak

SCENES = 6
FILTERS = 200
CASES = 10_000


def test_random_publications_against_the_server(report: Report, seed: int) -> None:
    what = "publications beside PostgreSQL 18's own"
    with report.row(what, seed) as row, EmbeddedServer(18) as server:
        compared = Compared()
        for number in range(SCENES):
            with fresh_database(server) as database:
                compared.add(database.dsn, seed + number, FILTERS, tame=number % 2 == 1)
        counts = Counter(one.verdict for one in compared.outcomes)
        row["figures"] = (
            f"{SCENES} databases of 4 kinds of table; {len(compared.outcomes)} subscriptions to"
            f" random publications, {compared.count(*Verdict)} cases (table, filter, change);"
            f" {counts[Verdict.REFUSED]} refused, {counts[Verdict.CANNOT_KNOW]} that met a value of"
            " which only the server knows"
        )
        same = compared.count(Verdict.SAME, Verdict.SAME_ERROR)
        row["shown"] = (
            f"{same} cases the same, message for message;"
            f" {counts[Verdict.SAME_ERROR]} subscriptions with the same error at the same change;"
            f" UPDATEs that became INSERT {compared.turned['UI']}, DELETE {compared.turned['UD']},"
            f" UPDATE {compared.turned['UU']}"
        )
        compared.check()
        assert same >= CASES
