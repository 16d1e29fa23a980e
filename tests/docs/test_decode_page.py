"""The examples in docs/decode.md are the program's real output."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.commands import Command, pgsluice  # noqa: F401 - a fixture

ROOT = Path(__file__).parents[2]
EXAMPLES = re.findall(
    r"```console\n\$ pgsluice ([^\n|]*)\n(.*?)```", (ROOT / "docs/decode.md").read_text(), re.DOTALL
)


@pytest.mark.parametrize(
    ("arguments", "shown"), EXAMPLES, ids=[arguments for arguments, _ in EXAMPLES]
)
def test_an_example_of_the_page(
    pgsluice: Command,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    shown: str,
) -> None:
    monkeypatch.chdir(ROOT)
    outcome = pgsluice(*arguments.split())
    assert (outcome.code, outcome.out) == (0, shown)


def test_the_examples_have_the_messages_that_they_explain() -> None:
    tags = ["".join(re.findall(r"^\S+ +[\d:]* ([A-Za-z]) ", shown, re.M)) for _, shown in EXAMPLES]
    assert tags[:3] == ["BYRIC", "SYRIESIESIEASYRUEc", "bYRIPKbDPr"]
