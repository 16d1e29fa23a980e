"""The target's side: formats and hashes its rows, one Arrow batch at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.errors import PgsluiceError
from pgsluice.verification.digest import MOST_KEPT, Digests, Int64s, Key, Mask, Uint64s
from pgsluice.verification.postgres_text import TextForm, postgres_text

_BATCH_ROWS = 32_768

Hashes = npt.NDArray[np.uint8]
Rejected = Mapping[str, Mapping[Key, str]]
"""Column -> key -> text."""


class TargetRows(Protocol):
    """The rows of a target, which are read more than once."""

    @property
    def schema(self) -> pa.Schema:
        """The target's columns, in Arrow's types."""

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read some columns of all rows, in any order."""


class DeltaRows:
    """A Delta table at one version, read with ``deltalake``.

    Args:
        path: the table's folder or URL.
        version: None: the newest version at the time of the call.
        options: the options of the object store that a URL points to, as deltalake takes them.

    Raises:
        PgsluiceError: there is no such table.
    """

    def __init__(
        self,
        path: str | Path,
        version: int | None = None,
        options: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        # deltalake is an extra: it is needed only for Delta tables
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            self._table = DeltaTable(str(path), version=version, storage_options=dict(options))
        except TableNotFoundError as error:
            raise PgsluiceError(f"there is no Delta table in {path}", path=str(path)) from error

    @property
    def version(self) -> int:
        """The version of the Delta table that is read."""
        return int(self._table.version())

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(self._table.schema().to_arrow())

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read some columns; deletion vectors and column mapping are applied."""
        yield from pa.RecordBatchReader.from_stream(self._table.scan(columns=list(columns)))


@dataclass(frozen=True, slots=True)
class UndeletedRows:
    """The rows of a target that keeps rows from before, without these.

    Attributes:
        rows: all rows.
        deleted_column: the column that is NULL only in rows that the source has.
    """

    rows: TargetRows
    deleted_column: str

    @property
    def schema(self) -> pa.Schema:
        return self.rows.schema

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read some columns of the rows that are not deleted."""
        names = [*columns, self.deleted_column]
        # The engine returns text as views, which pyarrow does not filter.
        schema = pa.schema([self.schema.field(name) for name in names])
        for batch in self.rows.batches(names):
            is_there = pc.is_null(batch.column(self.deleted_column))
            yield batch.select(names).cast(schema).filter(is_there).select([*columns])


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch's formatted columns and the rows' hashes, shape (rows, 16)."""

    texts: dict[str, pa.Array]
    hashes: Hashes
    key_hashes: Hashes


@dataclass(frozen=True, slots=True)
class TargetSide:
    """Digests of a target's rows.

    Args:
        columns: names of the columns to compare. A column that the target does not have is NULL in
            every row: it was added and has had no value yet.
        key: names of the key's columns, or none.
        forms: the text forms of columns by name.
        rejected: column -> key -> the value that the source's row has and the column cannot hold:
            it counts as the target's value if the target has NULL.
    """

    _rows: TargetRows
    _columns: Sequence[str]
    _key: Sequence[str]
    _forms: Mapping[str, TextForm]
    _rejected: Rejected

    def buckets(self, count: int, within: Mask | None = None) -> Digests:
        """The digests of ``count`` buckets; see :meth:`.SourceSide.buckets`."""
        digests = Digests(count)
        for batch in self._batches():
            hashes, key_hashes = batch.hashes, batch.key_hashes
            if within is not None:
                places = np.flatnonzero(within[bucket_of(key_hashes, len(within))])
                hashes, key_hashes = hashes[places], key_hashes[places]
            ones = np.ones(len(hashes), np.int64)
            digests.add(bucket_of(key_hashes, count), ones, *_numbers(hashes))
        return digests

    def rows(self, chosen: Mask) -> dict[Key, list[str]]:
        """The hashes of the rows of some buckets, by key."""
        hashes_by_key: dict[Key, list[str]] = {}
        for batch in self._batches():
            places = np.flatnonzero(chosen[bucket_of(batch.key_hashes, len(chosen))])
            hashes = [bytes(row).hex() for row in batch.hashes[places]]
            texts = [batch.texts[name].take(places) for name in self._key or self._columns]
            if not self._key:
                texts = [pc.utf8_slice_codeunits(text, 0, MOST_KEPT) for text in texts]
            lists = [text.to_pylist() for text in texts]
            keys: list[Key] = list(zip(*lists, strict=True)) or [()] * len(places)
            for key, row_hash in zip(keys, hashes, strict=True):
                hashes_by_key.setdefault(key, []).append(row_hash)
        return hashes_by_key

    def _batches(self) -> Iterator[_Batch]:
        there = set(self._rows.schema.names)
        columns = [name for name in self._columns if name in there]
        # Even without columns the rows are counted: read any column.
        for batch in self._rows.batches(columns or self._rows.schema.names[:1]):
            for start in range(0, batch.num_rows, _BATCH_ROWS):
                yield self._hash(batch.slice(start, _BATCH_ROWS))

    def _hash(self, batch: pa.RecordBatch) -> _Batch:
        there = set(batch.schema.names)
        texts = {
            name: postgres_text(batch.column(name), self._forms.get(name, TextForm()))
            if name in there
            else pa.nulls(batch.num_rows, pa.large_string())
            for name in self._columns
        }
        for name in self._rejected.keys() & texts.keys():
            texts[name] = self._with_rejected(texts, name)
        hashes = md5_of(list(texts.values()), batch.num_rows)
        if not self._key:
            return _Batch(texts, hashes, hashes)
        key_hashes = md5_of([texts[name] for name in self._key], batch.num_rows)
        return _Batch(texts, hashes, key_hashes)

    def _with_rejected(self, texts: Mapping[str, pa.Array], column: str) -> pa.Array:
        """A column's texts, with the rejected values in place of NULL."""
        by_key, first = self._rejected[column], texts[self._key[0]]
        known = pa.array([key[0] for key in by_key], pa.large_string())
        may_be = pc.and_(pc.is_null(texts[column]), pc.is_in(first, value_set=known))
        rows = np.flatnonzero(np.asarray(may_be))
        keys = zip(*(texts[name].take(rows).to_pylist() for name in self._key), strict=True)
        values = [by_key.get(key) for key in keys]
        mask = np.zeros(len(first), np.bool_)
        mask[rows] = True
        return pc.replace_with_mask(
            texts[column], pa.array(mask), pa.array(values, texts[column].type)
        )


def md5_of(texts: Sequence[pa.Array], rows: int) -> Hashes:
    """The MD5 of each row's text (:mod:`.digest`), as bytes of shape (rows, 16)."""
    parts = []
    for text in texts:
        length = pc.utf8_length(text).cast(pa.large_string())
        part = pc.binary_join_element_wise(length, text, pa.scalar(":", pa.large_string()))
        parts.append(part.fill_null("-"))
    if not parts:
        joined = pa.array([""] * rows, pa.large_string())
    else:
        joined = pc.binary_join_element_wise(*parts, pa.scalar("", pa.large_string()))
    md5 = hashlib.md5
    digests = [
        md5(text, usedforsecurity=False).digest()
        for text in joined.cast(pa.large_binary()).to_pylist()
    ]
    return np.frombuffer(b"".join(digests), np.uint8).reshape(rows, 16)


def _numbers(hashes: Hashes) -> tuple[Uint64s, Uint64s]:
    """The first and the last 64 bits of each hash."""
    halves = np.ascontiguousarray(hashes).view(">u8").astype(np.uint64)
    return halves[:, 0], halves[:, 1]


def bucket_of(key_hashes: Hashes, count: int) -> Int64s:
    """The number of the bucket that each key belongs to, from 0 to ``count - 1``."""
    first = np.ascontiguousarray(key_hashes[:, :4]).view(">u4")[:, 0].astype(np.int64)
    buckets: Int64s = first % count
    return buckets


@dataclass(frozen=True, slots=True)
class KeyRanges:
    """Some of the ranges into which the keys of a table are divided.

    Attributes:
        key: the columns of the key, each with its text form.
        chosen: which ranges, shape (number of ranges,).
        rows: how many rows they have at most, at the source or at the target.
        condition: the SQL condition of their rows at the source, in sessions with the stream's
            settings.
    """

    key: tuple[tuple[str, TextForm], ...]
    chosen: Mask
    rows: int
    condition: str

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the table's key, which :meth:`passing` reads."""
        return tuple(name for name, _ in self.key)

    def passing(self, columns: Mapping[str, pa.Array], rows: int) -> Mask:
        """Which rows of the target have keys of these ranges.

        Args:
            columns: those of the key, in the target's types.
            rows: how many.
        """
        texts = [postgres_text(columns[name], form) for name, form in self.key]
        passing: Mask = self.chosen[bucket_of(md5_of(texts, rows), len(self.chosen))]
        return passing

    def __str__(self) -> str:
        return f"{int(np.count_nonzero(self.chosen))} of {len(self.chosen)} ranges of keys"
