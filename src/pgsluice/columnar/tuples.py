"""Reads the tuples of one relation as columns, with one cursor for each row.

Column after column, the reader reads every row's kind byte and length, and checks them against
the end of the row's message. It takes the column's values out of the buffer without touching
their bytes, and the types' registry decodes them.

Bytes that violate the protocol raise ProtocolError, and a value that is not of its type raises
ConversionError; the reader raises nothing else.
Source: the manual, "Logical Replication Message Formats", TupleData.

Its figure: decoding on one core, at least 15 times the rate of pg_recvlogical.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.columnar.changes import Bytes, Int64s, Mask, Text, Tuples
from pgsluice.columnar.definitions import protocol_error, text_type
from pgsluice.errors import ConversionError
from pgsluice.facts import RelationFacts
from pgsluice.lsn import Lsn
from pgsluice.spool.segments.block import SegmentView
from pgsluice.types import ColumnType, Decoded
from pgsluice.types.buffers import integers, spans
from pgsluice.wire import Relation

_NULL, _UNCHANGED, _TEXT, _BINARY = b"nutb"
_HEAD = 5  # kind and length


@dataclass(frozen=True, slots=True)
class TupleReader:
    """Reads tuples of messages of one relation, by the definition that is valid for them.

    Attributes:
        types: the type of each column.
        texts: the indexes of columns whose text is needed.
        unfit_texts: also return the text of columns that have unfit values.
        wanted: the indexes of the columns to decode; the others are null. None: all.
    """

    view: SegmentView
    relation: Relation
    facts: RelationFacts | None
    types: Sequence[ColumnType]
    texts: Collection[int]
    unfit_texts: bool
    wanted: Collection[int] | None = None

    def read(
        self, rows: Int64s, offsets: Int64s, key_only: Mask | None = None
    ) -> tuple[Tuples, Int64s]:
        """Decode one tuple of each message; returns the tuples, and where each ends.

        Args:
            rows: the messages' indices in the block.
            offsets: where each tuple starts in ``block.data``; ascending.
            key_only: true for tuples of kind K, in which only key columns have values.

        Raises:
            ProtocolError: a message is truncated or malformed.
            ConversionError: a value is not of its column's type.
        """
        if not len(rows):
            nothing = tuple(pa.nulls(0, column_type.arrow_type) for column_type in self.types)
            no_text = partial(pa.nulls, 0, pa.string())
            return Tuples(nothing, {}, {}, dict.fromkeys(self.texts, no_text)), offsets
        limits = self.view.block.ends[rows]
        self.refuse(rows, offsets, offsets + 2 > limits, "the tuple's column count is truncated")
        counts = integers(self.view.block.data, offsets, ">u2")
        reason = f"a tuple does not have the relation's {len(self.types)} columns"
        self.refuse(rows, offsets, counts != len(self.types), reason)
        offsets = offsets + 2
        columns: list[pa.Array] = []
        absent: dict[int, Mask] = {}
        unfit: dict[int, Mask] = {}
        texts: dict[int, Text] = {}
        for number, column_type in enumerate(self.types):
            kinds, starts, offsets = self._step(rows, offsets, limits)
            if self.wanted is not None and number not in self.wanted:
                columns.append(pa.nulls(len(rows), column_type.arrow_type))
                continue
            hidden = key_only if not self.relation.columns[number].is_key else None
            missing = _missing(kinds, hidden)
            if missing is not None:
                absent[number] = missing
            values = _Values(self.view.block.data, kinds, starts, offsets, hidden)
            decoded = self._decode(values, column_type, number, rows)
            columns.append(decoded.values)
            if decoded.unfit is not None and decoded.unfit.any():
                unfit[number] = decoded.unfit
            if number in self.texts or (number in unfit and self.unfit_texts):
                texts[number] = partial(self._text, values, number, rows)
        return Tuples(tuple(columns), absent, unfit, texts), offsets

    def _text(self, values: _Values, number: int, rows: Int64s) -> pa.Array:
        column_type = text_type(self.relation, self.facts, number)
        return self._decode(values, column_type, number, rows).values

    def _decode(
        self, values: _Values, column_type: ColumnType, number: int, rows: Int64s
    ) -> Decoded:
        try:
            return values.decode(column_type)
        except ConversionError as error:
            raise self._misfit(error, number, rows) from error

    def _step(
        self, rows: Int64s, offsets: Int64s, limits: Int64s
    ) -> tuple[Bytes | None, Int64s, Int64s]:
        """Read one column: its kinds (None: all are text), and where its values start and end."""
        self.refuse(rows, offsets, offsets >= limits, "the tuple is truncated")
        data = self.view.block.data
        kinds = data[offsets]
        if (kinds == _TEXT).all():
            starts = offsets + _HEAD
            self.refuse(rows, offsets, starts > limits, "the value's length is truncated")
            ends = starts + integers(data, offsets + 1, ">u4")
            self.refuse(rows, offsets, ends > limits, "the value is truncated")
            return None, starts, ends
        has_value = (kinds == _TEXT) | (kinds == _BINARY)
        known = has_value | (kinds == _NULL) | (kinds == _UNCHANGED)
        self.refuse(rows, offsets, ~known, "the value is of an unknown kind")
        starts = offsets + np.where(has_value, _HEAD, 1)
        self.refuse(rows, offsets, starts > limits, "the value's length is truncated")
        ends = starts.copy()
        ends[has_value] += integers(data, offsets[has_value] + 1, ">u4")
        self.refuse(rows, offsets, ends > limits, "the value is truncated")
        return kinds, starts, ends

    def refuse(self, rows: Int64s, offsets: Int64s, bad: Mask, reason: str) -> None:
        """Raise ProtocolError for the first message that is marked as bad, if there is one."""
        if not bad.any():
            return
        first = int(np.argmax(bad))
        raise protocol_error(self.view, int(rows[first]), int(offsets[first]), reason)

    def _misfit(self, error: ConversionError, number: int, rows: Int64s) -> ConversionError:
        """Add the value's table, column, segment and position to the registry's error."""
        column = self.relation.columns[number].name
        table = f"{self.relation.namespace}.{self.relation.name}"
        facts = {"table": table, "column": column, "segment": self.view.name, **error.facts}
        row = error.facts.get("row")
        if row is not None:
            facts["lsn"] = Lsn(int(self.view.block.positions[rows[row]]))
        return ConversionError(f"{table}, column {column}: {error.what}", hint=error.hint, **facts)


@dataclass(frozen=True, slots=True)
class _Values:
    """One column's values in the buffer.

    Attributes:
        kinds: the kind of each value; None: all are text.
        starts, ends: value i is ``data[starts[i]:ends[i]]``, empty where there is none.
        hidden: rows that are treated as having no value; None: no row.
    """

    data: Bytes
    kinds: Bytes | None
    starts: Int64s
    ends: Int64s
    hidden: Mask | None

    def decode(self, column_type: ColumnType) -> Decoded:
        if self.kinds is None and self.hidden is None:
            return column_type.decode_text(self._take(None))
        text = self._of_kind(_TEXT)
        binary = self._of_kind(_BINARY)
        if not binary.any():
            if not text.any():
                return Decoded(pa.nulls(len(text), column_type.arrow_type))
            return column_type.decode_text(self._take(text))
        if not text.any():
            return column_type.decode_binary(self._take(binary))
        return _either(
            binary,
            column_type.decode_binary(self._take(binary)),
            column_type.decode_text(self._take(text)),
        )

    def _of_kind(self, kind: int) -> Mask:
        if self.kinds is None:
            mask = np.full(len(self.starts), kind == _TEXT)
        else:
            mask = self.kinds == kind
        if self.hidden is not None:
            mask &= ~self.hidden
        return mask

    def _take(self, wanted: Mask | None) -> pa.Array:
        """The values as LargeBinary, null where not wanted."""
        return spans(self.data, self.starts, self.ends, None if wanted is None else ~wanted)


def _missing(kinds: Bytes | None, hidden: Mask | None) -> Mask | None:
    """Where a column has no value; None when every row has one."""
    mask = hidden
    if kinds is not None:
        unchanged = kinds == _UNCHANGED
        mask = unchanged if mask is None else mask | unchanged
    return mask if mask is not None and mask.any() else None


def _either(choice: Mask, chosen: Decoded, other: Decoded) -> Decoded:
    """Combine two columns: ``chosen`` where ``choice`` is true, else ``other``."""
    values = pc.if_else(pa.array(choice), chosen.values, other.values)
    if chosen.unfit is None and other.unfit is None:
        return Decoded(values)
    unfit = np.zeros(len(choice), np.bool_)
    for decoded in (chosen, other):
        if decoded.unfit is not None:
            unfit |= decoded.unfit
    return Decoded(values, unfit)
