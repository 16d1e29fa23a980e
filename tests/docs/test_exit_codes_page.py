"""docs/exit-codes.md has every exit code of every command."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import typer
from scripts.exit_codes_page import PAGE, page

import pgsluice.cli
from pgsluice.cli.app import app
from pgsluice.cli.exit_codes import COMMANDS, GENERAL
from pgsluice.errors import ExitCode

CLI = Path(pgsluice.cli.__file__).parent


def test_the_page_is_that_of_the_table() -> None:
    """``python scripts/exit_codes_page.py`` writes it again."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_the_table_has_all_commands_and_codes() -> None:
    command = typer.main.get_command(app)
    assert list(COMMANDS) == list(command.commands)  # type: ignore[attr-defined]
    assert list(GENERAL) == list(ExitCode)


def test_no_command_ends_with_a_code_of_its_own() -> None:
    for path in CLI.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and re.search(r"Exit\b", ast.unparse(node.func)):
                numbers = [each for each in node.args if isinstance(each, ast.Constant)]
                assert not numbers, f"{path}:{node.lineno}"
