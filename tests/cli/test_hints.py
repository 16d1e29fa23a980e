"""Hints name only what exists: each command and each key in them is read by its real reader."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

import pgsluice
from pgsluice.cli.app import app
from pgsluice.cli.options import Invocation
from pgsluice.config import MonitorConfig, parse_config
from pgsluice.config.model import Config, SourceConfig, SpoolConfig, SubscriptionConfig
from pgsluice.hints import CONFIG, copy_again, name_config, values_with_config, with_config

ROOT = Path(pgsluice.__file__).parent
_COMMAND = re.compile(r"pgsluice [a-z]+(?: (?:CONFIG|TABLE|FILE|x|--?[a-z-]+))*")
_SETTING = re.compile(r'(?<![\w."-])([a-z_]+) = ("[^"]*"|true|false|\d[\d_]*)(?!\w)')
_SECTIONS = {
    "source": SourceConfig,
    "spool": SpoolConfig,
    "subscription": SubscriptionConfig,
    "monitor": MonitorConfig,
}
_PLACES = {
    name: section
    for section, model in _SECTIONS.items()
    for key, field in model.model_fields.items()
    for name in (key, field.alias)
    if name
}


def _texts() -> Iterator[str]:
    """Every text of the program that may be a hint, with x for what is put in."""
    for path in sorted(ROOT.rglob("*.py")):
        module = path.relative_to(ROOT).as_posix()
        if (
            module.startswith(("row_filter/", "demo/", "embedded/"))
            or module == "config/template.py"
        ):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) != "failpoint":
                for value in [*node.args, *(keyword.value for keyword in node.keywords)]:
                    if text := _text(value):
                        yield text


def _text(node: ast.expr) -> str:
    match node:
        case ast.Constant(str(text)):
            return text
        case ast.JoinedStr(values):
            return "".join(map(_text, values))
        case ast.FormattedValue():
            return "x"
        case ast.BinOp(left, ast.Add(), right):
            return _text(left) + _text(right)
        case ast.IfExp(_, body, orelse):
            return f"{_text(body)} {_text(orelse)}"
        case ast.BoolOp(_, values):
            return " ".join(map(_text, values))
    return ""


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Read by the first test that needs them: the collection of all tests does not wait for it."""
    return list(_texts())


def test_the_program_parses_each_command_of_a_hint(
    texts: list[str], subtests: pytest.Subtests
) -> None:
    parsers = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    commands = {
        match
        for text in texts
        for match in _COMMAND.findall(text)
        if match.split()[1] in parsers  # not prose, as in "pgsluice needs"
    }
    assert commands
    for command in sorted(commands):
        with subtests.test(command):
            _, name, *arguments = command.split()
            parser = parsers[name]
            needed = [parameter for parameter in parser.params if parameter.required]
            given = [argument for argument in arguments if not argument.startswith("-")]
            values = [*arguments, *["x"] * (len(needed) - len(given))]
            values += ["x"] * (bool(values) and values[-1].startswith("--"))
            parser.make_context(name, values, obj=Invocation())


def test_each_setting_of_a_hint_is_accepted(texts: list[str], subtests: pytest.Subtests) -> None:
    settings = {
        (match[1], match[2])
        for text in texts
        for match in _SETTING.finditer(text)
        if match[1] in _PLACES and match[2] != '"x"'
    }
    assert settings
    for key, value in sorted(settings):
        with subtests.test(f"{key} = {value}"):
            _accept(key, value)


def _accept(key: str, value: str) -> None:
    sections = {
        "source": '[source]\ndsn = "host=db"\n',
        "spool": '[spool]\npath = "/spool"\n',
        "subscription": (
            '[[subscription]]\nname = "x"\nsink = { type = "delta", path = "/{table}" }\n'
        ),
        "monitor": "[monitor]\n",
    }
    sections[_PLACES[key]] += f"{key} = {value}\n"
    parse_config("".join(sections.values()), Path("/c.toml"))


def test_a_key_with_its_section_exists(texts: list[str]) -> None:
    for text in texts:
        for section, key in re.findall(r"\b(source|spool|subscription)\.([a-z]+_[a-z_]+)", text):
            assert _PLACES.get(key) == section, text


def test_a_command_has_the_file_that_the_user_named() -> None:
    hint = f"copy it: {copy_again('public.Order Lines')}; `pgsluice drop CONFIG` removes all"
    name_config("my shop.toml")
    try:
        assert with_config(hint) == (
            "copy it: pgsluice copy 'my shop.toml' 'public.Order Lines'; "
            "`pgsluice drop 'my shop.toml'` removes all"
        )
    finally:
        name_config(CONFIG)
    assert shlex.split(copy_again("public.it's")) == ["pgsluice", "copy", "CONFIG", "public.it's"]


def test_the_configuration_has_no_more_sections() -> None:
    aliases = {field.alias or name for name, field in Config.model_fields.items()}
    assert aliases == {*_SECTIONS, "publications", "spark", "path"}


_NAMED = re.compile(r"(?<!start )(?<!restart )(?<!use )(?<!run )`pgsluice (run|capture|drop)`")
"""A program that a message speaks of: nobody pastes it."""


def test_a_command_in_a_hint_names_the_configuration(texts: list[str]) -> None:
    """Else nothing could put the file's name there, and it could not be pasted."""
    needs = {
        name
        for name, command in typer.main.get_command(app).commands.items()  # type: ignore[attr-defined]
        if any(param.metavar == "CONFIG" for param in command.params)
    } - {"init"}
    bare = [
        text
        for text in texts
        for name in re.findall(r"`pgsluice ([a-z]+)(?! CONFIG)\b(?! x)", _NAMED.sub("", text))
        if name in needs and not re.search(rf"`pgsluice {name} CONFIG", text)
    ]
    assert bare == []


def test_logs_and_json_have_the_file_that_the_user_named() -> None:
    name_config("my shop.toml")
    try:
        said = {"error": copy_again("public.t"), "tables": [copy_again("public.u")], "rows": 1}
        assert values_with_config(said) == {
            "error": "pgsluice copy 'my shop.toml' public.t",
            "tables": ["pgsluice copy 'my shop.toml' public.u"],
            "rows": 1,
        }
    finally:
        name_config(CONFIG)
