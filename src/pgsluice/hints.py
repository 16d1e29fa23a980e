"""Writes the ``pgsluice …`` commands that hints contain.

The code that raises an error does not know the configuration's path, so hints contain the
placeholder CONFIG. The code that prints or logs a hint replaces it: :func:`with_config`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import Any

from pgsluice.shown import shown, shown_json

CONFIG = "CONFIG"
COPY_ALL_AGAIN = (
    f"run `pgsluice drop {CONFIG}`, move the target tables away, then start pgsluice again, which "
    "copies every table"
)
"""The hint for lost changes: start a new spool, which needs new target tables."""
NOTHING_TO_DO = "nothing to do: "
"""Hints that begin with this name what pgsluice does next by itself."""
COPIES_AGAIN = f"{NOTHING_TO_DO}pgsluice copies the table again"
_COMMAND = re.compile(rf"\b(pgsluice [a-z]+) {CONFIG}\b")


def copy_again(title: str) -> str:
    """The command that copies a table again; the title is ``schema.table``."""
    return f"pgsluice copy {CONFIG} {shlex.quote(shown(title))}"


def copied_again(title: str) -> str:
    """The hint to copy a table again; the title is ``schema.table``."""
    return f"copy the table again: {copy_again(title)}"


def keep_as_text(title: str, columns: Iterable[str]) -> str:
    """The hint for columns with values that their target types cannot hold: copy them as text."""
    types = ", ".join(f'{shown_json(f"{title}.{column}")} = "string"' for column in columns)
    return (
        f"set types = {{ {types} }} in the subscription, which keeps PostgreSQL's text of the "
        f"values, then copy the table: {copy_again(title)}"
    )


def for_query(text: str, slot: str, spool: object) -> str:
    """Rewrite a hint for the user of a Spark query, who has no configuration.

    Args:
        slot, spool: the query's slot, and the folder of its spool.
    """
    drop = (
        f"drop the slot {slot} with `pgsluice drop --stream {shown(shlex.quote(str(spool)))} "
        "--dsn DSN`"
    )
    return (
        text.replace(COPY_ALL_AGAIN, f"{drop}, set another checkpointLocation, and start again")
        .replace(f"`pgsluice drop {CONFIG}`", drop)
        .replace(f"`pgsluice check {CONFIG}`", f"`pgsluice init` and `pgsluice check {CONFIG}`")
        .replace("[source] publications", "the option publications")
        .replace("publications of [source]", "publications of the option publications")
    )


class _Named:
    """The configuration's path, as the user of this process wrote it."""

    config = CONFIG


def name_config(config: str) -> None:
    """Store the configuration's path, as the user of this process wrote it; called once."""
    _Named.config = config


def with_config(text: str) -> str:
    """Replace the placeholder CONFIG by the configuration's path; see :func:`name_config`."""
    if CONFIG not in text:  # as in nearly all of a status with thousands of tables
        return text
    name = shlex.quote(_Named.config)
    return _COMMAND.sub(lambda match: f"{match[1]} {name}", text)


def values_with_config(value: Any) -> Any:
    """Replace the placeholder CONFIG in all texts of a JSON value."""
    match value:
        case str():
            return with_config(value)
        case dict():
            return {key: values_with_config(each) for key, each in value.items()}
        case list() | tuple():
            return [values_with_config(each) for each in value]
    return value
