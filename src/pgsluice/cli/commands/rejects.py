"""``pgsluice rejects``: list the values that their column at the target cannot hold."""

from __future__ import annotations

from itertools import chain
from typing import Annotated, Any

import typer

from pgsluice.cli.commands.verify import chosen_tables
from pgsluice.cli.options import (
    ConfigArgument,
    DebugOption,
    JsonOption,
    SubscriptionOption,
    TablesArgument,
)
from pgsluice.cli.output import say, say_json, say_line
from pgsluice.config import load_config
from pgsluice.lsn import Lsn
from pgsluice.shown import shown

_ORDER = ("schema_name", "table_name", "position", "ordinal", "column_name", "key")
_TEXT_CHARACTERS = 200
"""The longest value that a line shows whole; JSON has all of each."""


def rejects(
    config: ConfigArgument,
    tables: TablesArgument = None,
    subscription: SubscriptionOption = None,
    with_resolved: Annotated[
        bool, typer.Option("--all", help="also those that are resolved")
    ] = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """List the values that a target column cannot hold."""
    loaded = load_config(config)
    found: list[dict[str, Any]] = []
    from pgsluice.subscription.base.options import stored_rejects

    for chosen, own in chosen_tables(loaded, subscription, tables or []):
        rows = stored_rejects(loaded, chosen).sort_by([(name, "ascending") for name in _ORDER])
        for row in chain.from_iterable(batch.to_pylist() for batch in rows.to_batches()):
            title = shown(f"{row['schema_name']}.{row['table_name']}")
            is_wanted = with_resolved or row["resolved_position"] is None
            if is_wanted and (not own or title in own):
                found.append({"subscription": chosen.name, **row})
    if as_json:
        say_json([_to_json(row) for row in found])
        return
    for row in found:
        say_line(_line(row))
    if not found:
        say("no rejects")


def _line(row: dict[str, Any]) -> str:
    text = row["text"]
    if len(text) > _TEXT_CHARACTERS:
        text = f"{text[:_TEXT_CHARACTERS]}… ({len(text)} characters)"
    resolved = row["resolved_position"]
    ended = "" if resolved is None else f", resolved at {Lsn(resolved)}"
    title = f"{row['schema_name']}.{row['table_name']}"
    where = f"{title}.{row['column_name']} {row['key']} at {Lsn(row['position'])}{ended}"
    return f"{where}: {text}"


def _to_json(row: dict[str, Any]) -> dict[str, Any]:
    resolved, resolved_at = row["resolved_position"], row["resolved_at"]
    return {
        "subscription": row["subscription"],
        "schema": row["schema_name"],
        "table": row["table_name"],
        "column": row["column_name"],
        "key": row["key"],
        "position": str(Lsn(row["position"])),
        "text": row["text"],
        "time": row["rejected_at"].isoformat(),
        "resolved": None if resolved is None else str(Lsn(resolved)),
        "resolved_at": None if resolved_at is None else resolved_at.isoformat(),
    }
