"""A target's columns and what a batch brings: whether the target can take it.

==========================================  ======  ==============================================
Column                                      Verdict Why
==========================================  ======  ==============================================
in both, of one type                        same
in both, of two types                       park    every value may have changed
only in the batch                           add     it is NULL in the rows that the target has ...
only in the batch, with values for          park    ... unless those hold something else, which
existing rows, or part of the key                   the stream does not carry
only at the target                          same    dropped, or added later: old values stay, new
                                                    rows have NULL ...
only at the target, with values for         park    ... unless it was added later, and the rows of
existing rows                                       the batch hold something else than NULL
only at the target, part of the key         park    a row without its key is nobody's
part of the key, and NULL at the target     park    it was not made for this key
part of another key than before             park    rows that the target has were told apart by
                                                    another key
read by a row filter, of another type       park    the filter was made for the other one
==========================================  ======  ==============================================

Types are compared as Arrow has them: text and binary of 32- and 64-bit offsets are one type.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa

from pgsluice.schema_rules.verdicts import AddColumns, Park, Same

COPY_AGAIN = "copy the table again: pgsluice copy CONFIG TABLE"

_ONE_KIND = (
    (pa.types.is_string, pa.types.is_large_string),
    (pa.types.is_binary, pa.types.is_large_binary),
)


def reconcile_target(
    table: str,
    target: pa.Schema,
    now: pa.Schema,
    *,
    key: Sequence[str],
    backfilled: Collection[str],
) -> Same | AddColumns | Park:
    """Whether a target can take rows of other columns than its own. Pure.

    Args:
        table: ``schema.table``, for messages.
        target: the target's columns.
        now: what the rows have.
        key: names of the key columns.
        backfilled: columns for which rows from before they were added hold a value.
    """
    known, sent = set(target.names), set(now.names)
    for name in target.names:
        if name in sent:
            have, want = target.field(name).type, now.field(name).type
            if not _is_same_type(have, want):
                return _park(
                    f"column {name!r} of {table} changed its type: the target has {have}, the "
                    f"source now {want}",
                    name,
                )
        elif name in key:
            return _park(f"key column {name!r} of {table} is missing in part of the stream", name)
        elif name in backfilled:
            return _added_with_values(table, name)
    added = tuple(field for field in now if field.name not in known)
    for field in added:
        if field.name in key or field.name in backfilled:
            return _added_with_values(table, field.name)
    return AddColumns(added) if added else Same()


def reconcile_key(table: str, before: Sequence[str], now: Sequence[str]) -> Same | Park:
    """Whether rows of one key can be applied to a target of another."""
    if tuple(before) == tuple(now):
        return Same()
    return _park(f"{table}: its key changed from ({', '.join(before)}) to ({', '.join(now)})")


def reconcile_key_columns(table: str, target: pa.Schema, key: Sequence[str]) -> Same | Park:
    """Whether columns that the target has can be its key."""
    loose = [name for name in key if name in target.names and target.field(name).nullable]
    if loose:
        return _park(
            f"key column {', '.join(map(repr, loose))} of the target of {table} allows NULL"
        )
    return Same()


def reconcile_filter_column(
    table: str, column: str, *, planned_oid: int, type_oid: int
) -> Same | Park:
    """Whether a row filter that was made for one type of a column can read the stream's.

    Args:
        table: ``schema.table``, for messages.
        column: its name.
        planned_oid: the type that the filter was made for.
        type_oid: the type of the values that came.
    """
    if planned_oid == type_oid:
        return Same()
    return _park(f"{table}: the column {column!r} of the row filter changed its type", column)


def _is_same_type(have: pa.DataType, want: pa.DataType) -> bool:
    return have.equals(want) or any(
        any(is_kind(have) for is_kind in kinds) and any(is_kind(want) for is_kind in kinds)
        for kinds in _ONE_KIND
    )


def _added_with_values(table: str, column: str) -> Park:
    return _park(
        f"column {column!r} was added to {table} with a value for existing rows, which the stream "
        "does not carry",
        column,
    )


def _park(why: str, column: str | None = None) -> Park:
    return Park(why, COPY_AGAIN, column)
