"""The wire with full figures: part 2's list of what it must show."""

from __future__ import annotations

import random

import pytest
from tests.soak.report import Report
from tests.support.databases import Database
from tests.support.interleaving import interleave
from tests.support.large_transaction import CAPTURE_BYTES, replicate
from tests.support.pipeline import MakePipeline

from pgsluice.embedded import EmbeddedServer

pytestmark = pytest.mark.soak

ROWS = 2_000_000
KILLS = 3
TRANSACTIONS = 200
_TWO_PHASE = {"max_prepared_transactions": "20"}


@pytest.mark.parametrize("streaming", ["off", "on", "parallel"])
def test_a_transaction_of_two_million_rows(
    streaming: str, pipeline: MakePipeline, report: Report, seed: int
) -> None:
    what = f"one large transaction, streaming = {streaming}"
    with report.row(what, seed) as row, EmbeddedServer(18) as server:
        one = pipeline(Database(server, "postgres"), source=f'streaming = "{streaming}"')
        peak = replicate(one, ROWS, segment_bytes=16 * 2**20, kills=KILLS)
        row["figures"] = f"{ROWS} inserts, {ROWS // 10} updates; capture SIGKILLed {KILLS}x in it"
        row["shown"] = f"equal; capture's VmHWM {peak / 2**20:.0f} MiB of 300"
        assert peak < CAPTURE_BYTES


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("version", [18, 16])
def test_interleaved_transactions(
    version: int, pipeline: MakePipeline, report: Report, seed: int
) -> None:
    what = f"interleaved transactions, PostgreSQL {version}"
    with report.row(what, seed) as row, EmbeddedServer(version, settings=_TWO_PHASE) as server:
        shop = Database(server, "postgres")
        done = interleave(pipeline, shop, random.Random(seed), TRANSACTIONS)
        row["figures"] = (
            f"{done} transactions of 3 sessions at once, streamed from 64 kB on, with savepoints, "
            "rollbacks and prepared transactions"
        )
        row["shown"] = "target equal to source after each script"
