"""The keys of a data file's rows, sorted so that wanted keys are found quickly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from pgsluice.changes.key_numbers import KeyNumbers, Numbers, numbers_of
from pgsluice.changes.lineage import number_rows

Rows = npt.NDArray[np.uint32]
Indexes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Hits:
    """n rows of one file that have a wanted key, live or deleted: n indexes of wanted keys, and n
    row numbers in the file."""

    wanted: Indexes
    rows: Indexes

    @classmethod
    def joined(cls, parts: Sequence[Hits]) -> Hits:
        """Combine the hits of several parts of a file."""
        if len(parts) == 1:
            return parts[0]
        nothing = [np.empty(0, np.int64)]
        return cls(
            np.concatenate(nothing + [part.wanted for part in parts]),
            np.concatenate(nothing + [part.rows for part in parts]),
        )

    def where(self, mask: npt.NDArray[np.bool_]) -> Hits:
        """The hits for which the mask is true."""
        return Hits(self.wanted[mask], self.rows[mask])

    def without(self, vector: BitMap) -> Hits:
        """The hits that are no deleted rows, by the deleted row numbers of their file."""
        dead = vector & BitMap(self.rows.astype(np.uint32))
        if not dead:
            return self
        return self.where(~np.isin(self.rows, np.asarray(dead.to_array(), np.int64)))


@dataclass(frozen=True, slots=True)
class KeyEntries:
    """The keys of rows of a data file, sorted by their numbers.

    Attributes:
        numbers: the keys' numbers (:mod:`pgsluice.changes.key_numbers`), sorted.
        rows: the row number of each key.
        keys: the key columns in the same order; None if numbers are exact.
    """

    numbers: Numbers
    rows: Rows
    keys: pa.Table | None

    @classmethod
    def of(cls, keys: pa.Table, numbered: KeyNumbers, rows: Indexes | None = None) -> KeyEntries:
        """The entries of a file's rows, by the key columns of all of them, and their numbers; only
        of some rows, if these are given."""
        numbers = numbered.numbers if rows is None else numbered.numbers[rows]
        order = np.argsort(numbers, kind="stable")
        places = order if rows is None else rows[order]
        in_order = None if numbered.are_exact else keys.combine_chunks().take(pa.array(places))
        return cls(numbers[order], places.astype(np.uint32), in_order)


class Wanted:
    """The keys to find, by their columns, and the same columns in the table's types."""

    def __init__(self, keys: pa.Table, types: pa.Schema) -> None:
        self.keys = keys.select(types.names).cast(types)
        numbers = numbers_of(self.keys).numbers
        self._order = np.argsort(numbers, kind="stable")
        self.numbers: Numbers = numbers[self._order]
        """The numbers of the keys, sorted."""

    def among(self, entries: KeyEntries) -> Hits | None:
        """The rows of a file that have one of these keys; None if there are none."""
        places, positions = _matches(entries.numbers, self.numbers)
        if entries.keys is not None and len(places):
            is_equal = are_equal(
                self.keys.take(pa.array(self._order[places])),
                entries.keys.take(pa.array(positions)).cast(self.keys.schema),
            )
            places, positions = places[is_equal], positions[is_equal]
        if not len(places):
            return None
        return Hits(self._order[places], entries.rows[positions].astype(np.int64))


def _matches(numbers: Numbers, wanted: Numbers) -> tuple[Indexes, Indexes]:
    """The matches of sorted wanted numbers in sorted numbers: pairs of (wanted, place)."""
    nothing = np.empty(0, np.int64)
    if not len(numbers) or not len(wanted):
        return nothing, nothing
    first = int(np.searchsorted(wanted, numbers[0]))
    end = int(np.searchsorted(wanted, numbers[-1], "right"))
    some = wanted[first:end]
    begins = np.searchsorted(numbers, some)
    ends = np.searchsorted(numbers, some, "right")
    counts = ends - begins
    which = np.repeat(np.arange(len(some)), counts)
    before = np.cumsum(counts) - counts
    places = np.arange(len(which)) - before[which] + begins[which]
    return which + first, places


def are_equal(first: pa.Table, second: pa.Table) -> npt.NDArray[np.bool_]:
    """Which rows of two tables with the same columns are equal."""
    numbers = number_rows(pa.concat_tables([first, second]), tuple(first.schema.names))
    is_equal: npt.NDArray[np.bool_] = numbers[: len(first)] == numbers[len(first) :]
    return is_equal
