"""docs/types.md has every built-in type as the registry has it."""

from __future__ import annotations

import pyarrow as pa
import pytest
from scripts.types_page import PAGE, REJECTS, WHY, page

from pgsluice.types import ENTRIES, TypeOptions


def test_the_page_is_that_of_the_registry() -> None:
    """``python scripts/types_page.py`` writes it again."""
    assert PAGE.read_text(encoding="utf-8") == page()
    assert {*WHY, *REJECTS} <= {entry.name for entry in ENTRIES}


@pytest.mark.parametrize("name", REJECTS)
def test_the_values_that_it_lists_as_rejects_do_not_fit(name: str) -> None:
    (entry,) = (entry for entry in ENTRIES if entry.name == name)
    texts = pa.array([text.encode() for text in REJECTS[name]], pa.large_binary())
    unfit = entry.make_type(-1, TypeOptions()).decode_text(texts).unfit
    assert unfit is not None
    assert unfit.all()
