"""Net changes of a table without a key: a multiset of rows, identified by all of their values.

With REPLICA IDENTITY FULL, an update or delete carries the whole old row. It changes exactly one of
the rows that are equal to it. Rows are equal if all values of the source's columns are: NULL is
equal to NULL, NaN to NaN, and other values as for keys (:func:`.lineage.number_rows`). PostgreSQL's
apply worker compares with the equality operators of the types, for which more values are equal (1.0
and 1.00). There is always a row of exactly these values if the target is the source's copy, and
with it the target stays one.

Changes of one batch cancel first. A change whose row neither the target nor the batch has is
skipped and counted, with the row that it would have written, as by PostgreSQL's apply worker.

Source: src/backend/executor/execReplication.c (tuples_equal, RelationFindReplTupleSeq).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pgsluice.changes.events import Events
from pgsluice.changes.lineage import number_keys
from pgsluice.columnar.changes import DELETE, UPDATE, Int64s, RelationChanges


@dataclass(frozen=True, slots=True)
class Balance:
    """The effect of n changes on a target.

    Attributes:
        added, taken: for each distinct row, how many copies are added and taken away.
        inserted, updated, deleted: the rows of the target that are new, replaced and gone.
        skipped: changes whose row does not exist.
    """

    added: Int64s
    taken: Int64s
    inserted: int
    updated: int
    deleted: int
    skipped: int


@dataclass(frozen=True, slots=True)
class WholeRows:
    """The changes of rows that are identified by all of their values: n changes, m distinct rows.

    Attributes:
        columns: the columns by which rows are compared: those that the source's rows have.
        values: m rows with these columns.
        rows: m rows with the table's columns; of rows that no change writes, only ``columns``.
        before: n; the row that a change takes away, or -1 (INSERT).
        after: n; the row that it writes, or -1 (DELETE).
        needed: m; how many copies the target must have, so that each change finds its row.
    """

    columns: tuple[str, ...]
    values: pa.Table
    rows: pa.Table
    before: Int64s
    after: Int64s
    needed: Int64s

    @classmethod
    def of(cls, events: Events, columns: tuple[str, ...]) -> WholeRows:
        """The changes after all TRUNCATEs, in commit order; old tuples have all ``columns``."""
        keys = number_keys(events, columns, are_rows=True)
        values = keys.take(np.arange(keys.count))
        row_of = np.full(keys.count, -1)
        writes = keys.after >= 0
        row_of[keys.after[writes]] = events.row_index[writes]
        rows = [
            values.column(field.name).cast(field.type)
            if field.name in columns
            else events.rows.column(field.name).take(pa.array(row_of, mask=row_of < 0))
            for field in events.rows.schema
        ]
        return cls(
            columns,
            values,
            pa.Table.from_arrays(rows, schema=events.rows.schema),
            keys.before,
            keys.after,
            _needed(keys.before, keys.after, keys.count),
        )

    def balance(self, found: Int64s | None = None) -> Balance:
        """The effect on a target that has ``found`` copies of each row (m); None: as many as are
        needed."""
        inserts, deletes = self.before < 0, self.after < 0
        count, kept, skipped = len(self.values), np.ones(len(self.before), np.bool_), 0
        if found is not None and (found < self.needed).any():
            kept = self._found(found)
            skipped = int(np.count_nonzero(~kept))
        written, gone = self.after[kept & ~deletes], self.before[kept & ~inserts]
        copies = np.bincount(written, minlength=count) - np.bincount(gone, minlength=count)
        added, taken = np.maximum(copies, 0), np.maximum(-copies, 0)
        inserted = min(int(added.sum()), int(np.count_nonzero(inserts)))
        updated = int(added.sum()) - inserted
        return Balance(added, taken, inserted, updated, int(taken.sum()) - updated, skipped)

    @property
    def most(self) -> Int64s:
        """How many copies of each row changes take away, if they find it."""
        return np.bincount(self.before[self.before >= 0], minlength=len(self.needed))

    def _found(self, found: Int64s) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which changes find their row, one after the other."""
        there = found.tolist()
        kept = np.ones(len(self.before), np.bool_)
        for change, (old, new) in enumerate(
            zip(self.before.tolist(), self.after.tolist(), strict=True)
        ):
            if old >= 0:
                if not there[old]:
                    kept[change] = False
                    continue
                there[old] -= 1
            if new >= 0:
                there[new] += 1
        return kept

    def added(self, balance: Balance) -> pa.Table:
        """The rows that a balance adds to the target, each as often as it is added."""
        return self.rows.take(pa.array(np.repeat(np.arange(len(self.rows)), balance.added)))


def _needed(before: Int64s, after: Int64s, count: int) -> Int64s:
    """How many copies of each row there must be before the changes: as many as are taken away
    before changes have written others."""
    changes = np.arange(len(before))
    takes, writes = before >= 0, after >= 0
    rows = np.concatenate([before[takes], after[writes]])
    steps = np.concatenate([np.full(takes.sum(), -1), np.full(writes.sum(), 1)])
    # An update takes its row away before it writes one.
    places = np.concatenate([2 * changes[takes], 2 * changes[writes] + 1])
    order = np.lexsort((places, rows))
    rows, copies = rows[order], np.cumsum(steps[order])
    starts = np.flatnonzero(np.append(True, rows[1:] != rows[:-1])) if len(rows) else rows
    lengths = np.diff(np.append(starts, len(rows)))
    earlier = np.append(0, copies)[starts]
    needed = np.zeros(count, np.int64)
    np.maximum.at(needed, rows, np.repeat(earlier, lengths) - copies)
    return needed


def has_old_rows(runs: Iterable[RelationChanges]) -> bool:
    """Whether there are updates or deletes among changes."""
    return any(bool(((run.actions == UPDATE) | (run.actions == DELETE)).any()) for run in runs)


def by_columns(runs: Sequence[RelationChanges]) -> list[list[RelationChanges]]:
    """Changes in consecutive parts, each with one set of columns: rows are compared by the columns
    that they have."""
    sets = [frozenset(run.schema.names) for run in runs]
    if len(set(sets)) <= 1:
        return [list(runs)]
    positions = np.concatenate([run.positions for run in runs])
    ordinals = np.concatenate([run.ordinals for run in runs])
    run_of = np.repeat(np.arange(len(runs)), [len(run) for run in runs])
    change_of = np.concatenate([np.arange(len(run)) for run in runs])
    order = np.lexsort((ordinals, positions))
    numbers = {names: number for number, names in enumerate(dict.fromkeys(sets))}
    set_of = np.array([numbers[each] for each in sets])[run_of[order]]
    parts = np.split(order, np.flatnonzero(set_of[1:] != set_of[:-1]) + 1)
    return [
        [runs[run].take(change_of[part[run_of[part] == run]]) for run in np.unique(run_of[part])]
        for part in parts
    ]
