"""Typed changes as the rows that a query sees: change rows of one table, or envelope rows.

A change becomes one row, an UPDATE whose old tuple came two: ``update_preimage``, then
``update_postimage``. A value that PostgreSQL did not send again because it did not change is
taken from the old tuple where that has it; else the column is NULL and named in ``_absent``.
TRUNCATE is a row without values.

Nothing is replaced in silence: a value that its column cannot hold, or a type that changed
under a running query, is an error that names the column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from pgsluice.columnar import RelationChanges
from pgsluice.columnar.changes import DELETE, INSERT, KEY_ONLY, TRUNCATE, UPDATE
from pgsluice.errors import TableError
from pgsluice.lsn import Lsn
from pgsluice.spark import variant
from pgsluice.spark.schema import CHANGE_COLUMNS
from pgsluice.wire import ReplicaIdentity

Int64s = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MAX_ROWS = 50_000
"""Rows of one Arrow batch: large enough for Spark's reader, small in a worker's memory."""

CHANGE_TYPES = ("insert", "update_preimage", "update_postimage", "delete", "truncate")
_INSERT, _PREIMAGE, _POSTIMAGE, _DELETE, _TRUNCATE = range(5)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Which rows a run of changes becomes. All arrays have one element a row.

    Attributes:
        change: the change's index.
        kind: index into CHANGE_TYPES.
        tuple_index: row in the new tuples followed by the old ones, or -1.
        unchanged_from: where a postimage finds values that it lacks: its old tuple, or -1.
    """

    change: Int64s
    kind: Int64s
    tuple_index: Int64s
    unchanged_from: Int64s

    def __len__(self) -> int:
        return len(self.change)

    def slice(self, start: int, stop: int) -> _Rows:
        return _Rows(*(getattr(self, name)[start:stop] for name in self.__slots__))


def _rows(changes: RelationChanges) -> _Rows:
    actions = changes.actions
    has_old = changes.old_index >= 0
    old = np.where(has_old, changes.old_index + _count(changes.new.columns), -1)
    has_preimage = (actions == UPDATE) & has_old
    change = np.repeat(np.arange(len(changes), dtype=np.int64), 1 + has_preimage)
    kind = np.empty(len(change), np.int64)
    tuple_index = np.full(len(change), -1, np.int64)
    unchanged_from = np.full(len(change), -1, np.int64)
    last = np.cumsum(1 + has_preimage) - 1
    for action, code in (
        (INSERT, _INSERT),
        (UPDATE, _POSTIMAGE),
        (DELETE, _DELETE),
        (TRUNCATE, _TRUNCATE),
    ):
        kind[last[actions == action]] = code
    is_delete = actions == DELETE
    tuple_index[last] = np.where(is_delete, old, changes.new_index)
    unchanged_from[last] = np.where(actions == UPDATE, old, -1)
    kind[last[has_preimage] - 1] = _PREIMAGE
    tuple_index[last[has_preimage] - 1] = old[has_preimage]
    return _Rows(change, kind, tuple_index, unchanged_from)


def _count(columns: tuple[pa.Array, ...]) -> int:
    return len(columns[0]) if columns else 0


class _Columns:
    """A run of changes' tuples, new ones then old ones, looked up by row."""

    def __init__(self, changes: RelationChanges) -> None:
        self._changes = changes
        self._new_count = _count(changes.new.columns)
        self._old_count = _count(changes.old.columns)
        self._key_only = changes.old_kinds[changes.old_index >= 0] == KEY_ONLY

    def values(self, index: int, rows: _Rows) -> tuple[pa.Array, Mask]:
        """A column's values for rows, and where they are absent.

        Raises:
            TableError: one of the values does not fit the column's type.
        """
        missing = self._absent(index)
        at, absent = rows.tuple_index, np.zeros(len(rows), np.bool_)
        if missing is not None:
            absent = _look_up(missing, at)
            elsewhere = absent & (rows.unchanged_from >= 0)
            elsewhere &= ~_look_up(missing, rows.unchanged_from)
            at = np.where(elsewhere, rows.unchanged_from, at)
            absent &= ~elsewhere
        self._refuse_unfit(index, at, rows)
        return self._take(index, at), absent

    def _take(self, index: int, at: Int64s) -> pa.Array:
        new, old = self._changes.new.columns, self._changes.old.columns
        if self._old_count == 0 and len(at) and at[0] >= 0 and _is_run(at):
            return new[index].slice(int(at[0]), len(at))
        if self._old_count == 0 and self._new_count == 0:
            return pa.nulls(len(at), self._changes.schema.field(index).type)
        both = [columns[index] for columns in (new, old) if columns]
        return pa.concat_arrays(both).take(pa.array(at, mask=at < 0))

    def _absent(self, index: int) -> Mask | None:
        """Over all tuples, where one does not carry the column; None: all carry it."""
        changes = self._changes
        is_outside_key = not changes.relation.columns[index].is_key and bool(self._key_only.any())
        if (
            index not in changes.new.absent
            and index not in changes.old.absent
            and not is_outside_key
        ):
            return None
        missing = np.zeros(self._new_count + self._old_count, np.bool_)
        if index in changes.new.absent:
            missing[: self._new_count] = changes.new.absent[index]
        if index in changes.old.absent:
            missing[self._new_count :] = changes.old.absent[index]
        if is_outside_key:
            missing[self._new_count :] |= self._key_only
        return missing

    def _refuse_unfit(self, index: int, at: Int64s, rows: _Rows) -> None:
        changes = self._changes
        if index not in changes.new.unfit and index not in changes.old.unfit:
            return
        unfit = np.zeros(self._new_count + self._old_count, np.bool_)
        if index in changes.new.unfit:
            unfit[: self._new_count] = changes.new.unfit[index]
        if index in changes.old.unfit:
            unfit[self._new_count :] = changes.old.unfit[index]
        found = np.flatnonzero(_look_up(unfit, at))
        if not len(found):
            return
        name = changes.relation.columns[index].name
        position = Lsn(int(changes.positions[rows.change[found[0]]]))
        raise TableError(
            f'table {_title(changes)}, column "{name}": a value in the transaction that ends at '
            f"{position} does not fit the type {changes.schema.field(index).type}",
            hint="correct the value at the source and read past it, or leave the table out",
            table=_title(changes),
            column=name,
            lsn=position,
        )


def _look_up(mask: Mask, at: Int64s) -> Mask:
    """The mask at indices; false where the index is -1."""
    if not len(mask):
        return np.zeros(len(at), np.bool_)
    found: Mask = mask[np.maximum(at, 0)] & (at >= 0)
    return found


def _is_run(at: Int64s) -> bool:
    return bool(int(at[-1]) - int(at[0]) == len(at) - 1 and (np.diff(at) == 1).all())


def table_batches(changes: RelationChanges, declared: pa.Schema) -> Iterator[pa.RecordBatch]:
    """One table's change rows.

    Args:
        changes: of the table, or of a leaf of it.
        declared: what the query was told; columns are matched by name. One that this
            definition of the relation lacks is NULL; one that is not declared is left out.

    Raises:
        TableError: a column's type changed to one that the declared type does not contain, or
            a value does not fit.
    """
    columns = _Columns(changes)
    positions = {column.name: index for index, column in enumerate(changes.relation.columns)}
    own = declared.names[: len(declared) - len(CHANGE_COLUMNS)]
    for rows in _chunks(_rows(changes)):
        arrays, absent = [], {}
        for name in own:
            target = declared.field(name).type
            if name not in positions:
                arrays.append(pa.nulls(len(rows), target))
                continue
            values, missing = columns.values(positions[name], rows)
            if missing.any():
                absent[name] = missing
            arrays.append(_conform(values, target, name, changes))
        arrays.extend(_change_columns(changes, rows, absent))
        yield pa.record_batch(arrays, schema=declared)


def envelope_batches(changes: RelationChanges, declared: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Envelope rows of any table; arguments and errors as for :func:`table_batches`.

    A leaf's rows carry its root's name. ``key`` holds the identity key's columns, under
    REPLICA IDENTITY FULL the primary key's, and is NULL without either.
    """
    columns = _Columns(changes)
    names = [column.name for column in changes.relation.columns]
    dictionary = variant.Dictionary(names)
    key = _key_columns(changes)
    namespace, table = target_name(changes)
    for rows in _chunks(_rows(changes)):
        values, absent = {}, {}
        for index, name in enumerate(names):
            values[name], missing = columns.values(index, rows)
            if missing.any():
                absent[name] = missing
        has_tuple = rows.tuple_index >= 0
        has_key = has_tuple if key else np.zeros(len(rows), np.bool_)
        arrays = [
            _constant(namespace, len(rows)),
            _constant(table, len(rows)),
            variant.encode_objects(
                dictionary, {name: values[name] for name in key}, absent, has_key
            ),
            variant.encode_objects(dictionary, values, absent, has_tuple),
            pa.nulls(len(rows), pa.string()),
            pa.nulls(len(rows), pa.binary()),
            *_change_columns(changes, rows, absent),
        ]
        yield pa.record_batch(arrays, schema=declared)


def target_name(changes: RelationChanges) -> tuple[str, str]:
    """Under which name the rows travel: the relation's, a leaf's root's."""
    facts = changes.facts
    if facts is not None and facts.root_oid != facts.oid:
        return facts.root_namespace, facts.root_name
    return changes.relation.schema, changes.relation.name


def _title(changes: RelationChanges) -> str:
    return ".".join(target_name(changes))


def _key_columns(changes: RelationChanges) -> tuple[str, ...]:
    names = {column.name for column in changes.relation.columns}
    if changes.relation.replica_identity is ReplicaIdentity.FULL:
        key = changes.facts.primary_key if changes.facts is not None else ()
        return key if set(key) <= names else ()
    return tuple(column.name for column in changes.relation.columns if column.is_key)


def _chunks(rows: _Rows) -> Iterator[_Rows]:
    for start in range(0, len(rows), MAX_ROWS):
        yield rows.slice(start, min(start + MAX_ROWS, len(rows)))


def _change_columns(
    changes: RelationChanges, rows: _Rows, absent: Mapping[str, Mask]
) -> list[pa.Array]:
    """The change columns, in the order of CHANGE_COLUMNS."""
    at = rows.change
    instants = pa.array(changes.commit_timestamps[at], pa.timestamp("us", "UTC"))
    return [
        pa.array(CHANGE_TYPES, pa.string()).take(pa.array(rows.kind)),
        pa.array(changes.positions[at], pa.int64()),
        instants,
        pa.array(changes.ordinals[at], pa.int64()),
        pa.array(changes.xids[at], pa.int64()),
        _name_lists(absent, len(rows)),
    ]


def _name_lists(masks: Mapping[str, Mask], count: int) -> pa.Array:
    """For each row the names whose mask is true, as array<string>."""
    offsets = np.zeros(count + 1, np.int32)
    values = pa.array([], pa.string())
    if masks:
        matrix = np.stack(list(masks.values()), axis=1)
        np.cumsum(matrix.sum(axis=1), out=offsets[1:])
        values = pa.array(list(masks), pa.string()).take(pa.array(np.nonzero(matrix)[1]))
    kind = pa.list_(pa.field("element", pa.string()))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=kind)


def _constant(text: str, count: int) -> pa.Array:
    return pa.array([text], pa.string()).take(pa.array(np.zeros(count, np.int64)))


def _conform(
    values: pa.Array, target: pa.DataType, name: str, changes: RelationChanges
) -> pa.Array:
    """A column as its declared type, which has to contain all values of the column's own."""
    if values.type == target and not pt.is_nested(target):
        return values
    if not _contains(target, values.type):
        raise TableError(
            f'table {_title(changes)}: column "{name}" is now {values.type}, and was declared as '
            f"{target} when the query started",
            hint="start the query again: it takes the table's columns as they are then",
            table=_title(changes),
            column=name,
        )
    return values.cast(target)


def _contains(target: pa.DataType, source: pa.DataType) -> bool:
    """Whether every value of one type is a value of the other, unchanged."""
    if target == source:
        return True
    if pt.is_signed_integer(target) and pt.is_signed_integer(source):
        return bool(target.bit_width >= source.bit_width)
    if pt.is_decimal(target) and pt.is_decimal(source):
        digits = target.precision - target.scale >= source.precision - source.scale
        return bool(digits and target.scale >= source.scale)
    if pt.is_string(target):
        return bool(pt.is_large_string(source))
    if pt.is_binary(target):
        return bool(pt.is_large_binary(source))
    if pt.is_list(target) and pt.is_list(source):
        return _contains(target.value_type, source.value_type)
    if pt.is_struct(target) and pt.is_struct(source):
        return [f.name for f in target] == [f.name for f in source] and all(
            _contains(a.type, b.type) for a, b in zip(target, source, strict=True)
        )
    return False
