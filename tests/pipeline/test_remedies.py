"""What is printed to a user works as printed: pasted beside the live run, and the problem is gone.

Each row of :data:`REMEDIES` is a table with a problem. All share one run; its texts are read where
its user reads them, from ``status``.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.databases import MakeDatabase
from tests.support.pipeline import MakePipeline, Pipeline

from pgsluice.cli.app import run_command
from pgsluice.spool import TableState

_COMMAND = re.compile(r"pgsluice (copy .+?)(?:$|\n|; or)")
_SETTING = re.compile(r"\b((?:types|key) = \{.*?\})(?= in the subscription|,|;)")


@dataclass(frozen=True)
class Remedy:
    """A problem of a table, and what is pasted.

    Attributes:
        before: statements before the run; ``{}`` is the table.
        trouble: statements beside the run that make the problem.
        paste: which parts of the printed text are pasted, in this order.
    """

    name: str
    before: str
    trouble: str
    paste: tuple[str, ...]


REMEDIES = (
    Remedy(
        "unfit_date",
        "CREATE TABLE {} (id int PRIMARY KEY, v date)",
        "INSERT INTO {} VALUES (1, 'infinity')",
        ("setting", "command"),
    ),
    Remedy(
        "unfit_array",
        "CREATE TABLE {} (id int PRIMARY KEY, v int[])",
        "INSERT INTO {} VALUES (1, '{{1,2},{3,4}}')",
        ("setting", "command"),
    ),
    Remedy(
        '"Odd Name"',
        'CREATE TABLE {} (id int PRIMARY KEY, "a.b" timestamp)',
        "INSERT INTO {} VALUES (1, '-infinity')",
        ("setting", "command"),
    ),
    Remedy(
        "identified",
        "CREATE TABLE {} (id int PRIMARY KEY, u int NOT NULL UNIQUE); INSERT INTO {} VALUES (1, 1)",
        "ALTER TABLE {} REPLICA IDENTITY USING INDEX identified_u_key; UPDATE {} SET id = 2",
        ("setting", "command"),
    ),
)


def _title(remedy: Remedy) -> str:
    return f"public.{remedy.name.strip(chr(34))}"


def _error(one: Pipeline, title: str) -> str | None:
    """The error of a parked table as status prints it; None: it is not parked."""
    table = one.table(title.partition(".")[2])
    return table.error if table.state is TableState.PARKED else None


def _printed(one: Pipeline, title: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert run_command(["status", str(one.path), "--json"]) == 0
    (subscription,) = json.loads(capsys.readouterr().out)["subscriptions"]
    (table,) = (
        each for each in subscription["tables"] if f"{each['schema']}.{each['table']}" == title
    )
    return str(table["error"])


def _set(path: Path, setting: str) -> None:
    """Write a printed setting into the subscription, joined to one of the same key."""
    key, _, value = setting.partition(" = ")
    text = path.read_text()
    if match := re.search(rf"^{key} = \{{ (.*) \}}$", text, re.M):
        merged = f"{key} = {{ {match[1]}, {value.strip('{} ')} }}"
        path.write_text(text.replace(match[0], merged))
    else:
        path.write_text(text.replace("[[subscription]]\n", f"[[subscription]]\n{setting}\n"))


def test_a_printed_remedy_is_pasted_beside_the_run_and_the_problem_is_gone(
    database: MakeDatabase,
    pipeline: MakePipeline,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop = database()
    shop.execute(*(remedy.before.replace("{}", remedy.name) for remedy in REMEDIES))
    one = pipeline(shop)
    with one.live():
        one.wait_until(
            lambda: (
                (one.spool / "subscriptions" / "lake" / "record.json").exists()
                and len(one.record().tables) == len(REMEDIES)
                and all(table.is_active for table in one.record().tables.values())
            )
        )
        shop.execute(*(remedy.trouble.replace("{}", remedy.name) for remedy in REMEDIES))
        for remedy in REMEDIES:
            title = _title(remedy)
            one.wait_until(lambda title=title: bool(_error(one, title)), why=f"{title} is parked")
            text = _printed(one, title, capsys)
            assert "CONFIG" not in text
            for part in remedy.paste:
                _PASTE[part](one, text)
            one.wait_until(
                lambda title=title: one.table(title.partition(".")[2]).is_active,
                why=f"{title} is replicated again",
            )
    assert sum("in force from now on" in message for message in caplog.messages) == len(REMEDIES)
    assert all(
        one.delta(_title(remedy).partition(".")[2].replace(" ", "~20")).to_pyarrow_table().num_rows
        for remedy in REMEDIES
    )


def _paste_setting(one: Pipeline, text: str) -> None:
    match = _SETTING.search(text)
    assert match, text
    _set(one.path, match[1])


def _paste_command(one: Pipeline, text: str) -> None:
    match = _COMMAND.search(text)
    assert match, text
    assert run_command(shlex.split(match[1])) == 0


_PASTE: dict[str, Callable[[Pipeline, str], None]] = {
    "setting": _paste_setting,
    "command": _paste_command,
}
