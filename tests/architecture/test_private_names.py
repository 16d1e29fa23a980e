"""Tests use pgsluice as its users do: by its public names, and with waits that they pass.

A private name that a test reaches cannot be changed without the test; and a constant of time that
a test replaces may be read elsewhere, too, or not be read at all any more: the test would not
notice. What waits takes its waits as parameters.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
OF_OTHERS = {
    # A name, or an expression: whose it is.
    "_exit": "os",
    "_forkserver": "multiprocessing",
    "_forkserver_address": "multiprocessing",
    "_gateway": "PySpark",
    "_jsparkSession": "PySpark",
    "_jvm": "PySpark",
    "_replace": "named tuples",
    "multiprocessing.current_process()._config": "multiprocessing",
    "_active_spark_context": "PySpark",
    "_asdict": "named tuples",
}
PRIVATE = re.compile(r"_[A-Za-z]\w*")
MAY_BE_PRIVATE = re.compile(r"\b_[A-Za-z]|_M?S\b")
OF_TIME = re.compile(r"\w+_M?S")
REPLACING = {"setattr", "getattr", "delattr", "hasattr", "object"}
WITH_A_PATH = re.compile(r"pgsluice(\.\w+)+")


def defined_in(tree: ast.AST) -> set[str]:
    """The private names that a test's module gives to something: these are its own."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                names.add(name)
    return names


def is_private(name: str) -> bool:
    return bool(PRIVATE.fullmatch(name)) and name not in OF_OTHERS


def last_name(text: ast.expr) -> str:
    """The last name of a path in a string, which may be an f-string."""
    match text:
        case ast.JoinedStr(values=[*_, ast.Constant(value=str(value))]):
            return value.rpartition(".")[2]
        case ast.Constant(value=str(value)):
            return value.rpartition(".")[2]
    return ""


def program_in(text: str) -> ast.AST | None:
    """The program that a test starts from a string, if it uses pgsluice."""
    if "\n" in text and "pgsluice" in text:
        try:
            return ast.parse(text)
        except SyntaxError:
            pass
    return None


def reached(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The private names of others, and the constants of time that are replaced: line, name."""
    own = defined_in(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name, lineno=line) if is_private(name) and name not in own:
                if ast.unparse(node) not in OF_OTHERS:
                    yield line, name
            case ast.Attribute(value=ast.Name(id=owner), attr=name, ctx=ast.Store(), lineno=line):
                if owner != "self" and OF_TIME.fullmatch(name):
                    yield line, name
            case ast.ImportFrom(module=str(module), names=names, lineno=line):
                if module.startswith("pgsluice"):
                    yield from ((line, each.name) for each in names if is_private(each.name))
            case ast.Call(func=ast.Attribute(attr=call) | ast.Name(id=call), lineno=line):
                if call in REPLACING:
                    for name in map(last_name, node.args[:2]):
                        if is_private(name) or (call == "setattr" and OF_TIME.fullmatch(name)):
                            yield line, name
            case ast.Constant(value=str(value), lineno=line):
                if program := program_in(value):
                    yield from ((line + each - 1, name) for each, name in reached(program))
                elif WITH_A_PATH.fullmatch(value) and is_private(last_name(node)):
                    yield line, last_name(node)


def test_tests_reach_no_private_name_and_replace_no_constant_of_time() -> None:
    found = sorted(
        f"{path.relative_to(TESTS.parent)}:{line} {name}"
        for path in TESTS.rglob("*.py")
        if path != Path(__file__) and MAY_BE_PRIVATE.search(text := path.read_text())
        for line, name in set(reached(ast.parse(text)))
    )
    assert not found, (
        "a test uses the public way; what waits takes its waits as parameters:\n" + "\n".join(found)
    )


@pytest.mark.parametrize(
    "test",
    [
        "thing._name",
        "self._name",
        "from pgsluice.spool import _name",
        "monkeypatch.setattr('pgsluice.spool._name', 1)",
        "monkeypatch.setattr(f'{module}._name', 1)",
        "monkeypatch.setattr(spool, '_name', 1)",
        "getattr(spool, '_name')",
        "setattr(spool, 'POLL_S', 0)",
        "monkeypatch.setattr('pgsluice.spool.POLL_MS', 0)",
        "monkeypatch.setattr(f'{module}.POLL_S', 0)",
        "spool.POLL_S = 0",
        "@pytest.mark.parametrize('limit', ['pgsluice.spool._name'])\ndef test(limit): ...",
        "run('''\nimport pgsluice\nthing._name\n''')",
    ],
)
def test_each_way_to_reach_a_private_name_is_found(test: str) -> None:
    assert len(set(reached(ast.parse(test)))) == 1


@pytest.mark.parametrize(
    "test",
    [
        "os._exit(0)",
        "class Own:\n    def __init__(self):\n        self._name = 1\nOwn()._name",
        "monkeypatch.setattr('pgsluice.snapshots.plan.PORTION_BYTES', 1)",
        "thing.__dict__",
        "print('pgsluice._name is private')",
    ],
)
def test_a_tests_own_names_and_those_of_others_are_free(test: str) -> None:
    assert not list(reached(ast.parse(test)))
