"""Compares a target's columns with those of a batch: can the target take the changes?

==========================================  ======= ==============================================
Column                                      Verdict Why
==========================================  ======= ==============================================
in both, of one type                        same
in both, and every value of the batch's     same    it was sent before the type became wider
type is one of the target's
in both, and every value of the target's    widen   the last refresh found this type, and that no
type is one of the batch's                          row was rewritten
in both, of two types, and dropped since    ignore  its type may be unknown: the rows have NULL, as
                                                    rows after the drop have
in both, of two types otherwise             refresh every value may have changed
only in the batch, known to the last        add     with the value of older rows that the refresh
refresh                                             found
only in the batch otherwise                 refresh older rows may have a value that no change has
only at the target                          same    dropped: old values stay, new rows have NULL;
                                                    or not added yet: older rows have the value
                                                    that the refresh found
only at the target, part of the key         park    a row without its key cannot be applied
part of the key, and NULL at the target     copy    it was not created for this key
part of another key than the target's       refresh the target's rows were identified by another
                                                    key
read by a row filter, of another type       park    the filter was prepared for the other type
the table has another name than the target  refresh each target has the rows of the table with its
                                                    name
==========================================  ======= ==============================================

Types are compared as Arrow types: text and binary with 32- and 64-bit offsets are the same type.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pgsluice.errors import ParkReason, Remedy, TableError
from pgsluice.hints import copied_again
from pgsluice.schema_rules.known import KnownColumns
from pgsluice.schema_rules.types import holds


def reconcile_column(
    table: str,
    target: pa.Field | None,
    now: pa.Field,
    source_type: tuple[int, int],
    known: KnownColumns | None,
    *,
    is_dropped: bool = False,
) -> pa.Field | None:
    """The target's column for a column of a batch; None: the batch's column is ignored.

    Batch and target use the same name for the same attribute number
    (:mod:`pgsluice.subscription.batches.tasks.column_identity`).

    Args:
        table: ``schema.table``, for messages.
        target: the target's column of this name; None: it has none.
        now: the batch's column, in the target's types.
        source_type: the type OID and typmod in the batch.
        known: the result of the table's last catalog refresh; None: the table was never copied.
        is_dropped: the metadata beside the batch proves that the column was dropped.

    Raises:
        TableError: only a catalog refresh can tell what the column means for the target's rows.
    """
    name = now.name
    if target is None:
        if known is None or name in known.types or name in known.added:
            return now.with_nullable(True)
        why = f"column {name!r} of table {table} arrived before a catalog refresh found it"
        raise TableError(why, remedy=Remedy.LOOK, table=table)
    if holds(target.type, now.type):
        return target
    # The metadata beside a batch may be older than the catalog refresh, or newer.
    if is_dropped or (known is not None and known.is_gone(name)):
        return None
    if known is not None and known.types.get(name) == source_type and holds(now.type, target.type):
        return now.with_nullable(target.nullable)
    why = _another_type(table, name, target.type, now.type)
    raise TableError(why, remedy=Remedy.LOOK, table=table)


def reconcile_target(
    table: str, target: pa.Schema, now: pa.Schema, *, key: Sequence[str]
) -> tuple[pa.Field, ...]:
    """The columns that a target lacks for rows with the columns ``now``.

    Raises:
        TableError: the target cannot take such rows; a user has to decide.
    """
    known, sent = set(target.names), set(now.names)
    for name in target.names:
        if name in sent:
            have, want = target.field(name).type, now.field(name).type
            if not holds(have, want):
                raise _parked(table, _another_type(table, name, have, want), name)
        elif name in key:
            raise TableError(
                f"the key column {name!r} of table {table} is missing in some changes",
                hint=copied_again(table),
                table=table,
                column=name,
                reason=ParkReason.KEY,
            )
    added = tuple(field for field in now if field.name not in known)
    for field in added:
        if field.name in key:
            why = f"the target of table {table} lacks key column {field.name!r}"
            raise _parked(table, why, field.name)
    return added


def check_name(table: str, now: str) -> None:
    """Check that the target of one name can take changes under another; both are
    ``schema.table``.

    Raises:
        TableError: the names differ: a catalog refresh has to find the new one.
    """
    if table != now:
        why = f"table {table} is now called {now}"
        raise TableError(why, remedy=Remedy.LOOK, table=table)


def check_key(table: str, before: Sequence[str] | None, now: Sequence[str]) -> None:
    """Check that a target with one key can take rows with another; None: any key.

    Raises:
        TableError: the keys differ: only a catalog refresh can tell what that means.
    """
    if before is not None and set(before) != set(now):
        keys = f"from ({', '.join(before)}) to ({', '.join(now)})"
        why = f"the key of table {table} changed {keys}"
        raise TableError(why, remedy=Remedy.LOOK, table=table)


def check_key_columns(table: str, target: pa.Schema, key: Sequence[str]) -> None:
    """Check that these columns of the target can be its key.

    Raises:
        TableError: one allows NULL, so the table has to be copied.
    """
    loose = [name for name in key if name in target.names and target.field(name).nullable]
    if loose:
        columns = ", ".join(map(repr, loose))
        why = f"the target of table {table} allows NULL in the key column {columns}"
        raise TableError(why, remedy=Remedy.COPY, table=table)


def check_filter_column(table: str, column: str, *, planned_oid: int, type_oid: int) -> None:
    """Check that a row filter that was prepared for a column of one type can be evaluated on
    received values of another type.

    Raises:
        TableError: the types differ, so a user has to copy the table.
    """
    if planned_oid != type_oid:
        why = f"column {column!r} of table {table}, which the row filter reads, changed its type"
        raise _parked(table, why, column)


def _another_type(table: str, column: str, target: pa.DataType, source: pa.DataType) -> str:
    return (
        f"column {column!r} of table {table} changed its type: it is {target} in the target, "
        f"but {source} in the source"
    )


def _parked(table: str, why: str, column: str) -> TableError:
    return TableError(why, hint=copied_again(table), table=table, column=column)
