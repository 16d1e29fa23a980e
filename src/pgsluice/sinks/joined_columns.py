"""The columns of a target that keeps rows from before: those that it has, and new ones."""

from __future__ import annotations

from typing import TypeVar

import pyarrow as pa

from pgsluice.errors import ParkReason, TableError
from pgsluice.hints import copy_again
from pgsluice.schema_rules.types import holds, holds_rewritten

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


def joined_columns(existing: pa.Schema, now: pa.Schema, title: str, location: str) -> pa.Schema:
    """The existing columns of a target, in types that also hold the new values, and the other new
    columns (``now``, in the target's types), nullable.

    Raises:
        TableError: a column has a type that neither holds the new values nor has all of its own in
            the new one, or two columns differ by case.
    """
    fields = {field.name: field for field in existing}
    names = {name.casefold(): name for name in fields}
    for field in now:
        other = names.setdefault(field.name.casefold(), field.name)
        if other != field.name:
            raise TableError(
                f"column {field.name!r} of table {title} differs from column {other!r} of the "
                f"target at {location} only by upper and lower case",
                hint=another_target(title),
                table=title,
                column=field.name,
                reason=ParkReason.COLUMNS,
            )
        have = fields.setdefault(field.name, field.with_nullable(True))
        if holds(have.type, field.type):
            continue
        if not holds_rewritten(field.type, have.type):
            raise TableError(
                f"column {field.name!r} of table {title} now has the type {field.type}, but the "
                f"type {have.type} in the target at {location}",
                hint=another_target(title),
                table=title,
                column=field.name,
                reason=ParkReason.COLUMNS,
            )
        fields[field.name] = have.with_type(field.type)
    return pa.schema(list(fields.values()))


def another_target(title: str) -> str:
    """A hint for a table whose target cannot continue: move the target away, and copy to a new
    one."""
    return (
        "move the target's folder away, which keeps the rows, then copy the table to a new target: "
        f"{copy_again(title)}"
    )


def with_all_columns(rows: Rows, schema: pa.Schema) -> Rows:
    """The rows with all columns of a table, in its types; columns that they lack are NULL."""
    if rows.schema.equals(schema):
        return rows
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.schema.names
        else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return type(rows).from_arrays(columns, schema=schema)
