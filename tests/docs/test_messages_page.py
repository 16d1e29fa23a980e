"""docs/messages.md has every message with a recovery action, as the code has it."""

from __future__ import annotations

from scripts.messages_page import PAGE, messages, page


def test_the_page_is_that_of_the_code() -> None:
    """``python scripts/messages_page.py`` writes it again."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_texts_of_each_form_are_found() -> None:
    found = {(each.kind, each.what): each.action for each in messages()}
    not_installed = found["ConfigError", "the Python package pyspark is not installed"]
    assert not_installed.startswith("pip install 'pgsluice[spark]'")
    assert found["SpoolError", "the spool's file *path* is missing"].startswith(
        "restore the file"
    ), "a constant"
    assert any("pgsluice copy CONFIG *title*" in action for action in found.values()), "a function"
    assert any(kind == "check" for kind, _ in found)
    assert any(kind == "log" for kind, _ in found)
