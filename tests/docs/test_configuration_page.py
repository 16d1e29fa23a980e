"""docs/configuration.md lists every key, as the models have it; a key without words is an error."""

from __future__ import annotations

from scripts.configuration_page import PAGE, page


def test_the_page_is_that_of_the_models() -> None:
    """``python scripts/configuration_page.py`` writes it again."""
    assert PAGE.read_text(encoding="utf-8") == page()
