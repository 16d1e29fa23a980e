"""Random changes, schema changes and kills on ten kinds of table; then every table is compared.

``PGSLUICE_CHAOS_RUNS`` says how many minutes each test takes (1), each with a seed of its own.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from tests.soak.report import Report
from tests.support.chaos.fire import Fought, fight, make_tables
from tests.support.chaos.tables import CHANGES, HARMLESS
from tests.support.databases import Database
from tests.support.pipeline import MakePipeline

from pgsluice.embedded import EmbeddedServer

pytestmark = pytest.mark.soak

SECONDS = 60
KILLS = 6
_SETTINGS = {"fsync": "off", "max_prepared_transactions": "20", "autovacuum": "off"}


@pytest.mark.parametrize("version", [18, 16], ids="pg{}".format)
@pytest.mark.parametrize("ddl", [False, True], ids=["data", "schema"])
def test_chaos(
    ddl: bool, version: int, pipeline: MakePipeline, seed: int, tmp_path: Path, report: Report
) -> None:
    what = f"chaos, {'data and schema' if ddl else 'data'}, PostgreSQL {version}"
    runs = int(os.environ.get("PGSLUICE_CHAOS_RUNS", "1"))
    killed: Counter[str] = Counter()
    fights: list[Fought] = []
    with report.row(what, seed) as row:
        for number in range(runs):
            with EmbeddedServer(version, settings=_SETTINGS) as server:
                shop = Database(server, "postgres")
                make_tables(shop)
                one = pipeline(shop, source="two_phase = true")
                fights.append(
                    fight(
                        one,
                        seconds=SECONDS,
                        kills=KILLS,
                        seed=seed + number,
                        schema=(*HARMLESS, *CHANGES) if ddl else (),
                    )
                )
            assert not fights[-1].wrong, fights[-1].complaint(seed + number)
            killed.update(fights[-1].killed)
        row["figures"] = (
            f"{runs} x {SECONDS} s; {sum(one.transactions for one in fights)} transactions,"
            f" {sum(one.changes for one in fights)} schema changes; SIGKILL to "
            + ", ".join(f"{name} {count}x" for name, count in sorted(killed.items()))
        )
        row["shown"] = f"{sum(one.tables for one in fights)} tables equal row for row"
