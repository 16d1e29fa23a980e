"""Messages, docstrings and docs avoid phrases that readers did not understand."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PHRASES = {
    r"what (became|becomes) of|become of": "the outcome, the result",
    r"what (takes|brings|makes) \w+ to\b": "name the thing: the changes, the edit",
    r"\bis said (in|by|of)\b|\bis said\b": "name who says it: logs, reports, has",
    r"\bruns? of changes\b": "changes, grouped by relation",
    r"\bleaves? (it|them|that|this) out\b|\bleft out\b": "ignore, omit, exclude, remove",
    r"\bgo(es)? on\b|\bwent on\b|\bgone on\b": "continue, resume",
    r"\b(begins?|began|written|made|opened|attached) anew\b": "restart, again; rewrite, recreate",
    r"\bfor people\b": "as text for the user; human-readable",
    r"\b(is|are) (tried|started|copied) again until\b|\bby itself when\b": "pgsluice retries it",
    r"\bstands? still\b": "is no longer updated",
    r"\b(a|the|last|next|two) looks? (at|has|have|finds?|found)\b|\blooks? at the catalog\b": (
        "catalog refresh"
    ),
    r"\bput aside\b|\bin its way\b|\bstands? back\b": "set aside, blocked, runs at low priority",
    r"\b(cannot|could not) be asked\b": "cannot be queried",
    r"\bone of their own\b": "its own, a separate one",
    r"\bwithout a word\b|\bin vain\b|\bas ever\b": "silently, useless, as before",
}
"""Phrases to avoid -> what to write instead."""

# Programs write the tables of the others.
_PAGES = sorted(
    {*ROOT.glob("docs/*.md")} - {ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "reliability.md"}
)
_PAGES += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
_AVOIDED = {re.compile(pattern, re.IGNORECASE): words for pattern, words in PHRASES.items()}
_ANY = re.compile("|".join(PHRASES), re.IGNORECASE)


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.name)
def test_pages(page: Path) -> None:
    assert not list(_found(page.read_text(encoding="utf-8"), page.name))


def test_messages_and_docstrings() -> None:
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                found += _found(node.value, f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found


def test_each_attribute_is_a_noun() -> None:
    """``rows: of inserts`` does not say whether they are rows or a number of them."""
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.match(r"^ +[a-z_, ]+: of ", line)
    ]
    assert not found


def _found(text: str, place: str) -> Iterator[str]:
    one_line = " ".join(text.split())
    if not _ANY.search(one_line):
        return
    for pattern, words in _AVOIDED.items():
        for match in pattern.finditer(one_line):
            around = one_line[max(0, match.start() - 40) : match.end() + 40]
            yield f"{place}: …{around}… Better: {words}."
