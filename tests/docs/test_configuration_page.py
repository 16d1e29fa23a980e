"""docs/configuration.md lists every key, as the models have it."""

from __future__ import annotations

from scripts.configuration_page import PAGE, keys_without_words, page


def test_the_page_is_that_of_the_models() -> None:
    """``python scripts/configuration_page.py`` writes it again."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_key_is_explained() -> None:
    assert keys_without_words() == []
