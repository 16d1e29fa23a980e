"""Rebuilds a table from its change log, to compare it with the source.

The rules are those of docs/modes.md. A row keeps its identity through updates of its key; a value
that a change does not have is that of the row's last change that has it. Without a key, rows are
counted. All rows of the log since its newest copy are in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.verification.digest import Int64s, Mask
from pgsluice.verification.postgres_text import postgres_text
from pgsluice.verification.target import TargetRows

_CHANGE_COLUMNS = ("change_type", "commit_version", "commit_timestamp", "ordinal", "xid", "absent")


@dataclass(frozen=True, slots=True)
class LogRows:
    """The rows of a table at the end of its change log.

    Attributes:
        key: the columns of the table's key, or none.
        prefix: the start of the change columns' names.
    """

    log: TargetRows
    key: tuple[str, ...]
    prefix: str

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table, in Arrow's types."""
        of_log = {f"{self.prefix}{name}" for name in _CHANGE_COLUMNS}
        return pa.schema([field for field in self.log.schema if field.name not in of_log])

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Rebuild all rows of the table, with some of its columns."""
        names = [name for name in columns if name in self.log.schema.names]
        wanted = [*dict.fromkeys((*names, *self.key)), *self._named(*_CHANGE_COLUMNS)]
        schema = pa.schema([self.log.schema.field(name) for name in wanted])
        read = (batch.select(wanted).cast(schema) for batch in self.log.batches(wanted))
        log = pa.Table.from_batches(read, schema).combine_chunks()
        yield from self._rebuilt(log, names).to_batches()

    def _named(self, *names: str) -> list[str]:
        return [f"{self.prefix}{name}" for name in names]

    def _rebuilt(self, log: pa.Table, columns: Sequence[str]) -> pa.Table:
        kind_name, version, ordinal, absent_name = self._named(
            "change_type", "commit_version", "ordinal", "absent"
        )
        is_later = pc.not_equal(log[kind_name], "update_preimage").to_numpy()
        order = np.lexsort((is_later, log[ordinal].to_numpy(), log[version].to_numpy()))
        log = log.take(pa.array(order)).combine_chunks()
        begins = np.flatnonzero(_of_kinds(log[kind_name], "snapshot", "truncate"))
        log = log.slice(int(begins[-1]) + 1 if len(begins) else 0).combine_chunks()
        kinds = log[kind_name]
        is_added = _of_kinds(kinds, "add_column")
        changes, added = np.flatnonzero(~is_added), np.flatnonzero(is_added)
        if self.key:
            lives = _lives(_numbers(log.select(self.key)), kinds, changes, added)
        else:
            lives = _Lives(changes, np.arange(len(log)), changes, added)
        absent = _absent(log[absent_name])
        taken = []
        for name in columns:
            has_value = ~absent[name] if name in absent else np.ones(len(log), np.bool_)
            source = lives.sources(has_value)
            index = pa.array(source, pa.int64(), mask=source < 0)
            taken.append(log[name].take(index))
        schema = pa.schema([log.schema.field(name) for name in columns])
        rows = pa.Table.from_arrays(taken, schema=schema)
        return (
            rows
            if self.key
            else _counted(rows, _of_kinds(kinds, "insert", "update_postimage")[changes])
        )


def _counted(rows: pa.Table, is_added: Mask) -> pa.Table:
    """The rows that are left of a multiset.

    Args:
        rows: those that the log adds and those that it removes.
        is_added: which of them it adds.

    Returns:
        The rows, equal ones as often as they are left. A row of NULLs stands for each row that is
        removed and was not there, so that the number of rows is wrong where the log is.
    """
    # As text, because Arrow does not number values of nested types.
    texts = {str(n): postgres_text(c.combine_chunks()) for n, c in enumerate(rows.columns)}
    numbers = _numbers(pa.table(texts))
    count = np.zeros(int(numbers.max(initial=-1)) + 1, np.int64)
    np.add.at(count, numbers, np.where(is_added, 1, -1))
    example = np.zeros(len(count), np.int64)
    example[numbers] = np.arange(len(numbers))
    left = np.repeat(example, np.maximum(count, 0))
    unexplained = int(-count[count < 0].sum())
    index = np.append(left, np.full(unexplained, -1, np.int64))
    return rows.take(pa.array(index, pa.int64(), mask=index < 0))


def _of_kinds(kinds: pa.ChunkedArray, *names: str) -> Mask:
    """The rows of some kinds."""
    mask: Mask = pc.is_in(kinds, pa.array(names)).to_numpy()
    return mask


@dataclass(frozen=True, slots=True)
class _Lives:
    """The rows of the table through their changes.

    Attributes:
        changes: the log's rows that are changes of rows of the table, ascending.
        roots: for each row of the log, the one with which its row of the table began.
        alive: the beginnings of the rows that the table has in the end.
        added: the ``add_column`` rows, ascending.
    """

    changes: Int64s
    roots: Int64s
    alive: Int64s
    added: Int64s

    def sources(self, has_value: Mask) -> Int64s:
        """For each row of the table, the log's row that has its value of a column; -1: none.

        Args:
            has_value: the log's rows with a value of the column.
        """
        last = np.full(len(self.roots), -1, np.int64)
        chosen = self.changes[has_value[self.changes]]
        last[self.roots[chosen]] = chosen  # of several, the last one
        for event in self.added[has_value[self.added]]:
            existed = self.alive[self.alive < event]
            last[existed] = np.maximum(last[existed], event)
        sources: Int64s = last[self.alive]
        return sources


def _lives(numbers: Int64s, kinds: pa.ChunkedArray, changes: Int64s, added: Int64s) -> _Lives:
    """Follow the rows of the table.

    Args:
        numbers: the key of each row of the log.
        changes, added: see :class:`_Lives`.
    """
    before = np.flatnonzero(_of_kinds(kinds, "update_preimage"))
    moved = before[numbers[before] != numbers[before + 1]]
    begins = _of_kinds(kinds, "insert")
    begins[moved + 1] = True
    by_key = changes[np.argsort(numbers[changes], kind="stable")]
    places = np.arange(len(by_key))
    is_first = np.append(True, np.diff(numbers[by_key]) != 0)[: len(by_key)]
    first = np.maximum.accumulate(np.where(is_first, places, 0))
    last_begin = np.maximum.accumulate(np.where(begins[by_key], places, 0))
    life = np.arange(len(numbers))
    life[by_key] = by_key[np.maximum(first, last_begin)]
    root = np.arange(len(numbers))
    for place in moved.tolist():  # ascending: the row's earlier beginnings are settled
        root[place + 1] = root[life[place]]
    ends = by_key[np.append(is_first[1:], True)[: len(by_key)]]
    is_there = _of_kinds(kinds, "insert", "update_postimage")
    roots = root[life]
    return _Lives(changes, roots, roots[ends[is_there[ends]]], added)


def _numbers(keys: pa.Table) -> Int64s:
    """A number for each key; equal keys have equal numbers."""
    numbers = np.zeros(len(keys), np.int64)
    for column in keys.columns:
        codes = _codes(column)
        numbers = _codes(pa.array(numbers * (int(codes.max(initial=0)) + 1) + codes))
    return numbers


def _codes(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    codes: Int64s = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def _absent(lists: pa.ChunkedArray) -> dict[str, Mask]:
    """The rows without a value, by column."""
    lists = lists.combine_chunks()
    rows = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
    names = pc.dictionary_encode(lists.flatten())
    codes = names.indices.to_numpy(zero_copy_only=False)
    absent: dict[str, Mask] = {}
    for code, name in enumerate(names.dictionary.to_pylist()):
        absent[name] = np.zeros(len(lists), np.bool_)
        absent[name][rows[codes == code]] = True
    return absent
