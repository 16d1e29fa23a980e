"""Printed recovery actions: read where a user reads them, and carried out as they are printed."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.commands import Command
from tests.support.pipeline import Pipeline

from pgsluice.spool import TableState

_COMMAND = re.compile(r"pgsluice (copy .+?)(?:$|\n|; or)")
_SETTING = re.compile(r"\b((?:types|key) = \{.*?\})(?= in the subscription|,|;)")
_STATEMENT = re.compile(r"^(?:.*→ )?((?:ALTER|GRANT) .*?);?$", re.M)


@dataclass(frozen=True)
class Trouble:
    """A table beside a run whose user has something to do.

    Attributes:
        before: statements before the run; ``{}`` is the table.
        trouble: what makes the problem beside the run: statements, or a function.
        printed: where the action is printed: the table's ``error`` or ``incomplete`` in
            ``status --json``, or the statements that ``status --json`` needs of others.
        paste: what is carried out of the text, in this order.
        subscription: whose target it is.
    """

    name: str
    before: str = ""
    trouble: str | Callable[[Pipeline, Command], object] = ""
    printed: str = "error"
    paste: tuple[str | Callable[[Pipeline, str], object], ...] = ("command",)
    schema: str = "public"
    subscription: str = "lake"

    @property
    def table(self) -> str:
        return self.name.strip('"')

    @property
    def title(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def folder(self) -> str:
        """Of the target."""
        return f"{self.subscription}/{self.schema}/{self.table}".replace(" ", "~20")

    @property
    def sql_name(self) -> str:
        return f'"{self.schema}".{self.name}'


def status(one: Pipeline, pgsluice: Command) -> dict[str, Any]:
    outcome = pgsluice("status", one.path, "--json")
    assert outcome.code == 0, outcome.err
    return dict(json.loads(outcome.out))


def printed(one: Pipeline, trouble: Trouble, pgsluice: Command) -> str:
    """What is printed about a table; empty: nothing yet."""
    answer = status(one, pgsluice)
    if trouble.printed == "needed":
        statements = answer["source"]["statements_needed"]
        names = {trouble.table, trouble.schema} - {"public"}
        return "\n".join(each for each in statements if any(name in each for name in names))
    tables = [
        table
        for subscription in answer["subscriptions"]
        for table in subscription["tables"]
        if subscription["name"] == trouble.subscription
        and (table["schema"], table["table"]) == (trouble.schema, trouble.table)
    ]
    if not tables:
        return ""
    if trouble.printed == "incomplete":
        return "\n".join(tables[0]["incomplete"])
    return str(tables[0]["error"] or "")


def is_gone(one: Pipeline, trouble: Trouble) -> bool:
    """Whether the table is replicated, with nothing to do."""
    for table in one.record(trouble.subscription).tables.values():
        if (table.namespace, table.name) == (trouble.schema, trouble.table):
            return (
                table.is_active
                and table.state is TableState.READY
                and not table.error
                and not table.incomplete
            )
    return False


def paste(one: Pipeline, trouble: Trouble, text: str, pgsluice: Command) -> None:
    """Carry out the parts of a text."""
    for part in trouble.paste:
        match part:
            case "setting":
                set_in_subscription(one.path, find(_SETTING, text))
            case "command":
                outcome = pgsluice(*shlex.split(find(_COMMAND, text)))
                assert outcome.code == 0, outcome.err
            case "statements":
                statements = _STATEMENT.findall(text)
                assert statements, text
                one.database.execute(*statements)
            case str():
                raise AssertionError(part)
            case _:
                part(one, text)


def find(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    assert match, text
    return match[1]


def set_in_subscription(path: Path, setting: str) -> None:
    """Write a printed setting into the first subscription, joined to one of the same key."""
    key, _, value = setting.partition(" = ")
    text = path.read_text()
    if match := re.search(rf"^{key} = \{{ (.*) \}}$", text, re.M):
        merged = f"{key} = {{ {match[1]}, {value.strip('{} ')} }}"
        path.write_text(text.replace(match[0], merged))
    else:
        path.write_text(text.replace("[[subscription]]\n", f"[[subscription]]\n{setting}\n", 1))
