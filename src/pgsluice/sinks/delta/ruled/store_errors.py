"""Distinguishes errors of a table's store from errors of the table itself.

deltalake raises OSError or DeltaError for both. The errors of stores are those of the Rust crate
``object_store``: its texts begin with "Generic" and name the store, such as LocalFileSystem or S3.
"""

from __future__ import annotations

import re

from pgsluice.disk import disk_trouble
from pgsluice.errors import TargetUnreachable
from pgsluice.sinks.opened_table import target_trouble

_STORE = re.compile(
    r"Generic (?!DeltaTable\b)\w+ error|lacked (the necessary privileges|valid authentication)"
)
_MISSING = "not found"
_NUMBER = re.compile(r"\(os error (\d+)\)")
_DECORATION = re.compile(r"\x1b\[[0-9;]*m|[\s↳]+")


def store_error(error: Exception, table: str, place: str) -> TargetUnreachable | None:
    """The error for a temporary failure of the store; None if it is an error of the table.

    Args:
        error: an error of deltalake. A missing file is an error of the table.
        table, place: its name and its path, for the message.
    """
    text = str(error)
    number = _NUMBER.search(text)
    if number is not None and (trouble := disk_trouble(OSError(int(number[1]), ""), place)):
        return target_trouble(trouble, table)
    is_of_store = isinstance(error, OSError) or _STORE.search(text) is not None
    if not is_of_store or _MISSING in text:
        return None
    lines = [_DECORATION.sub(" ", line).strip() for line in text.splitlines()]
    # Of a chain of causes the first says what was done, and the last why it failed.
    reasons = dict.fromkeys(line for line in (lines[0], lines[-1]) if line)
    return TargetUnreachable(
        f"the store of the target of table {table} fails: {': '.join(reasons)}",
        hint="pgsluice keeps retrying",
        table=table,
    )
