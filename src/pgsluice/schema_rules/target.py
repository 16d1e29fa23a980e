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

from pgsluice.errors import ParkReason
from pgsluice.hints import copied_again
from pgsluice.schema_rules.known import KnownColumns
from pgsluice.schema_rules.types import holds
from pgsluice.schema_rules.verdicts import (
    AddColumns,
    CopyAgain,
    LeaveOut,
    LookFirst,
    Park,
    Same,
    Widen,
)


def reconcile_column(
    table: str,
    target: pa.Field | None,
    now: pa.Field,
    source_type: tuple[int, int],
    known: KnownColumns | None,
    *,
    is_dropped: bool = False,
) -> Same | AddColumns | Widen | LeaveOut | LookFirst:
    """What a column of a batch means for the target. Batch and target use the same name for the
    same attribute number (:mod:`pgsluice.subscription.batches.tasks.column_identity`).

    Args:
        table: ``schema.table``, for messages.
        target: the target's column of this name; None: it has none.
        now: the batch's column, in the target's types.
        source_type: the type OID and typmod in the batch.
        known: the result of the table's last catalog refresh; None: the table was never copied.
        is_dropped: the metadata beside the batch proves that the column was dropped.
    """
    name = now.name
    if target is None:
        if known is None or name in known.types or name in known.added:
            return AddColumns((now,))
        return LookFirst(
            f"column {name!r} of table {table} arrived before a catalog refresh found it"
        )
    if holds(target.type, now.type):
        return Same()
    # The metadata beside a batch may be older than the catalog refresh, or newer.
    if is_dropped or (known is not None and known.is_gone(name)):
        return LeaveOut()
    if known is not None and known.types.get(name) == source_type and holds(now.type, target.type):
        return Widen(now.with_nullable(target.nullable))
    return LookFirst(
        f"column {name!r} of table {table} changed its type: it is {target.type} in the target, "
        f"but {now.type} in the source"
    )


def reconcile_target(
    table: str, target: pa.Schema, now: pa.Schema, *, key: Sequence[str]
) -> Same | AddColumns | Park:
    """Whether a target with these columns can take rows with the columns ``now``."""
    known, sent = set(target.names), set(now.names)
    for name in target.names:
        if name in sent:
            have, want = target.field(name).type, now.field(name).type
            if not holds(have, want):
                return _park(
                    table,
                    f"column {name!r} of table {table} changed its type: it is {have} in the "
                    f"target, but {want} in the source",
                    name,
                )
        elif name in key:
            why = f"the key column {name!r} of table {table} is missing in some changes"
            return Park(why, copied_again(table), name, ParkReason.KEY)
    added = tuple(field for field in now if field.name not in known)
    for field in added:
        if field.name in key:
            return _park(
                table, f"the target of table {table} lacks key column {field.name!r}", field.name
            )
    return AddColumns(added) if added else Same()


def reconcile_name(table: str, now: str) -> Same | LookFirst:
    """Whether changes under one name can be applied to a target of another name; both are
    ``schema.table``."""
    if table == now:
        return Same()
    return LookFirst(f"table {table} is now called {now}")


def reconcile_key(table: str, before: Sequence[str] | None, now: Sequence[str]) -> Same | LookFirst:
    """Whether rows with one key can be applied to a target with another key; None: any key."""
    if before is None or set(before) == set(now):
        return Same()
    return LookFirst(
        f"the key of table {table} changed from ({', '.join(before)}) to ({', '.join(now)})"
    )


def reconcile_key_columns(table: str, target: pa.Schema, key: Sequence[str]) -> Same | CopyAgain:
    """Whether these columns of the target can be its key."""
    loose = [name for name in key if name in target.names and target.field(name).nullable]
    if loose:
        return CopyAgain(
            f"the target of table {table} allows NULL in the key column "
            f"{', '.join(map(repr, loose))}"
        )
    return Same()


def reconcile_filter_column(
    table: str, column: str, *, planned_oid: int, type_oid: int
) -> Same | Park:
    """Whether a row filter that was prepared for a column of one type can be evaluated on received
    values of another type."""
    if planned_oid == type_oid:
        return Same()
    why = f"column {column!r} of table {table}, which the row filter reads, changed its type"
    return _park(table, why, column)


def _park(table: str, why: str, column: str | None = None) -> Park:
    return Park(why, copied_again(table), column)
