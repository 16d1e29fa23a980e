"""Net changes: the final state of each key after a batch of changes.

A sink that keeps a table's current state needs the last state of each key, not the changes
that led to it. The rules (contracts: net changes):

- The last change of a row counts; its key may have changed before (:mod:`.lineage`).
- A value that a change does not have (unchanged TOAST) is taken from an earlier change of the same
  row in the batch, else from the target's row with the key before the batch.
- A DELETE or TRUNCATE ends a row. A row that is inserted later takes no value from the target.
- An UPDATE or DELETE of a row that the target lacks is skipped and counted, as PostgreSQL's apply
  worker does. So each final row has a flag whether an INSERT of the batch created it; other rows
  are written only if the target has them. An INSERT over an existing row replaces it.
- A missing value of an inserted row is an error, never NULL.

Most batches are computed with whole arrays; only rows whose key changes are followed one by
one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from pgsluice.changes.carried import filled_rows, no_source, taken
from pgsluice.changes.events import Events, join_runs, whole_columns
from pgsluice.changes.history.columns import Closings
from pgsluice.changes.lineage import Lineages, follow, number_keys
from pgsluice.changes.truncates import Place
from pgsluice.changes.unique import UnprovedKeys, follow_unproved
from pgsluice.changes.whole_rows import WholeRows
from pgsluice.columnar.changes import (
    DELETE,
    INSERT,
    TRUNCATE,
    UPDATE,
    Int64s,
    Mask,
    RelationChanges,
)


@dataclass(frozen=True, slots=True)
class NetChanges:
    """The edits that bring a table from the batch's start to its end.

    Apply them in this order: if ``truncated``, delete all rows; read the target's rows of
    ``source_keys`` and resolve the ``rekeyed`` rows with them (:mod:`.rekeyed`); delete the rows of
    ``deletes``; replace target rows by the ``rows`` with the same keys; insert the other ``rows``
    if they are ``inserted``, and skip the rest.

    Attributes:
        key: names of the key columns; empty for a table that only takes inserts.
        truncated: whether all rows of the target are deleted first.
        rows: the final rows, at most one for each key, in the order of their last change.
        inserted: mask over ``rows``: true where an INSERT of the batch created the row. Other rows
            exist only if the target has a row with the same key, or with their source key.
        absent: column name -> mask over ``rows``: true where the value has to be taken from the
            target's row with the same key, or, for rekeyed rows, with their source key.
        rekeyed: rows (indexes into ``rows``) that were not inserted and had another key before the
            batch.
        source_keys: the key columns of ``rekeyed`` before the batch, in the same order.
        takes_ended_key: mask in the order of ``rekeyed``: true where another row had the final key
            before the batch. That row is deleted even if the rekeyed row does not exist.
        deletes: the key columns of target rows to delete, unless a row of ``rows`` has the same
            key.
        expected_deletes: the number of rows of ``deletes`` that the target should have; a lower
            limit if the stream is incomplete.
        only_new: true if there are no deletes and each row was inserted in the batch: the target
            has no row with a key of ``rows`` and need not be searched.
        skipped: the number of rows whose UPDATE or DELETE came after the batch had deleted them.
        unproved: the batch's keys, whose rows the sink counts before it changes the table; None:
            the source proves that keys are unique, or the target is truncated first.
        marked: mask over ``rows``: true where the source deleted the row, which the target keeps
            (:mod:`.deleted_rows`); None: no row is kept so. ``expected_deletes`` counts them.
        whole_rows: updates and deletes of a table without a key, by their whole old rows. They are
            applied instead of everything else, except ``truncated``, which leaves none; None: the
            table has a key, or only gets rows.
        closings: for a history, whose ``rows`` are versions, several of a key, and whose
            ``deletes`` are the keys of versions that are closed; else None.
    """

    schema: pa.Schema
    key: tuple[str, ...]
    truncated: bool
    rows: pa.Table
    inserted: Mask
    absent: Mapping[str, Mask]
    rekeyed: Int64s
    source_keys: pa.Table
    takes_ended_key: Mask
    deletes: pa.Table
    expected_deletes: int
    only_new: bool
    skipped: int
    unproved: UnprovedKeys | None = None
    marked: Mask | None = None
    whole_rows: WholeRows | None = None
    closings: Closings | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the target's rows do not change."""
        changed = len(self.rows) or len(self.deletes) or self.whole_rows is not None
        return not self.truncated and not changed


def put_rows(rows: pa.RecordBatch, key: tuple[str, ...]) -> NetChanges:
    """Net changes that replace or insert rows with distinct keys, whatever rows the target has."""
    return _new_rows(pa.Table.from_batches([rows]), rows.schema, key)


def _new_rows(rows: pa.Table, schema: pa.Schema, key: tuple[str, ...]) -> NetChanges:
    """Net changes of rows that need nothing of the target's rows."""
    keys = schema.empty_table().select(list(key))
    return NetChanges(
        schema=schema,
        key=key,
        truncated=False,
        rows=rows,
        inserted=np.ones(len(rows), np.bool_),
        absent={},
        rekeyed=np.empty(0, np.int64),
        source_keys=keys,
        takes_ended_key=np.empty(0, np.bool_),
        deletes=keys,
        expected_deletes=0,
        only_new=False,
        skipped=0,
    )


def delete_rows(keys: pa.Table, schema: pa.Schema, key: tuple[str, ...]) -> NetChanges:
    """Net changes that delete the rows with these keys, each key once, of a table with this
    schema."""
    return replace(_new_rows(schema.empty_table(), schema, key), deletes=keys)


def net_changes(
    changes: Sequence[RelationChanges],
    *,
    schema: pa.Schema,
    key: tuple[str, ...],
    is_complete: bool = True,
    is_key_proved: bool = True,
    missing: Mapping[str, pa.Scalar] = MappingProxyType({}),
    begins: Mapping[str, Place] | None = None,
    truncates: Collection[Place] = (),
    times: list[Int64s] | None = None,
) -> NetChanges:
    """Reduce a batch of changes to the final state of each key of one table.

    Args:
        changes: the table's changes, grouped by relation, in any order; of several leaf partitions
            for a partitioned table.
        key: names of the key columns; empty: a row is identified by all of its values. Then changes
            with updates or deletes have one set of columns (:func:`.whole_rows.by_columns`).
        is_complete: the stream has every change of the table. Otherwise the target may have a row
            whose key is inserted, because its DELETE was not sent.
        is_key_proved: the source guarantees that two rows never have the same key.
        missing: added columns -> the value of older rows at the source.
        begins: added columns -> the first change whose relation has them, if ``changes`` are only a
            part of the batch; None: they are the whole batch.
        truncates: where all leaf partitions of a partitioned table were truncated, which empties
            it.
        times: gets the commit time of each of the ``deletes``, in microseconds since 1970.

    Raises:
        TableError: the changes cannot be applied to a table of current state; the message
            says what to do.
    """
    events = join_runs(changes, schema, key, missing, begins, truncates)
    truncates = np.flatnonzero(events.actions == TRUNCATE)
    truncated = bool(len(truncates))
    if truncated:
        events = events.after(int(truncates[-1]) + 1)
    if not key:
        whole = None
        if ((events.actions == UPDATE) | (events.actions == DELETE)).any():
            whole = WholeRows.of(events, whole_columns(changes[0], schema))
        return _without_key(events, schema, truncated, whole)
    keys = number_keys(events, key)
    unproved = None
    if not is_key_proved:
        title = changes[0].table_title if changes else events.table
        unproved = follow_unproved(keys, events.positions, key, title, is_complete=is_complete)
    lineages = follow(events, keys, is_empty=truncated, may_have_inserted=not is_complete)
    ends = _Ends.of(events, lineages)
    rows, absent = filled_rows(events, lineages, ends.final)
    final_keys = keys.after[ends.final]
    # Rows that exist only if the target has a row with another key, and that key.
    origin = lineages.origin[lineages.of_change[ends.final]]
    rekeyed = np.flatnonzero(~ends.inserted & (origin != final_keys))
    had_row = np.zeros(keys.count, np.bool_)
    had_row[ends.origins] = True
    is_deleted = had_row.copy()
    is_deleted[final_keys] = False
    if times is not None:
        ends_key = np.flatnonzero((keys.before >= 0) & (keys.before != keys.after))
        last = np.full(keys.count, -1)
        last[keys.before[ends_key]] = ends_key
        times.append(events.times[last[is_deleted]])
    return NetChanges(
        schema=schema,
        key=key,
        truncated=truncated,
        rows=rows,
        inserted=ends.inserted,
        absent=absent,
        rekeyed=rekeyed,
        source_keys=keys.take(origin[rekeyed]),
        takes_ended_key=had_row[final_keys[rekeyed]],
        deletes=keys.take(np.flatnonzero(is_deleted)),
        expected_deletes=int(np.count_nonzero(is_deleted[ends.certain_origins])),
        only_new=not had_row.any(),
        skipped=ends.skipped,
        unproved=None if truncated else unproved,
    )


def _without_key(
    events: Events,
    schema: pa.Schema,
    truncated: bool,
    whole: WholeRows | None,
) -> NetChanges:
    """The changes of a table without a key: all rows in order, if there are only inserts."""
    index = events.row_index[events.row_index >= 0]
    for name, mask in events.absent.items():
        if mask[index].any():
            raise no_source(events.table, name, int(np.count_nonzero(mask[index])))
    skipped = 0
    if whole is None:
        columns = [taken(column, index) for column in events.rows.columns]
        rows = pa.Table.from_arrays(columns, schema=events.rows.schema)
    else:
        balance = whole.balance(np.zeros_like(whole.needed) if truncated else None)
        rows, skipped = whole.added(balance), balance.skipped
    return replace(
        _new_rows(rows, schema, ()),
        truncated=truncated,
        only_new=True,
        skipped=skipped,
        whole_rows=None if truncated else whole,
    )


@dataclass(frozen=True, slots=True)
class _Ends:
    """The origin and the end of each lineage.

    Attributes:
        final: the last changes of lineages that end with a row, in commit order.
        inserted: in the same order: whether an INSERT of the batch created the row.
        skipped: lineages that end without a row and changed while they had none.
        origins: the keys of the rows before the batch.
        certain_origins: origins that existed at the source, according to their first change.
    """

    final: Int64s
    inserted: Mask
    skipped: int
    origins: Int64s
    certain_origins: Int64s

    @classmethod
    def of(cls, events: Events, lineages: Lineages) -> _Ends:
        is_used = lineages.last_change >= 0
        origin, first = lineages.origin[is_used], lineages.first_change[is_used]
        last, bound = lineages.last_change[is_used], lineages.last_bound[is_used]
        is_inserted = (bound >= 0) & (events.actions[bound] == INSERT)
        has_row = is_inserted | ((bound < 0) & (origin >= 0))
        begins_inserted = events.actions[first] == INSERT
        had_none = (origin < 0) & ~begins_inserted
        skipped = ~has_row & (had_none | (events.actions[last] == UPDATE))
        order = np.argsort(last[has_row])
        return cls(
            final=last[has_row][order],
            inserted=is_inserted[has_row][order],
            skipped=int(np.count_nonzero(skipped)),
            origins=origin[origin >= 0],
            certain_origins=origin[(origin >= 0) & ~begins_inserted],
        )
