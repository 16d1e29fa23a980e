"""The sink contract: keys are exact, for every type."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pgsluice.errors import TableError
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import Sink, TargetTable
from pgsluice.testing.changes import ChangesBuilder
from pgsluice.testing.sink_tests import TABLE, SinkTests, batches, changes, net, row

_MOMENT = pa.timestamp("us", "UTC")
_LAST = "\U0010ffff"
KEYS: dict[str, pa.Array] = {
    "integer": pa.array([-(2**63), 2**63 - 1, 0, 2**53 + 1], pa.int64()),
    "text": pa.array(["", "a", "A", "a ", "it's", "x" * 40, "x" * 40 + "y", _LAST, _LAST * 40]),
    "binary": pa.array([b"", b"\x00", b"\xff" * 40, b"\xff" * 41]),
    "boolean": pa.array([True, False]),
    "float": pa.array([0.0, -0.0, float("nan"), float("inf"), 5e-324, 1.1]),
    "single": pa.array([0.0, -0.0, float("nan"), 1.1], pa.float32()),
    "short decimal": pa.array([Decimal("0.30"), Decimal("-9999999999.99")], pa.decimal128(15, 2)),
    "long decimal": pa.array([Decimal(2**63), Decimal(2**63 + 1)], pa.decimal128(38, 0)),
    "date": pa.array([0, -1, -719_162, 2_932_896], pa.int32()).cast(pa.date32()),
    "timestamp": pa.array([0, -1, 1_700_000_000_123_456, 1_700_000_000_123_457], _MOMENT),
    "list of text": pa.array([["a,b"], ["a", "b"], [], [None], [""]], pa.list_(pa.string())),
    "list of float": pa.array([[0.0], [-0.0], [float("nan")]], pa.list_(pa.float64())),
}  # fmt: skip
"""Keys by type: different ones that some engines treat as equal."""


class KeysContract(SinkTests):
    """Each key has one row, even if the engine treats different keys as equal."""

    def test_a_copy_with_two_rows_of_one_key_is_refused(self, sink: Sink) -> None:
        """Two rows with one key are refused unless keys are proved to be unique, even if two tasks
        staged them."""
        self.loaded(sink, row(1), row(2))
        unproved = replace(TABLE, is_key_proved=False)

        def load(*parts: list[dict[str, Any]]) -> None:
            if not self.writer(sink).can_stage():
                parts = ([row for part in parts for row in part],)
            writers = [self.writer(sink, copy=2, table=unproved) for _ in parts]
            staged = [
                writer.stage_load(batches(*part), Lsn(200))
                for writer, part in zip(writers, parts, strict=True)
            ]
            writers[0].commit_load(staged, Lsn(200))

        with pytest.raises(TableError, match=r"1 value belongs to more than one row"):
            load([row(3), row(4)], [row(5), row(3)])
        assert [one["id"] for one in self.sorted_rows(sink)] == [1, 2]
        load([row(3), row(4)], [row(5)])
        assert [one["id"] for one in self.sorted_rows(sink)] == [3, 4, 5]

    @pytest.mark.parametrize("others", [False, True])
    def test_a_second_row_of_a_key_is_refused(self, sink: Sink, others: bool) -> None:
        """A second row with a key is refused unless keys are proved to be unique: alone, and
        together with other changes."""
        self.loaded(sink, row(1), row(2))
        t = changes()
        if others:
            t.update(row(2, a=5))
        t.insert(row(1, a=7))
        refused = net(t, is_key_proved=False)
        with pytest.raises(TableError, match=r"1 value belongs to more than one row"):
            self.writer(sink).apply(refused, Lsn(200))
        assert self.sorted_rows(sink) == [row(1), row(2)]
        assert self.writer(sink).position() == Lsn(100)
        t = changes().delete({"id": 1}).insert(row(1, a=7)).insert(row(3))
        self.writer(sink).apply(net(t, is_key_proved=False), Lsn(200))
        assert self.sorted_rows(sink) == [row(1, a=7), row(2), row(3)]

    @pytest.mark.parametrize("kind", KEYS)
    def test_keys_are_exact(self, sink: Sink, kind: str) -> None:
        """Each key is written in a separate commit, so that its row can be in a separate file."""
        keys = KEYS[kind]
        schema = pa.schema([pa.field("id", keys.type, nullable=False), ("a", pa.int32())])
        table = TargetTable("public", "keys", schema, ("id",))
        expected: dict[str, int] = {}
        position = 100

        def write(key: pa.Scalar, *actions: str) -> None:
            nonlocal position
            position += 1
            t = ChangesBuilder(schema)
            for action in actions:
                {"I": t.insert, "U": t.update, "D": t.delete}[action]({"id": key, "a": position})
            self.applied(sink, t, position, table=table)
            expected[repr(key.as_py())] = position

        for actions in ("I", "U", "DI"):
            for key in keys:
                write(key, *actions)
        rows = [(repr(one["id"]), one["a"]) for one in self.rows(sink, table)]
        assert sorted(rows) == sorted(expected.items())
        for key in keys:
            write(key, "D")
        assert self.rows(sink, table) == []
