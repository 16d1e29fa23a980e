"""The main path with full figures: part 1's list of what it must show."""

from __future__ import annotations

import pytest
from tests.soak.report import Report
from tests.support.databases import Database
from tests.support.large_transaction import CAPTURE_BYTES, replicate
from tests.support.oracle import count_rows
from tests.support.pgbench import TABLES, fire, initialise
from tests.support.pipeline import MakePipeline

from pgsluice.embedded import EmbeddedServer

pytestmark = pytest.mark.soak

KILLS = 11
SECONDS = 20
LARGE_ROWS = 2_000_000


@pytest.mark.parametrize("version", [18, 16])
def test_pgbench_under_fire(
    version: int, pipeline: MakePipeline, report: Report, seed: int
) -> None:
    what = f"pgbench under fire, PostgreSQL {version}"
    with report.row(what, seed) as row, EmbeddedServer(version) as server:
        shop = Database(server, "postgres")
        initialise(shop)
        one = pipeline(shop)
        fought = fire(one, seconds=SECONDS, kills=KILLS, seed=seed, restart=True)
        rows = sum(count_rows(one.lake / "public" / table) for table in TABLES)
        row["figures"] = (
            f"TPC-B, scale 5, 4 clients, 2 x {SECONDS} s; SIGKILL to "
            + ", ".join(f"{kind} {fought.count(kind)}x" for kind in sorted(set(fought)))
            + "; 1 immediate restart of the server"
        )
        row["shown"] = f"4 tables, {rows} rows: equal row for row"


def test_a_transaction_of_two_million_rows(
    pipeline: MakePipeline, report: Report, seed: int
) -> None:
    with report.row("one large transaction", seed) as row, EmbeddedServer(18) as server:
        one = pipeline(Database(server, "postgres"))
        peak = replicate(one, LARGE_ROWS, segment_bytes=16 * 2**20)
        row["figures"] = f"{LARGE_ROWS} inserts, {LARGE_ROWS // 10} updates, some deletes"
        row["shown"] = f"equal; capture's VmHWM {peak / 2**20:.0f} MiB of 300"
        assert peak < CAPTURE_BYTES
