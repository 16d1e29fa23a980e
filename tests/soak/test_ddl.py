"""The table of DDL, whole: every row at every moment, on 18, 16, 14 and 12.

``PGSLUICE_DDL_ROWS`` takes a regular expression that the rows' names have to match.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext

import pytest
from tests.soak.report import WITHOUT_SPARK, Report
from tests.support.databases import Database, MakeDatabase, Servers
from tests.support.ddl.batch import run_rows
from tests.support.ddl.page import PAGE, judge, schema_changes, to_markdown
from tests.support.ddl.promotion import FailoverDatabase
from tests.support.ddl.row import DURING_COPIES, FIRST_COPIES, Moment, Publisher, Row
from tests.support.ddl.table import ROWS
from tests.support.pipeline import MakePipeline
from tests.support.standby import Standby

from pgsluice.embedded import EmbeddedServer

pytestmark = pytest.mark.soak

_SETTINGS = {
    "fsync": "off",
    "autovacuum": "off",
    "max_prepared_transactions": "20",
    "allow_in_place_tablespaces": "on",  # a standby that is started again needs it
}
VERSIONS = (18, 16, 14, 12)
PUBLISHERS = {
    "pgsluice": (Publisher.PGSLUICE, Publisher.OURS),
    "server": (Publisher.SERVER,),
}
TITLES = {"pgsluice": "pgsluice's", "server": "the server's"}


def chosen(publishers: tuple[Publisher, ...], moment: Moment, version: int) -> list[Row]:
    pattern = os.environ.get("PGSLUICE_DDL_ROWS", "")
    return [
        row.on(version)
        for row in ROWS
        if row.publisher in publishers
        and row.runs_at(moment, version)
        and re.search(pattern, row.name)
    ]


def test_every_row_has_a_name_of_its_own() -> None:
    names = Counter(row.slug for row in ROWS)
    assert [name for name, count in names.items() if count > 1 or len(name) > 55] == []


def test_the_page_says_what_the_table_says() -> None:
    """``python -m tests.support.ddl.page`` writes it again."""
    assert PAGE.read_text() == schema_changes()


@pytest.fixture
def failover() -> Iterator[Callable[[int], FailoverDatabase]]:
    """A database of a version's primary with a standby."""
    with ExitStack() as stack:

        def make(version: int) -> FailoverDatabase:
            primary = stack.enter_context(EmbeddedServer(version, settings=_SETTINGS))
            Database(primary, "postgres").execute("CREATE DATABASE shop")
            return FailoverDatabase(primary, "shop", stack.enter_context(Standby(primary)))

        yield make


@pytest.mark.parametrize("version", VERSIONS, ids="pg{}".format)
@pytest.mark.parametrize(
    "moment",
    [moment for moment in Moment if moment not in DURING_COPIES | FIRST_COPIES],
    ids=lambda moment: moment.name.lower(),
)
@pytest.mark.parametrize("publisher", PUBLISHERS)
@pytest.mark.usefixtures("engine")
def test_rows(
    publisher: str,
    moment: Moment,
    version: int,
    servers: Servers,
    database: MakeDatabase,
    pipeline: MakePipeline,
    failover: Callable[[int], FailoverDatabase],
    report: Report,
) -> None:
    promotes = moment in (Moment.PROMOTION, Moment.LOST)
    source = failover(version) if promotes else database(servers(version))
    check(publisher, moment, version, source, pipeline, report)


@pytest.mark.parametrize("version", VERSIONS, ids="pg{}".format)
@pytest.mark.parametrize(
    "moment", sorted(DURING_COPIES, key=list(Moment).index), ids=lambda moment: moment.name.lower()
)
@pytest.mark.parametrize("publisher", PUBLISHERS)
def test_rows_during_copies(
    publisher: str,
    moment: Moment,
    version: int,
    servers: Servers,
    database: MakeDatabase,
    pipeline: MakePipeline,
    report: Report,
    request: pytest.FixtureRequest,
) -> None:
    """Only tasks in this process can be held when they have a lock."""
    if moment is Moment.AFTER_LOCK:
        request.getfixturevalue("local_spark")
        report = Report(report.area, report.page, WITHOUT_SPARK)
    else:
        request.getfixturevalue("engine")
    check(publisher, moment, version, database(servers(version)), pipeline, report)


def check(
    publisher: str,
    moment: Moment,
    version: int,
    source: Database,
    pipeline: MakePipeline,
    report: Report,
) -> None:
    rows = chosen(PUBLISHERS[publisher], moment, version)
    if not rows:
        pytest.skip("no row is chosen")
    what = f"{TITLES[publisher]} publications, {moment.value}, PostgreSQL {version}"
    is_whole = "PGSLUICE_DDL_ROWS" not in os.environ
    with report.row(what, seed=0) if is_whole else nullcontext({}) as line:
        verdicts = judge(rows, run_rows(pipeline, source, rows, moment), moment)
        sys.stdout.write(f"\n{to_markdown(moment, verdicts)}\n")
        failed = [f"{one.row.name}: {one.fault}, {one.seen}" for one in verdicts if one.fails]
        stale = [one.row.name for one in verdicts if one.is_stale]
        assert not failed, "\n".join(failed)
        assert not stale, f"these pass, so that they are no known gaps any more: {stale}"
        gaps = [one.row.name for one in verdicts if one.fault is not None]
        line["figures"] = f"{len(rows)} schema changes"
        line["shown"] = f"{len(rows) - len(gaps)} as expected"
        if gaps:
            line["shown"] += f"; known gaps: {', '.join(gaps)}"
