"""Tables and columns with other names at the target: the rules of targets, whatever the names."""

from __future__ import annotations

import inspect
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pgsluice.config.values.target_names import TargetNames
from pgsluice.definitions.source_tables import TableComments
from pgsluice.errors import TableError
from pgsluice.lsn import Lsn
from pgsluice.sinks import make_sink
from pgsluice.sinks.contract import Sink, TableHandle, TargetTable
from pgsluice.sinks.fence import TableWriter
from pgsluice.sinks.renamed import RenamingSink
from pgsluice.testing.sink_contract import TABLE, SinkContract, batches, changes, identity, net, row
from pgsluice.testing.sink_tests import SCHEMA

# Of the keyless table, two columns have each other's names.
COLUMNS = {
    "public.t.id": "Nummer der Zeile é",
    "public.t.big": "a",
    "public.t.a": "b",
    "public.keyless.a": "big",
    "public.keyless.big": "a",
}
NAMES = TargetNames({"public": "Läden", "public.t": "t'1", **COLUMNS})


def made(folder: Path, merge: str, **more: Any) -> Sink:
    path = f"{folder}/lake/{{schema}}/{{table}}"
    options = {"type": "delta", "path": path, "merge": merge, "cache_dir": f"{folder}/cache"}
    return make_sink({**options, "rename": dict(NAMES.rename), **more})


def opened(sink: Sink, table: TargetTable = TABLE) -> DeltaTable:
    return DeltaTable(sink.location(table.namespace, table.name))


class RenamedContract(SinkContract):
    merge: ClassVar[Literal["on_read", "on_write"]]

    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        return made(tmp_path, self.merge)

    def rows(self, sink: Sink, table: TargetTable = TABLE) -> list[dict[str, Any]]:
        assert isinstance(sink, RenamingSink)
        given = {name: column for column, name in NAMES.columns(table.title).items()}
        read = pa.RecordBatchReader.from_stream(opened(sink, table).scan()).read_all()
        return read.rename_columns([given.get(n, n) for n in read.schema.names]).to_pylist()


@pytest.mark.soak
class TestOnRead(RenamedContract):
    merge = "on_read"


@pytest.mark.soak
class TestOnWrite(RenamedContract):
    merge = "on_write"


def writer(sink: Sink) -> TableWriter:
    return TableWriter(sink, TABLE, identity())


@pytest.mark.parametrize("merge", ["on_read", "on_write"])
def test_readers_see_the_names_at_the_target_and_writers_those_of_the_source(
    tmp_path: Path, merge: str
) -> None:
    sink = pickle.loads(pickle.dumps(made(tmp_path, merge)))
    writer(sink).load(batches(row(1), row(2)), Lsn(100))
    t = changes()
    t.update(row(1, 7))
    t.delete({"id": 2})
    t.insert(row(3))
    changing = writer(sink)
    changing.apply(net(t), Lsn(110))
    assert changing.schema() == SCHEMA
    assert opened(sink).schema().to_arrow().names == ["Nummer der Zeile é", "b", "a"]
    table = pa.RecordBatchReader.from_stream(opened(sink).scan()).read_all()
    assert sorted(table.to_pylist(), key=lambda each: int(each["b"])) == [
        {"Nummer der Zeile é": 3, "b": 0, "a": "big"},
        {"Nummer der Zeile é": 1, "b": 7, "a": "big"},
    ]
    assert opened(sink).table_uri.rstrip("/").endswith("/L%C3%A4den/t~271") or "Läden/t~271" in str(
        sink.location("public", "t")
    )


def test_the_contract_has_no_other_types_than_those_whose_columns_get_other_names() -> None:
    with_columns = {
        "str", "pa.Field", "pa.Schema", "pa.RecordBatch", "NetChanges", "AddedColumn",
        "TableComments", "TargetContent", "Iterable", "Sequence",
    }  # fmt: skip
    without = {
        "None", "bool", "int", "float", "object", "Callable", "AbstractContextManager", "Lsn",
        "Applied", "StagedRows", "StagedChanges", "CommitMarker",
    }  # fmt: skip
    methods = [each for each in vars(TableHandle).values() if inspect.isfunction(each)]
    texts = [text for method in methods for text in method.__annotations__.values()]
    assert with_columns <= {*re.findall(r"[\w.]+", " ".join(texts))} <= with_columns | without


def test_partitions_and_comments_have_the_names_of_the_source_in_settings(tmp_path: Path) -> None:
    terms = {"partition_by": {"public.t": ["a"]}, "cluster_by": {"public.t": ["id"]}}
    sink = made(tmp_path, "on_read", **terms)
    writer(sink).load(batches(row(1, 1), row(2, 2)), Lsn(100))
    assert opened(sink).metadata().partition_columns == ["b"]
    writer(sink).comment(TableComments("rows", {"id": "its number"}))
    fields = {each.name: each.metadata.get("comment") for each in opened(sink).schema().fields}
    assert fields == {"Nummer der Zeile é": "its number", "b": None, "a": None}
    assert not writer(sink).comment(TableComments("rows", {"id": "its number"}))


def test_errors_name_the_table_and_its_key_as_the_source_does(tmp_path: Path) -> None:
    sink = made(tmp_path, "on_read")
    unproved = TargetTable("public", "t", SCHEMA, ("id",), is_key_proved=False)
    with pytest.raises(TableError, match=r"key \(id\) of table public\.t is not unique"):
        TableWriter(sink, unproved, identity()).load(batches(row(1), row(1)), Lsn(100))
    writer(sink).load(batches(row(1)), Lsn(100))
    t = changes()
    t.insert(row(1))
    with pytest.raises(TableError, match=r"key \(id\) of table public\.t is not unique"):
        writer(sink).apply(net(t, is_key_proved=False), Lsn(110))


def test_errors_of_a_target_also_name_the_column_as_the_source_does(tmp_path: Path) -> None:
    sink = made(tmp_path, "on_read", partition_by={"public.t": ["big"]})
    with pytest.raises(TableError) as error:  # the source has another column "a"
        writer(sink).load(batches(row(1, big="")), Lsn(100))
    assert "in the partition column a\n  a is the target's name of column big" in str(error.value)
    assert error.value.column == "big"
    writer(sink).load(batches(row(1)), Lsn(100))
    t = changes()
    t.insert(row(2, big=""))
    with pytest.raises(TableError, match="a is the target's name of column big"):
        writer(sink).apply(net(t), Lsn(110))


def test_errors_of_the_source_keep_their_column(tmp_path: Path) -> None:
    def unfit() -> Iterator[pa.RecordBatch]:
        yield from batches(row(1))
        raise TableError("values of column a do not fit", column="a")

    with pytest.raises(TableError) as error:
        writer(made(tmp_path, "on_read")).load(unfit(), Lsn(100))
    assert (str(error.value), error.value.column) == ("values of column a do not fit", "a")
