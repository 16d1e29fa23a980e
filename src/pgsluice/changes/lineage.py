"""Numbers keys, and follows each row through updates that change its key.

A **lineage** is one row of the source through a batch. If no key changes, a lineage is the same as
a key. An update that changes the key links two keys: the lineages of these keys are followed change
by change. All others are computed with whole arrays.

The server checks the uniqueness of the key for each row (a replica identity's index cannot be
deferrable), so at any moment at most one row has a given key.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.changes.events import Events
from pgsluice.columnar.changes import DELETE, INSERT, UPDATE, Int64s, Mask
from pgsluice.errors import TableError
from pgsluice.hints import copied_again
from pgsluice.types.buffers import entries_of, large_binary, null_mask, offsets_of


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of n changes as numbers: equal keys have equal numbers.

    Attributes:
        before: n; the row's key before the change; -1 for an INSERT.
        after: n; the row's key after the change; -1 for a DELETE.
        count: the number of distinct keys; all numbers are smaller than this.
        first_row: for each number, a row of ``values`` with this key.
        values: the key columns of all tuples.
    """

    before: Int64s
    after: Int64s
    count: int
    first_row: Int64s
    values: pa.Table

    def take(self, numbers: Int64s) -> pa.Table:
        """The key columns of the keys with these numbers."""
        return self.values.take(pa.array(self.first_row[numbers]))


@dataclass(frozen=True, slots=True)
class Lineages:
    """The lineages of n changes.

    Attributes:
        of_change: n; the change's lineage.
        origin: for each lineage, the key that its row had before the batch, or -1 if the row did
            not exist at the source then. Whether the target has the row is unknown.
        first_change, last_change: for each lineage; -1 if it has no change.
        last_bound: for each lineage, its last INSERT or DELETE, or -1 if it has none.
    """

    of_change: Int64s
    origin: Int64s
    first_change: Int64s
    last_change: Int64s
    last_bound: Int64s


def number_keys(events: Events, key: tuple[str, ...], *, are_rows: bool = False) -> Keys:
    """Give each distinct key a number.

    Args:
        are_rows: the key is all columns of a table without one, structs and maps among them.

    Raises:
        TableError: a key column's type cannot be a key.
    """
    if not are_rows:
        _refuse_fields(events.old_keys.schema)
    values = pa.concat_tables(
        [events.rows.select(key).cast(events.old_keys.schema), events.old_keys]
    )
    numbers = number_rows(values, key)
    count = int(numbers.max(initial=-1)) + 1
    first_row = np.zeros(count, np.int64)
    first_row[numbers] = np.arange(len(numbers))
    # A last -1 makes index -1 (no tuple) give -1 (no key).
    of_new = np.append(numbers[: len(events.rows)], -1)
    of_old = np.append(numbers[len(events.rows) :], -1)
    after, before = of_new[events.row_index], of_old[events.old_key_index]
    same_key = (events.actions == UPDATE) & (events.old_key_index < 0)
    before = np.where(same_key, after, before)
    before[events.actions == INSERT] = -1
    return Keys(before, after, count, first_row, values)


def number_rows(rows: pa.Table, key: tuple[str, ...]) -> Int64s:
    """Give each row a number: rows with equal keys get equal numbers.

    Keys are equal if PostgreSQL prints them in the same way and the target's type does not
    distinguish them: 0 and -0 are two keys, NaN is one; 1.0 and 1.00 are two keys as text and one
    as a decimal.

    Raises:
        TableError: a key column's type cannot be a key.
    """
    numbers = np.zeros(len(rows), np.int64)
    for name in key:
        column = _numbered(rows.column(name), name)
        width = int(column.max(initial=0)) + 1
        numbers = column if name == key[0] else _numbered(pa.array(numbers * width + column), name)
    return numbers


def _refuse_fields(keys: pa.Schema) -> None:
    """Refuse structs and maps as key columns: targets are not written by them."""
    for column in keys:
        if pa.types.is_struct(column.type) or pa.types.is_map(column.type):
            raise TableError(
                f"column {column.name!r} of type {column.type} cannot be part of a key",
                column=column.name,
            )


def find_rows(keys: pa.Table, rows: pa.Table, key: tuple[str, ...]) -> Int64s:
    """For each of ``keys``, a row of ``rows`` that has this key, or -1."""
    own = rows.select(key).cast(keys.schema)
    numbers = number_rows(pa.concat_tables([keys, own]), key)
    row_of_number = np.full(int(numbers.max(initial=-1)) + 1, -1)
    row_of_number[numbers[len(keys) :]] = np.arange(len(own))
    return row_of_number[numbers[: len(keys)]]


def _numbered(column: pa.Array | pa.ChunkedArray, name: str) -> Int64s:
    """Number the values of a column; NULL has a number of its own."""
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays([pa.nulls(0, column.type), *column.chunks])
    if pa.types.is_map(column.type):
        column = entries_of(column)
    if pa.types.is_struct(column.type):
        column = _structs_as_bytes(column, name)
    elif pa.types.is_list(column.type):
        column = _lists_as_bytes(column, name)
    try:
        encoded = pc.dictionary_encode(column)
    except pa.ArrowNotImplementedError as error:
        raise TableError(
            f"column {name!r} of type {column.type} cannot be part of a key", column=name
        ) from error
    null = len(encoded.dictionary)
    numbers: Int64s = encoded.indices.cast(pa.int64()).fill_null(null).to_numpy()
    return numbers


def _lists_as_bytes(lists: pa.ListArray, name: str) -> pa.Array:
    """Encode lists as the bytes of their elements' numbers, which Arrow can compare."""
    elements = _numbered(lists.flatten(), name)
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy().astype(np.int64)
    offsets = offsets_of(lengths) * elements.itemsize
    return large_binary(np.ascontiguousarray(elements).view(np.uint8), offsets, null_mask(lists))


def _structs_as_bytes(structs: pa.StructArray, name: str) -> pa.Array:
    """Encode structs as the bytes of their fields' numbers."""
    fields = [_numbered(field, name) for field in structs.flatten()]
    numbers = np.ascontiguousarray(np.stack(fields, axis=1))
    offsets = np.arange(len(structs) + 1) * (len(fields) * numbers.itemsize)
    return large_binary(numbers.view(np.uint8).reshape(-1), offsets, null_mask(structs))


def follow(events: Events, keys: Keys, *, is_empty: bool, may_have_inserted: bool) -> Lineages:
    """Find the lineage of each change.

    Args:
        is_empty: the target has no rows, because a TRUNCATE came just before.
        may_have_inserted: the target may have rows whose keys are inserted, because their DELETE
            was not sent.

    Raises:
        TableError: a row got a key that another row still has.
    """
    of_change = np.where(events.actions == DELETE, keys.before, keys.after)
    origin = np.arange(keys.count)
    n = len(of_change)
    if n and not may_have_inserted:
        first_change = _first(of_change, keys.count)
        origin[events.actions[first_change] == INSERT] = -1
    moves = (events.actions == UPDATE) & (keys.before != keys.after)
    if moves.any():
        unseen = None if is_empty else _NOT_SEEN
        inserts_over = unseen if may_have_inserted else None
        of_change, origin = _walk(events, keys, moves, of_change, origin, unseen, inserts_over)
    if is_empty:
        origin = np.full_like(origin, -1)
    bounds = np.flatnonzero(events.actions != UPDATE)
    last_change, last_bound = np.full(len(origin), -1), np.full(len(origin), -1)
    last_change[of_change] = np.arange(n)
    last_bound[of_change[bounds]] = bounds
    return Lineages(of_change, origin, _first(of_change, len(origin)), last_change, last_bound)


def _first(of_change: Int64s, count: int) -> Int64s:
    """For each of ``count`` lineages, its first change; -1 if it has none."""
    first = np.full(count, -1)
    first[of_change[::-1]] = np.arange(len(of_change))[::-1]
    return first


def last_marked(lineage: Int64s, is_marked: Mask) -> Int64s:
    """For each change, in order, the index of the last marked change of its lineage up to it; -1:
    none."""
    count = len(lineage)
    if not count:
        return lineage
    order, places = np.argsort(lineage, kind="stable"), np.arange(count)
    ordered = lineage[order]
    last = np.maximum.accumulate(np.where(is_marked[order], places, -1))
    begins = np.append(True, ordered[1:] != ordered[:-1])
    first = np.maximum.accumulate(np.where(begins, places, 0))
    found = np.empty(count, np.int64)
    found[order] = np.where(last >= first, order[last], -1)
    return found


_NOT_SEEN = -1


def _walk(
    events: Events,
    keys: Keys,
    moves: Mask,
    of_change: Int64s,
    origin: Int64s,
    unseen: int | None,
    inserts_over: int | None,
) -> tuple[Int64s, Int64s]:
    """Follow all changes of the keys that an update of a key touches, in order.

    An update of a key whose keys have no other changes is skipped: its row gets a separate lineage.

    Args:
        unseen: what holds a key that is new to the walk: a row from before the batch, or no row.
        inserts_over: the same, where an INSERT follows.
    """
    count = keys.count
    times = np.bincount(keys.before + 1, minlength=count + 1)[1:]
    times += np.bincount(keys.after[keys.after != keys.before] + 1, minlength=count + 1)[1:]
    alone = moves & (times[keys.before] == 1) & (times[keys.after] == 1)
    touched = np.zeros(count + 1, np.bool_)
    touched[keys.before[moves]] = touched[keys.after[moves]] = True
    touched[-1] = False  # stands for "no key"
    changes = np.flatnonzero((touched[keys.before] | touched[keys.after]) & ~alone)
    lineages: list[int] = []
    origins: list[int] = []
    holder: dict[int, int | None] = {}  # key -> its lineage now; None: no row has this key

    def begin(from_key: int) -> int:
        origins.append(from_key)
        return count + len(origins) - 1

    for action, before, after in zip(
        events.actions[changes].tolist(),
        keys.before[changes].tolist(),
        keys.after[changes].tolist(),
        strict=True,
    ):
        if action == INSERT:
            # An INSERT over a row replaces it.
            held = holder.get(after, inserts_over)
            lineage = begin(-1) if held is None else begin(after) if held == _NOT_SEEN else held
            holder[after] = lineage
        else:
            # A key that is new to the walk belongs to a row from before the batch.
            held = holder.get(before, unseen)
            if held is None:  # no row has this key: the change is skipped, and takes no key
                lineages.append(begin(-1))
                continue
            lineage = begin(before) if held == _NOT_SEEN else held
            holder[before] = None
            if action == UPDATE:
                if holder.get(after) is not None:
                    raise TableError(
                        f"two rows of table {events.table} have the same key at the same time",
                        hint="set `key` in the subscription to columns of a unique index that is"
                        f" not deferrable; then {copied_again(events.table)}",
                        table=events.table,
                    )
                holder[after] = lineage
        lineages.append(lineage)
    of_change = of_change.copy()
    of_change[changes] = lineages
    of_change[alone] = count + len(origins) + np.arange(np.count_nonzero(alone))
    origin = origin.copy()
    origin[touched[:-1]] = -1
    return of_change, np.concatenate([origin, np.array(origins, np.int64), keys.before[alone]])
