"""The sink contract: keys are exact, for every type."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import Sink, TargetTable
from pgsluice.testing.changes import ChangesBuilder
from pgsluice.testing.sink_tests import SinkTests, net

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
"""Keys by type; different ones, of which some are equal to many engines."""


class KeysContract(SinkTests):
    """Each key has one row, whatever the engine holds to be equal."""

    @pytest.mark.parametrize("kind", KEYS)
    def test_keys_are_exact(self, sink: Sink, kind: str) -> None:
        """Each key in a commit of its own, so that its row can lie in a file of its own."""
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
            self.writer(sink, table=table).apply(net(t, table=table), Lsn(position))
            expected[repr(key.as_py())] = position

        for actions in ("I", "U", "DI"):
            for key in keys:
                write(key, *actions)
        rows = [(repr(one["id"]), one["a"]) for one in self.rows(sink, table)]
        assert sorted(rows) == sorted(expected.items())
        for key in keys:
            write(key, "D")
        assert self.rows(sink, table) == []
