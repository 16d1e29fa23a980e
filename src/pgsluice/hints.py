"""Commands of pgsluice in hints.

A room does not know how its user calls the configuration, so hints write CONFIG for it. What
prints or logs them puts the file's name there: :func:`with_config`, at each way out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import Any

from pgsluice.shown import shown, shown_json

CONFIG = "CONFIG"
COPY_ALL_AGAIN = (
    f"`pgsluice drop {CONFIG}`, move the targets' tables away, then start again: pgsluice copies "
    "every table"
)
"""What is left when changes are gone: a new spool does not write the tables of an old one."""
_COMMAND = re.compile(rf"\b(pgsluice [a-z]+) {CONFIG}\b")


def copy_again(title: str) -> str:
    """The command that copies a table again; the title is ``schema.table``."""
    return f"pgsluice copy {CONFIG} {shlex.quote(shown(title))}"


def keep_as_text(title: str, columns: Iterable[str]) -> str:
    """How a table is copied whose columns have values that their types cannot hold."""
    types = ", ".join(f'{shown_json(f"{title}.{column}")} = "string"' for column in columns)
    return (
        f"keep PostgreSQL's text of them, types = {{ {types} }} in the subscription, then copy the "
        f"table: {copy_again(title)}"
    )


def for_query(text: str, slot: str, spool: object) -> str:
    """The text for the user of a Spark query, who has no configuration.

    Args:
        slot, spool: the query's slot, and the folder of its spool.
    """
    drop = f"drop the slot {slot} on the server and delete the folder {shown(str(spool))}"
    return (
        text.replace(COPY_ALL_AGAIN, f"{drop}, set another checkpointLocation, and start again")
        .replace(f"`pgsluice drop {CONFIG}`", drop)
        .replace(f"`pgsluice check {CONFIG}`", f"`pgsluice init` and `pgsluice check {CONFIG}`")
        .replace("[source] publications", "the option publication_names")
        .replace("publications of [source]", "publications of the option publication_names")
    )


class _Named:
    """How the user of this process calls the configuration."""

    config = CONFIG


def name_config(config: str) -> None:
    """Say once how the user of this process calls the configuration."""
    _Named.config = config


def with_config(text: str, config: str | None = None) -> str:
    """The text with the configuration's file in each of its commands.

    Args:
        config: its name; None: as :func:`name_config` was told.
    """
    name = shlex.quote(config if config is not None else _Named.config)
    return _COMMAND.sub(lambda match: f"{match[1]} {name}", text)


def values_with_config(value: Any) -> Any:
    """A value for JSON, with the configuration's file in each command of its texts."""
    match value:
        case str():
            return with_config(value)
        case dict():
            return {key: values_with_config(each) for key, each in value.items()}
        case list() | tuple():
            return [values_with_config(each) for each in value]
    return value
