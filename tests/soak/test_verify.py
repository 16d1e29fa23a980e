"""``pgsluice verify`` with full figures: a tampered table of a million rows."""

from __future__ import annotations

import time

import pytest
from tests.soak.report import Report
from tests.support.databases import MakeDatabase
from tests.support.pipeline import MakePipeline
from tests.support.verifying import tamper, verify, with_rows

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("engine")]

ROWS = 1_000_000


def test_a_tampered_table_of_a_million_rows(
    database: MakeDatabase,
    pipeline: MakePipeline,
    report: Report,
    seed: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with report.row("a tampered target", seed) as row:
        one = pipeline(shop := database())
        with_rows(shop, ROWS)
        one.once()
        code, results = verify(one, capsys)
        assert code == 0, results
        tamper(one.lake / "public" / "t", ROWS)
        began = time.monotonic()
        code, results = verify(one, capsys)
        took_s = time.monotonic() - began
        assert code == 1
        assert results["public.t"]["differing_keys"] == [["17"]]
        assert results["public.t"]["missing_keys"] == [["4711"]]
        assert results["public.t"]["extra_keys"] == [[str(ROWS + 1)]]
        version, began = one.delta("t").version(), time.monotonic()
        code, results = verify(one, capsys, "--repair")
        repaired_s = time.monotonic() - began
        assert code == 0, results
        assert one.delta("t").version() == version + 1
        one.assert_equal("t")
        row["figures"] = f"{ROWS} rows; one value changed, one row removed, one added"
        row["shown"] = f"equal before; then the three keys are named, in {took_s:.0f} s"
        row["shown"] += f"; found again and repaired in one commit, in {repaired_s:.0f} s"
