"""``pgsluice verify`` with full figures: a tampered table of a million rows."""

from __future__ import annotations

import hashlib
import time

import pytest
from tests.soak.report import Report
from tests.support.databases import MakeDatabase
from tests.support.pipeline import MakePipeline
from tests.support.verifying import tamper, verify, with_rows

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("engine")]

ROWS = 1_000_000

MODES = {
    "current": "",
    "deleted rows kept": 'deleted_column = "gone"',
    "changelog": 'mode = "changelog"',
    "history": 'mode = "history"',
    "without a key": "",
    "changelog without a key": 'mode = "changelog"',
}


@pytest.mark.parametrize("mode", MODES)
def test_a_tampered_table_of_a_million_rows(
    database: MakeDatabase,
    pipeline: MakePipeline,
    report: Report,
    seed: int,
    capsys: pytest.CaptureFixture[str],
    mode: str,
) -> None:
    with report.row(f"a tampered target, {mode}", seed) as row:
        one = pipeline(shop := database(), extra=MODES[mode])
        with_rows(shop, ROWS, has_key=(has_key := "without a key" not in mode))
        one.once()
        code, results = verify(one, capsys)
        assert code == 0, results
        tamper(one.lake / "public" / "t", ROWS)
        began = time.monotonic()
        code, results = verify(one, capsys)
        took_s = time.monotonic() - began
        assert code == 1
        table = results["public.t"]
        if has_key:
            assert table["differing_keys"] == [["17"]]
            assert table["missing_keys"] == [["4711"]]
            assert table["extra_keys"] == [[str(ROWS + 1)]]
        else:
            md5 = [hashlib.md5(str(number).encode()).hexdigest() for number in (1, 17, 4711)]
            assert table["missing_keys"] == [["17", md5[1]], ["4711", md5[2]]]
            assert table["extra_keys"] == [["17", "other"], [str(ROWS + 1), md5[0]]]
        version, began = one.delta("t").version(), time.monotonic()
        code, results = verify(one, capsys, "--repair")
        repaired_s = time.monotonic() - began
        assert code == 0, results
        assert results["public.t"]["is_copied"] == (mode != "current")
        code, results = verify(one, capsys)
        assert (code, results["public.t"]["target_rows"]) == (0, ROWS)
        how = "by a copy"
        if mode == "current":
            assert one.delta("t").version() == version + 1
            how = "in one commit"
        row["figures"] = f"{ROWS} rows; one value changed, one row removed, one added"
        named = f"the {'three keys' if has_key else 'four rows'} are named"
        row["shown"] = f"equal before; then {named}, in {took_s:.0f} s"
        row["shown"] += f"; found again and repaired {how}, in {repaired_s:.0f} s; equal"
