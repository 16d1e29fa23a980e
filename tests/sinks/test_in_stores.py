"""The Delta sink's contract where the tables lie in an object store, by each way of merging.

Which values keys can have is not asked again: it does not depend on where they lie.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.support.object_stores import ObjectStore

from pgsluice.sinks.contract import Sink, TargetTable
from pgsluice.sinks.delta.sink import DeltaSink
from pgsluice.testing.sink_changes import ChangesContract
from pgsluice.testing.sink_columns import ColumnsContract
from pgsluice.testing.sink_copies import CopiesContract
from pgsluice.testing.sink_staged_changes import StagedChangesContract
from pgsluice.testing.sink_staging import StagingContract
from pgsluice.testing.sink_tests import TABLE


@pytest.mark.parametrize("merge", ["on_read", "on_write"])
class TestContract(
    CopiesContract, ChangesContract, ColumnsContract, StagingContract, StagedChangesContract
):
    @pytest.fixture
    def sink(self, merge: Any, s3_store: ObjectStore, tmp_path: Path) -> Sink:
        return DeltaSink(
            f"s3://lake/{uuid.uuid4()}/{{schema}}/{{table}}",
            merge=merge,
            cache_dir=f"{tmp_path}/keys",
            storage_options=s3_store.options,
        )

    def rows(self, sink: Sink, table: TargetTable = TABLE) -> list[dict[str, Any]]:
        assert isinstance(sink, DeltaSink)
        location = sink.location(table.namespace, table.name)
        scan = DeltaTable(location, storage_options=sink.storage_options).scan()
        return pa.RecordBatchReader.from_stream(scan).read_all().to_pylist()
