"""Each failpoint has kills: in the soak's matrix, or in a test that is named there."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.soak.kills.places import ELSEWHERE, PLACES

ROOT = Path(__file__).parents[2]


def failpoints_of(source: Path) -> set[str]:
    """The names of a module's failpoints; what follows a blank is a table's name."""
    text = source.read_text()
    if "failpoint(" not in text:
        return set()
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "failpoint":
            [name] = node.args
            first = name.values[0] if isinstance(name, ast.JoinedStr) else name
            assert isinstance(first, ast.Constant), ast.unparse(node)
            names.add(str(first.value).partition(" ")[0])
    return names


def test_each_failpoint_has_kills() -> None:
    found = set[str]().union(*map(failpoints_of, (ROOT / "src").rglob("*.py")))
    assert found == PLACES.keys() | ELSEWHERE.keys()
    assert not PLACES.keys() & ELSEWHERE.keys()


def test_the_tests_that_are_named_arm_them() -> None:
    missing = [
        name for name, test in ELSEWHERE.items() if f'"{name}' not in (ROOT / test).read_text()
    ]
    assert not missing
