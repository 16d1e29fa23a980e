"""docs/architecture.md and docs/contracts.md name rooms, modules and tests that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ROOT / "src" / "pgsluice"
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
CONTRACTS = (ROOT / "docs" / "contracts.md").read_text()
CITATION = re.compile(r"\(contracts: ([a-z, \n]+)\)")


def layers() -> list[tuple[int, str]]:
    """Layer and room, as import-linter checks them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = (
        contract
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract["name"] == "Rooms import downward only"
    )
    return [
        (number, room)
        for number, layer in enumerate(contract["layers"], start=1)
        for room in layer.split(" | ")
    ]


def section(text: str, heading: str) -> str:
    """The text below a heading, up to the next heading of the same level or above."""
    level = heading.split(" ")[0]
    _, _, rest = text.partition(f"\n{heading}\n")
    assert rest, f"there is no {heading}"
    return re.split(rf"^#{{1,{len(level)}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def test_the_rooms_are_those_of_the_import_contract() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", section(ARCHITECTURE, "## The rooms"), re.M)
    assert sorted((int(number), room) for number, room in rows) == sorted(layers())


@pytest.mark.parametrize(
    "room", ["capture", "publication", "row_filter", "spark", "spool", "subscription"]
)
def test_a_rooms_modules_and_folders_are_all_named(room: str) -> None:
    rows = section(ARCHITECTURE, f"### Inside `{room}`")
    named = set(re.findall(r"`(\w+(?:\.py|/))`", rows))
    modules = {path.name for path in (ROOMS / room).glob("*.py")}
    folders = {f"{path.parent.name}/" for path in (ROOMS / room).glob("*/__init__.py")}
    assert named == {name for name in modules if not name.startswith("__")} | folders


def test_every_other_room_has_a_section_or_a_row() -> None:
    smaller = section(ARCHITECTURE, "### Inside the smaller rooms")
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", smaller, re.MULTILINE))
    with_section = set(re.findall(r"^### Inside `(\w+)`$", ARCHITECTURE, re.MULTILINE))
    folders = {path.parent.name for path in ROOMS.glob("*/__init__.py")}
    assert rows.keys() | with_section == folders
    for room, row in rows.items():
        for name in re.findall(r"`(\w+(?:\.py|/))`", row):
            assert (ROOMS / room / name).exists(), f"{room}: {name}"


def test_every_module_and_test_that_is_named_exists() -> None:
    paths = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*/[a-z_]+\.py|[a-z]+\.py)`", CONTRACTS))
    paths |= set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+\.py)`", ARCHITECTURE))
    bases = (ROOMS, ROOMS / "subscription", ROOT / "tests", ROOT)
    missing = [path for path in paths if not any((base / path).exists() for base in bases)]
    assert missing == []


def test_every_rule_names_its_module_and_its_test() -> None:
    rules = re.findall(r"^- .*?(?=^- |^## |\Z)", CONTRACTS, re.DOTALL | re.MULTILINE)
    assert len(rules) > 50
    for rule in rules:
        modules, _, tests = rule.partition("→")[2].partition("·")
        assert ".py`" in modules, rule
        assert "test_" in tests, rule


def test_citations_in_the_code_are_headings_of_the_page() -> None:
    headings = {heading.lower() for heading in re.findall(r"^## (.+)$", CONTRACTS, re.MULTILINE)}
    sources = [*ROOMS.rglob("*.py"), *(ROOT / "docs").rglob("*.md")]
    cited = {
        " ".join(heading.split()): path
        for path in sources
        for match in CITATION.finditer(path.read_text())
        for heading in match[1].split(",")
    }
    assert cited.keys() <= headings, cited
    stale = [path for path in sources if "contracts, section" in path.read_text()]
    assert stale == []
