"""How names and texts of others are shown: one function, used wherever text leaves the program."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
from pathlib import Path

import pytest
from rich.console import Console
from tests.support.odd_names import FORGED, ODD_NAMES, assert_shown

import pgsluice
from pgsluice.errors import ConfigError, PgsluiceError, TableError
from pgsluice.events import (
    BatchFinished,
    CapturePhase,
    CaptureState,
    CopiesProgress,
    CopyAmount,
    CopyProgress,
    RunStep,
    TableApplied,
    TableStateChanged,
)
from pgsluice.log_lines import log_to_stderr
from pgsluice.lsn import Lsn
from pgsluice.monitor.live import LiveView
from pgsluice.shown import shown, shown_json, shown_lines
from pgsluice.sql import quote_identifier, tokenize


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_name_is_one_line_that_can_be_seen(name: str) -> None:
    assert shown(name).isprintable()
    assert shown(shown(name)) == shown(name)


@pytest.mark.parametrize("name", ["plain", "grün", "表", "[/b]", "a\\b"])
def test_what_can_be_seen_stays(name: str) -> None:
    assert shown(name) == name


def test_a_message_keeps_its_own_lines_and_indents_them() -> None:
    assert shown_lines("a\nb\x1b\nc") == "a\n  b\\x1b\n  c"
    assert shown_lines("a\n  → b\n    c") == "a\n  → b\n    c", "they are indented already"


def test_json_says_exactly_what_the_name_is() -> None:
    names = [*ODD_NAMES, "\ud800", "\U000e0001", "\x7f\u2028"]
    text = shown_json({"names": names}, indent=2)
    assert_shown(text)
    assert json.loads(text) == {"names": names}


def test_an_error_is_one_line_whatever_names_it_has() -> None:
    for name in ODD_NAMES:
        assert_shown(str(PgsluiceError(f"table {name} is odd", hint="look at it")))
    several = ConfigError("two mistakes:", details=["one", f"two\n{FORGED}"], hint="first\nsecond")
    assert str(several) == (f"two mistakes:\n  one\n  two\\n{FORGED}\n  → first\n    second")


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_quoted_name_can_be_printed_and_pasted(name: str) -> None:
    quoted = quote_identifier(name)
    assert quoted.isprintable()
    (token, _) = tokenize(quoted)
    assert token.value == name


def test_logs_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = list(root.handlers)
    try:
        log_to_stderr(str)
        logging.getLogger("pgsluice.test").warning("blocked by %s", ODD_NAMES[2])
    finally:
        root.handlers[:] = before
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("Z warning test         blocked by line")
    assert second == f"  {FORGED}"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_live_view(*, is_terminal: bool) -> None:
    at, file = Lsn(1), io.StringIO()
    console = Console(
        file=file, force_terminal=is_terminal, width=200, height=60, color_system=None
    )
    with LiveView(console) as view:
        for name in ODD_NAMES:
            view(RunStep(f"waiting for {name}"))
            view(CaptureState(CapturePhase.RECONNECTING, message=f"publication {name}"))
            view(CopyProgress("lake", name, name, CopyAmount(1, 10)))
            view(CopiesProgress(name, 0, 1, CopyAmount(1, 10), (name,)))
            view(TableApplied("lake", name, name, at, 1, 0.1, 1))
            view(TableStateChanged("lake", name, name, "p", str(TableError(f"{name}: bad"))))
            view(TableStateChanged("lake", name, name, "r", None, (f"not all of {shown(name)}",)))
            view(BatchFinished(name, at, 1, 0.1, 1))
            plain = io.StringIO()
            Console(file=plain, width=200).print(view.render())
            assert_shown(plain.getvalue())
    if not is_terminal:
        assert_shown(file.getvalue())


ROOT = Path(pgsluice.__file__).parent
_PRINTERS = re.compile(r"\becho\(|(?<![.\w])print\(|\bConsole\(|sys\.std(out|err)\.write\(")
_MAY_PRINT = {
    "cli/output.py": "the one place",
    "cli/app.py": "the version, the help, and errors through shown_lines",
    "cli/decode/lines.py": "escapes the names and values of a message one by one",
    "cli/decode/objects.py": "shown_json",
    "monitor/display.py": "the one console",
}


def test_nothing_else_prints() -> None:
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        code = ast.unparse(_without_strings(ast.parse(path.read_text())))
        assert name in _MAY_PRINT or not _PRINTERS.search(code), name


def _without_strings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return tree
