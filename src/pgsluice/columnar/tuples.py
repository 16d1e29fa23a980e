"""Tuples of one relation as columns: a cursor that walks all rows at once.

For one column after the other it reads each row's kind byte and length, checks them against
the end of the row's message, and takes the values out of the one buffer: offsets that
alternate between values and what lies between them make it a LargeBinary array without
touching a byte, of which every second element is taken. The registry decodes these.

Every byte that is not as the protocol says is a ProtocolError; no other error leaves here
but ConversionError for a value that is not of its type.
Source: the manual, "Logical Replication Message Formats", TupleData.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgsluice.columnar.changes import Bytes, Int64s, Mask, Text, Tuples
from pgsluice.errors import ConversionError, ProtocolError
from pgsluice.lsn import Lsn
from pgsluice.spool.block import MessageBlock
from pgsluice.types import ColumnType, Decoded
from pgsluice.types.codec import integers
from pgsluice.wire import Relation

_NULL, _UNCHANGED, _TEXT, _BINARY = b"nutb"
_HEAD = 5  # kind and length


@dataclass(frozen=True, slots=True)
class TupleReader:
    """Reads tuples of messages of one relation.

    Attributes:
        block: where the messages lie.
        segment: its name, for errors.
        relation: the definition in force.
        types: one a column.
        text_types: column index -> how its values are printed, where their text is wanted too.
    """

    block: MessageBlock
    segment: str
    relation: Relation
    types: Sequence[ColumnType]
    text_types: Mapping[int, ColumnType] = field(default_factory=dict)

    def read(self, rows: Int64s, at: Int64s, key_only: Mask | None = None) -> tuple[Tuples, Int64s]:
        """Decode one tuple of each message.

        Args:
            rows: the messages' indices in the block.
            at: where each tuple begins in ``block.data``; rises.
            key_only: true for tuples of kind K, of which only key columns mean anything.

        Returns:
            The tuples, and where each ends.

        Raises:
            ProtocolError: a message ends too early, or says what no server says.
            ConversionError: a value is not of its column's type.
        """
        if not len(rows):
            nothing = tuple(pa.nulls(0, one.arrow_type) for one in self.types)
            no_text = partial(pa.nulls, 0, pa.string())
            return Tuples(nothing, {}, {}, dict.fromkeys(self.text_types, no_text)), at
        limits = self.block.ends[rows]
        at = self._read_counts(rows, at, limits)
        columns: list[pa.Array] = []
        absent: dict[int, Mask] = {}
        unfit: dict[int, Mask] = {}
        texts: dict[int, Text] = {}
        every_second = np.arange(0, 2 * len(rows), 2)
        for number, column_type in enumerate(self.types):
            kinds, starts, at = self._step(rows, at, limits)
            hidden = key_only if not self.relation.columns[number].is_key else None
            missing = _missing(kinds, hidden)
            if missing is not None:
                absent[number] = missing
            values = _Values(self.block.data, kinds, starts, at, hidden, every_second)
            decoded = self._decode(values, column_type, number, rows)
            columns.append(decoded.values)
            if decoded.unfit is not None and decoded.unfit.any():
                unfit[number] = decoded.unfit
            if number in self.text_types:
                texts[number] = partial(self._text, values, number, rows)
        return Tuples(tuple(columns), absent, unfit, texts), at

    def _text(self, values: _Values, number: int, rows: Int64s) -> pa.Array:
        return self._decode(values, self.text_types[number], number, rows).values

    def _decode(
        self, values: _Values, column_type: ColumnType, number: int, rows: Int64s
    ) -> Decoded:
        try:
            return values.decode(column_type)
        except ConversionError as error:
            raise self._misfit(error, number, rows) from error

    def _read_counts(self, rows: Int64s, at: Int64s, limits: Int64s) -> Int64s:
        self.refuse(rows, at, at + 2 > limits, "the tuple's column count is cut off")
        counts = integers(self.block.data, at, ">u2")
        expected = len(self.types)
        wrong = counts != expected
        self.refuse(rows, at, wrong, f"a tuple does not have the relation's {expected} columns")
        return at + 2

    def _step(
        self, rows: Int64s, at: Int64s, limits: Int64s
    ) -> tuple[Bytes | None, Int64s, Int64s]:
        """One column: its kinds (None: all are text), where its values start and end."""
        self.refuse(rows, at, at >= limits, "the tuple is cut off")
        data = self.block.data
        kinds = data[at]
        if (kinds == _TEXT).all():
            starts = at + _HEAD
            self.refuse(rows, at, starts > limits, "the value's length is cut off")
            ends = starts + integers(data, at + 1, ">u4")
            self.refuse(rows, at, ends > limits, "the value is cut off")
            return None, starts, ends
        there = (kinds == _TEXT) | (kinds == _BINARY)
        known = there | (kinds == _NULL) | (kinds == _UNCHANGED)
        self.refuse(rows, at, ~known, "the value is of an unknown kind")
        starts = at + np.where(there, _HEAD, 1)
        self.refuse(rows, at, starts > limits, "the value's length is cut off")
        ends = starts.copy()
        ends[there] += integers(data, at[there] + 1, ">u4")
        self.refuse(rows, at, ends > limits, "the value is cut off")
        return kinds, starts, ends

    def refuse(self, rows: Int64s, at: Int64s, bad: Mask, what: str) -> None:
        """Raise for the first bad row, if there is one."""
        if not bad.any():
            return
        first = int(np.argmax(bad))
        raise protocol_error(self.block, self.segment, int(rows[first]), int(at[first]), what)

    def _misfit(self, error: ConversionError, number: int, rows: Int64s) -> ConversionError:
        """The registry's error with the place where the value came from."""
        column = self.relation.columns[number].name
        table = f"{self.relation.namespace}.{self.relation.name}"
        facts = {"table": table, "column": column, "segment": self.segment, **error.facts}
        row = error.facts.get("row")
        if row is not None:
            facts["lsn"] = Lsn(int(self.block.positions[rows[row]]))
        return ConversionError(f"{table}, column {column}: {error.what}", hint=error.hint, **facts)


@dataclass(frozen=True, slots=True)
class _Values:
    """One column's values in the buffer.

    Attributes:
        kinds: None when all are text.
        starts, ends: value i is ``data[starts[i]:ends[i]]``, empty where there is none.
        hidden: rows that are not to be looked at.
        every_second: 0, 2, 4 ...: shared by all columns.
    """

    data: Bytes
    kinds: Bytes | None
    starts: Int64s
    ends: Int64s
    hidden: Mask | None
    every_second: Int64s

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
        count = len(self.starts)
        offsets = np.empty(2 * count, np.int64)
        offsets[0::2] = self.starts
        offsets[1::2] = self.ends
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        spaced = pa.Array.from_buffers(pa.large_binary(), 2 * count - 1, buffers)
        validity = None
        if wanted is not None and not wanted.all():
            validity = pa.py_buffer(np.packbits(wanted, bitorder="little"))
        indices = pa.Array.from_buffers(
            pa.int64(), count, [validity, pa.py_buffer(self.every_second)]
        )
        return spaced.take(indices)


def _missing(kinds: Bytes | None, hidden: Mask | None) -> Mask | None:
    """Where a column's value is not there at all; None when it is everywhere."""
    mask = hidden
    if kinds is not None:
        unchanged = kinds == _UNCHANGED
        mask = unchanged if mask is None else mask | unchanged
    return mask if mask is not None and mask.any() else None


def _either(choice: Mask, chosen: Decoded, other: Decoded) -> Decoded:
    """Row by row one of two decoded columns."""
    values = pc.if_else(pa.array(choice), chosen.values, other.values)
    if chosen.unfit is None and other.unfit is None:
        return Decoded(values)
    unfit = np.zeros(len(choice), np.bool_)
    for one in (chosen, other):
        if one.unfit is not None:
            unfit |= one.unfit
    return Decoded(values, unfit)


def protocol_error(
    block: MessageBlock, segment: str, message: int, at: int, what: str
) -> ProtocolError:
    """An error with the place: message tag, offset in the message, position."""
    tag = chr(int(block.tags[message]))
    offset = at - int(block.starts[message])
    position = Lsn(int(block.positions[message]))
    return ProtocolError(
        f"{what}: message {tag!r} at offset {offset}, transaction {position}, segment {segment}",
        tag=tag,
        offset=offset,
        lsn=position,
        segment=segment,
    )
