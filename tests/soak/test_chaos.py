"""Random changes and kills on ten kinds of table; then every table is compared.

The modes are those of tests/soak/chaos/modes.py: data alone (with ``pgsluice verify`` beside),
schema changes and crashes of the server, rough minutes, row filters, subscriptions in every mode.
``PGSLUICE_CHAOS_RUNS`` says how many minutes each test takes (1), each with a seed of its own. They
share a server, a database and a run of pgsluice.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import ExitStack

import pytest
from tests.soak.chaos.fire import Fought, fight, make_tables
from tests.soak.chaos.modes import MODES
from tests.soak.report import Report
from tests.support.databases import Database
from tests.support.pipeline import MakePipeline

from pgsluice.embedded import EmbeddedServer

pytestmark = pytest.mark.soak

SECONDS = 60
KILLS = 6
_SETTINGS = {"fsync": "off", "max_prepared_transactions": "20", "autovacuum": "off"}


@pytest.mark.parametrize("version", [18, 16], ids="pg{}".format)
@pytest.mark.parametrize("kind", MODES)
def test_chaos(kind: str, version: int, pipeline: MakePipeline, seed: int, report: Report) -> None:
    mode = MODES[kind]
    what = f"chaos, {mode.title}, PostgreSQL {version}"
    runs = int(os.environ.get("PGSLUICE_CHAOS_RUNS", "1"))
    killed: Counter[str] = Counter()
    fights: list[Fought] = []
    with (
        EmbeddedServer(version, settings=_SETTINGS) as server,
        report.row(what, seed) as row,
        ExitStack() as stack,
    ):
        shop = Database(server, "postgres")
        make_tables(shop)
        one = pipeline(shop, source="two_phase = true")
        stack.enter_context(mode.prepare(one))
        for number in range(runs):
            fought = fight(
                one,
                seconds=SECONDS,
                kills=KILLS,
                seed=seed + number,
                mode=mode,
                minute=number,
            )
            fights.append(fought)
            killed.update(fought.killed)
            row["figures"] = (
                f"{len(fights)} x {SECONDS} s; {sum(each.transactions for each in fights)}"
                f" transactions, {sum(each.changes for each in fights)} schema changes,"
                f" {sum(each.troubles for each in fights)} troubles,"
                f" {sum(each.verified for each in fights)} tables verified meanwhile,"
                f" {sum(each.verified_after for each in fights)} after it; SIGKILL to "
                + ", ".join(f"{name} {count}x" for name, count in sorted(killed.items()))
                + f"; all applied within {max(each.settled_s for each in fights):.0f} s"
            )
            assert not fought.wrong, fought.complaint(seed + number)
        one.stop()
        row["shown"] = f"{sum(each.tables for each in fights)} tables equal row for row"
