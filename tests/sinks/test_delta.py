"""Delta tables, engine native."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from pgsluice.sinks.contract import Sink, TargetTable
from pgsluice.sinks.delta import DeltaSink
from pgsluice.testing.sink_contract import TABLE, SinkContract


class TestContract(SinkContract):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        return DeltaSink(f"{tmp_path}/lake/{{schema}}/{{table}}")

    def rows(self, sink: Sink, table: TargetTable = TABLE) -> list[dict[str, Any]]:
        handle = DeltaTable(sink.location(table.namespace, table.name))
        return handle.to_pyarrow_table().to_pylist()
