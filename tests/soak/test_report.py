"""The page that soak tests write keeps what it does not know better."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.soak.report import Report, read_page


def test_rows_are_replaced_and_other_areas_stay(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for area, what in (("main", "a"), ("main", "b"), ("copy", "a")):
        with Report(area, page).row(what, seed=7) as row:
            row["figures"], row["shown"] = "1 | 2", f"first of {what}"
    with Report("main", page).row("a", seed=8) as row:
        row["shown"] = "second"
    found = read_page(page)
    assert {area: list(rows) for area, rows in found.items()} == {
        "copy": ["a"],
        "main": ["a", "b"],
    }
    assert found["main"]["a"][2:4] == ["second", "8"]
    assert found["main"]["b"][1:4] == ["1   2", "first of b", "7"]
    assert page.read_text().startswith("# Reliability")


def test_what_fails_does_not_leave_an_older_success(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    with Report("main", page).row("a", seed=1) as row:
        row["shown"] = "equal"
    with pytest.raises(ZeroDivisionError), Report("main", page).row("a", seed=2):
        raise ZeroDivisionError
    assert read_page(page)["main"]["a"][2] == "**not passed**"
