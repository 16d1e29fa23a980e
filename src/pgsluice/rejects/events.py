"""What changes and copied rows mean for rejects: the events that tasks write.

Only changes of some keys matter: those that have an open reject, and those that get one from the
same changes. A task knows the first from the rejects table. More events than needed do no harm, so
the keys are found first, and then all of their changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.changes.truncates import Place
from pgsluice.columnar.changes import TRUNCATE, Int64s, Mask, RelationChanges, Tuples
from pgsluice.columnar.row_pool import RowPool
from pgsluice.rejects.keys import key_texts

Keys = Collection[tuple[str, str]]
"""Open rejects: the key of a row, and the column."""


class Kind(IntEnum):
    """What happens to the rejects of a row, in the order within one change."""

    EMPTIED = 0
    """The table has no row any more."""
    COPIED = 1
    """A copy begins: open rejects that it does not repeat are resolved."""
    MOVED = 2
    """The row has another key now, ``key``, and the change lacks the column's value: its reject
    under the old key, ``text``, is one of the new key."""
    GONE = 3
    """The row is deleted, or has another key."""
    REJECTED = 4
    """The column's value is ``text``, which it cannot hold."""
    FITS = 5
    """The column has a value that fits, or NULL."""


class Event(NamedTuple):
    """One event; sorted, events are in the order of their changes.

    Attributes:
        position, ordinal: those of the change, or of the snapshot.
        time: the time of the commit, in microseconds since 1970.
        key: see :mod:`.keys`; empty for all rows.
        column: empty for all columns.
    """

    position: int
    ordinal: int
    kind: int
    key: str = ""
    column: str = ""
    text: str = ""
    time: int = 0


class RejectedValues:
    """Takes the values that do not fit out of one table's changes, in commit order, all at once or
    piece by piece, or out of copied rows. Unless it accepts them, they stay, and lead to an
    error."""

    def __init__(self, open_keys: Keys, *, accepts: bool) -> None:
        self._accepts = accepts
        self._keys: dict[str, set[str]] = {}
        for key, column in open_keys:
            self._keys.setdefault(key, set()).add(column)
        self._events: set[Event] = set()

    def take_events(self) -> list[Event]:
        """The events of rejects since the last call, in the order of their changes."""
        events, self._events = sorted(self._events), set()
        return events

    # Changes of the stream

    def taken(
        self,
        runs: Sequence[RelationChanges],
        key: Sequence[str],
        emptied: Collection[Place] = (),
    ) -> list[RelationChanges]:
        """The changes without unfit values, which are NULL then; those of columns of ``key``, which
        identify a row, stay, and all of a table without a key. ``emptied``: where all leaf
        partitions were truncated."""
        if not key:
            return list(runs)
        taken = [self._without_unfit(run, key) if self._accepts else (run, {}) for run in runs]
        if self._keys:
            changes = [_KeyedChanges.of(run, key, unfit) for run, unfit in taken]
            self._follow_keys(changes)
            for each in changes:
                self._note_changes(each, key)
            for run in runs:
                self._note_truncates(run, emptied)
        return [run for run, _ in taken]

    def _without_unfit(
        self, run: RelationChanges, key: Sequence[str]
    ) -> tuple[RelationChanges, dict[str, Mask]]:
        """The run without unfit values, and where its new tuples had some."""
        names = run.schema.names
        columns = [
            index for index in sorted({*run.new.unfit, *run.old.unfit}) if names[index] not in key
        ]
        if not columns:
            return run, {}
        pool = RowPool.of(run)
        rows = np.arange(pool.new_rows)
        changes = np.flatnonzero(run.new_index >= 0)
        keys: pa.Array | None = None
        absent = dict(run.new.absent)
        masks: dict[str, Mask] = {}
        for column in columns:
            sources = pool.completed(column, rows)
            mask = pool.unfit(column, sources)
            if mask is None:
                continue
            if column in absent:  # the old tuple has the value
                absent[column] = absent[column] & ~mask
            masks[names[column]] = mask
            if keys is None:
                keys = _keys_of(run.new, run.schema, key)
            texts = pool.unfit_text(column, sources[mask]).to_pylist()
            chosen = changes[run.new_index[changes]][mask]
            for change, row_key, text in zip(
                chosen.tolist(), keys.filter(pa.array(mask)).to_pylist(), texts, strict=True
            ):
                if row_key is not None:
                    self._note(run, change, Kind.REJECTED, row_key, names[column], text)
                    self._keys.setdefault(row_key, set()).add(names[column])
        new = replace(run.new, absent=absent, unfit=_without(run.new.unfit, columns))
        old = replace(run.old, unfit=_without(run.old.unfit, columns))
        return replace(run, new=new, old=old), masks

    def _follow_keys(self, changes: Sequence[_KeyedChanges]) -> None:
        """Add the keys that rows with a reject get."""
        moves = sorted(move for each in changes for move in each.moves())
        for _, _, old_key, new_key in moves:
            if old_key in self._keys:
                self._keys.setdefault(new_key, set()).update(self._keys[old_key])

    def _note_changes(self, changes: _KeyedChanges, key: Sequence[str]) -> None:
        run, unfit = changes.run, changes.unfit
        columns = {name: index for index, name in enumerate(run.schema.names) if name not in key}
        for change in changes.among(self._keys).tolist():
            old_key, new_key = changes.keys(change)
            row = int(run.new_index[change])
            is_moved = old_key is not None and old_key != new_key
            if old_key is not None and is_moved:
                for name in sorted(self._keys.get(old_key, ())):
                    if new_key is not None and _is_absent(run.new, columns.get(name), row):
                        self._note(run, change, Kind.MOVED, new_key, name, old_key)
                self._note(run, change, Kind.GONE, old_key)
            for name in sorted(self._keys.get(new_key or "", ())):
                column = columns.get(name)
                is_unfit = name in unfit and bool(unfit[name][row])
                if column is not None and not is_unfit and not _is_absent(run.new, column, row):
                    self._note(run, change, Kind.FITS, new_key or "", name)

    def _note_truncates(self, run: RelationChanges, emptied: Collection[Place]) -> None:
        is_leaf = run.facts is not None and run.facts.root_oid != run.relation.oid
        for change in np.flatnonzero(run.actions == TRUNCATE).tolist():
            place = int(run.positions[change]), int(run.ordinals[change])
            if not is_leaf or place in emptied:
                self._note(run, change, Kind.EMPTIED)

    def _note(
        self,
        run: RelationChanges,
        change: int,
        kind: Kind,
        key: str = "",
        column: str = "",
        text: str = "",
    ) -> None:
        position, ordinal = int(run.positions[change]), int(run.ordinals[change])
        time = int(run.commit_timestamps[change])
        self._events.add(Event(position, ordinal, kind, key, column, text, time))

    # Rows that are deleted or read outside of the stream

    def note_gone(self, keys: pa.Table, place: Place, time: int) -> None:
        """Rows with these keys, which a TRUNCATE of their partition deleted, or which a load
        replaces."""
        if self._keys and len(keys):
            texts = key_texts([each.combine_chunks() for each in keys.columns], keys.schema.names)
            found = texts.filter(pc.is_in(texts, value_set=_values(self._keys)))
            for key in found.to_pylist():
                self._events.add(Event(*place, Kind.GONE, key, time=time))

    def note_copied(
        self,
        rows: pa.RecordBatch,
        key: Sequence[str],
        rejected: Iterable[tuple[str, Mask, pa.Array]],
        place: Place,
        time: int,
    ) -> None:
        """Rows of a copy; ``rejected`` has columns, each with the rows that had an unfit value, and
        the texts of these."""
        found = list(rejected)
        if not found and not self._keys:
            return
        keys = key_texts([rows.column(name) for name in key], key)
        for column, mask, texts in found:
            chosen = keys.filter(pa.array(mask)).to_pylist()
            for row_key, text in zip(chosen, texts.to_pylist(), strict=True):
                self._events.add(Event(*place, Kind.REJECTED, row_key, column, text, time))
        if self._keys:
            unfit = {column: mask for column, mask, _ in found}
            for row in _hits(keys, self._keys).tolist():
                row_key = keys[row].as_py()
                for name in sorted(self._keys[row_key]):
                    is_unfit = name in unfit and bool(unfit[name][row])
                    if name in rows.schema.names and not is_unfit:
                        self._events.add(Event(*place, Kind.FITS, row_key, name, time=time))


class _KeyedChanges(NamedTuple):
    """Changes with the keys of their tuples; ``unfit``: column -> mask over the new tuples."""

    run: RelationChanges
    unfit: Mapping[str, Mask]
    new_keys: pa.Array
    old_keys: pa.Array

    @classmethod
    def of(
        cls, run: RelationChanges, key: Sequence[str], unfit: Mapping[str, Mask]
    ) -> _KeyedChanges:
        new_keys, old_keys = (_keys_of(each, run.schema, key) for each in (run.new, run.old))
        return cls(run, unfit, new_keys, old_keys)

    def keys(self, change: int) -> tuple[str | None, str | None]:
        """The keys of a change's old and new tuple; None without one."""
        old, new = int(self.run.old_index[change]), int(self.run.new_index[change])
        return (
            self.old_keys[old].as_py() if old >= 0 else None,
            self.new_keys[new].as_py() if new >= 0 else None,
        )

    def among(self, keys: Collection[str]) -> Int64s:
        """The changes of rows with one of these keys, before or after the change."""
        hits = np.zeros(len(self.run), np.bool_)
        for index, texts in (
            (self.run.new_index, self.new_keys),
            (self.run.old_index, self.old_keys),
        ):
            mask = np.zeros(len(texts) + 1, np.bool_)
            mask[_hits(texts, keys)] = True
            hits |= mask[index]  # -1, without a tuple, is the last element
        return np.flatnonzero(hits)

    def moves(self) -> Iterable[tuple[int, int, str, str]]:
        """The changes of keys: position, ordinal, old and new key."""
        both = np.flatnonzero((self.run.new_index >= 0) & (self.run.old_index >= 0))
        if not len(both):
            return
        old = self.old_keys.take(pa.array(self.run.old_index[both]))
        new = self.new_keys.take(pa.array(self.run.new_index[both]))
        differs = pc.fill_null(pc.not_equal(old, new), fill_value=False)
        for place in np.flatnonzero(np.asarray(differs)).tolist():
            change = int(both[place])
            position, ordinal = int(self.run.positions[change]), int(self.run.ordinals[change])
            yield position, ordinal, old[place].as_py(), new[place].as_py()


def _keys_of(tuples: Tuples, schema: pa.Schema, key: Sequence[str]) -> pa.Array:
    if not tuples.columns:
        return pa.array([], pa.large_string())
    return key_texts([tuples.columns[schema.get_field_index(name)] for name in key], key)


def _values(keys: Collection[str]) -> pa.Array:
    return pa.array(list(keys), pa.large_string())


def _hits(texts: pa.Array, keys: Collection[str]) -> Int64s:
    return np.flatnonzero(np.asarray(pc.is_in(texts, value_set=_values(keys))))


def _is_absent(tuples: Tuples, column: int | None, row: int) -> bool:
    return column is not None and column in tuples.absent and bool(tuples.absent[column][row])


def _without(masks: Mapping[int, Mask], columns: Collection[int]) -> dict[int, Mask]:
    return {column: mask for column, mask in masks.items() if column not in columns}
