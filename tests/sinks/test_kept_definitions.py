"""What others have given a Delta table is the same after each write of pgsluice, or the write is
refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.support.delta_spark import delta_spark

from pgsluice.definitions.source_tables import TableComments
from pgsluice.errors import TableError
from pgsluice.lsn import Lsn
from pgsluice.sinks.contract import AddedColumn, TargetTable
from pgsluice.sinks.delta.config import Merge
from pgsluice.sinks.delta.log.reading import KNOWN_TABLES, newest_snapshot
from pgsluice.sinks.delta.log.snapshot import DeltaSnapshot
from pgsluice.sinks.delta.sink import DeltaSink
from pgsluice.sinks.fence import TableWriter
from pgsluice.testing.sink_contract import SCHEMA, TABLE, batches, changes, identity, net, row

WIDER = pa.schema([*SCHEMA, ("c", pa.int32())])


@dataclass(frozen=True)
class Given:
    """What another program adds to a table: to its properties, and to the metadata of its columns.

    Attributes:
        features: table features; with ``versions``, the versions that need them.
        computed: a column that Delta computes, with its expression.
        domain: a domain of metadata.
    """

    properties: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    versions: tuple[int, int] | None = None
    computed: Mapping[str, str] = field(default_factory=dict)
    domain: str | None = None
    others: Mapping[str, str] = field(default_factory=dict)

    def add(self, sink: DeltaSink) -> None:
        """Commit it, as another program does."""
        old = snapshot_of(sink)
        columns = json.loads(old.metadata["schemaString"])
        for column in columns["fields"]:
            column["metadata"] = {**column["metadata"], **self.metadata.get(column["name"], {})}
        columns["fields"] += [
            {
                "name": name,
                "type": "integer",
                "nullable": True,
                "metadata": {"delta.generationExpression": expression},
            }
            for name, expression in self.computed.items()
        ]
        metadata = {
            **old.metadata,
            **self.others,
            "schemaString": json.dumps(columns),
            "configuration": {**old.configuration, **self.properties},
        }
        protocol = {**old.protocol}
        if self.features:
            listed = old.protocol.get("writerFeatures") or ()
            writers = sorted({"invariants", *listed, *self.features})
            protocol |= {"minWriterVersion": 7, "writerFeatures": writers}
        elif self.versions is not None and "writerFeatures" not in old.protocol:
            protocol |= dict(
                zip(("minReaderVersion", "minWriterVersion"), self.versions, strict=True)
            )
        actions: list[dict[str, Any]] = [
            {"commitInfo": {"operation": "SET TBLPROPERTIES"}},
            {"protocol": protocol},
            {"metaData": metadata},
        ]
        if self.domain is not None:
            has = {"domain": self.domain, "configuration": "{}", "removed": False}
            actions.append({"domainMetadata": has})
        log = Path(location(sink), "_delta_log", f"{old.version + 1:020}.json")
        log.write_text("".join(f"{json.dumps(action)}\n" for action in actions))


MAPPING = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "3"}
GIVEN = {
    "metadata of columns": Given(
        metadata={"id": {"level": 3}, "a": {"pii": "yes", "in": {"b": [1]}}}
    ),
    "comments": Given(metadata={"a": {"comment": "of others"}}, others={"description": "theirs"}),
    "a length": Given(metadata={"big": {"__CHAR_VARCHAR_TYPE_STRING": "varchar(20)"}}),
    "a name": Given(others={"name": "t"}),
    "a property": Given({"owner": "sales"}),
    "a retention": Given({"delta.logRetentionDuration": "interval 900 hours"}),
    "a feed of changes": Given({"delta.enableChangeDataFeed": "true"}, versions=(1, 4)),
    "append-only": Given({"delta.appendOnly": "true"}),
    "a constraint": Given({"delta.constraints.small": "id < 100"}, versions=(1, 3)),
    "an invariant": Given(
        metadata={"a": {"delta.invariants": '{"expression": {"expression": "a < 10"}}'}}
    ),
    "a generated column": Given(computed={"g": "a + 1"}, versions=(1, 4)),
    "a generated column of the source": Given(
        metadata={"a": {"delta.generationExpression": "CAST(id AS INT)"}}, versions=(1, 4)
    ),
    "an identity": Given(
        metadata={
            "id": {
                "delta.identity.start": 1,
                "delta.identity.step": 1,
                "delta.identity.allowExplicitInsert": True,
            }
        },
        versions=(1, 6),
    ),
    "a default": Given(metadata={"a": {"CURRENT_DEFAULT": "7"}}, features=("allowColumnDefaults",)),
    "column mapping": Given(
        MAPPING,
        {
            name: {"delta.columnMapping.id": i, "delta.columnMapping.physicalName": name}
            for i, name in enumerate(SCHEMA.names)
        },
        versions=(2, 5),
    ),
    "clustering": Given(features=("clustering", "domainMetadata"), domain="delta.clustering"),
    "a domain": Given(features=("domainMetadata",), domain="theirs"),
    "row tracking": Given(
        {"delta.enableRowTracking": "true"}, features=("rowTracking",), domain="delta.rowTracking"
    ),
    "times of commits": Given(
        {"delta.enableInCommitTimestamps": "true"}, features=("inCommitTimestamp",)
    ),
    "an unknown feature": Given(features=("ofTomorrow",)),
}


@pytest.fixture
def sink(tmp_path: Path) -> DeltaSink:
    return made(tmp_path, "on_write")


def made(folder: Path, merge: Merge) -> DeltaSink:
    """A sink with a table of two rows."""
    sink = DeltaSink(f"{folder}/{{table}}", merge=merge, cache_dir=f"{folder}/cache")
    writer_of(sink).load(batches(row(1, 1), row(2, 2)), Lsn(100))
    return sink


def location(sink: DeltaSink) -> str:
    return sink.location("public", "t")


def writer_of(sink: DeltaSink, copy: int = 1, table: TargetTable = TABLE) -> TableWriter:
    return TableWriter(sink, table, identity(copy=copy))


def snapshot_of(sink: DeltaSink) -> DeltaSnapshot:
    KNOWN_TABLES.clear()
    found = newest_snapshot(sink.folder("public", "t"))
    assert found is not None
    return found


def rows_of(sink: DeltaSink) -> list[dict[str, Any]]:
    scan = DeltaTable(location(sink)).scan()
    return sorted(
        pa.RecordBatchReader.from_stream(scan).read_all().to_pylist(), key=lambda one: one["id"]
    )


def copied(sink: DeltaSink) -> None:
    writer_of(sink, 2).load(batches(row(1, 1), row(3, 3)), Lsn(200))


def copied_with_another_column(sink: DeltaSink, copy: int = 2) -> None:
    rows = batches({**row(1, 1), "c": 5}, schema=WIDER)
    writer_of(sink, copy, replace(TABLE, schema=WIDER)).load(rows, Lsn(200))


def changed(sink: DeltaSink) -> None:
    t = changes()
    t.update(row(1, 1, "new"))
    t.insert(row(3, 3))
    writer_of(sink).apply(net(t), Lsn(200))


def added_to(sink: DeltaSink) -> None:
    writer_of(sink).apply(net(changes().insert(row(3, 3))), Lsn(200))


def altered(value: int | None) -> Callable[[DeltaSink], None]:
    def alter(sink: DeltaSink) -> None:
        writer = writer_of(sink)
        writer.position()
        writer.alter([AddedColumn(pa.field("c", pa.int32()), pa.scalar(value, pa.int32()))], ())

    return alter


def widened(sink: DeltaSink) -> None:
    writer = writer_of(sink)
    writer.position()
    writer.alter((), [pa.field("a", pa.int64())])


def commented(sink: DeltaSink) -> None:
    writer = writer_of(sink)
    writer.position()
    writer.comment(TableComments("", {"big": "of the source"}))


def maintained(sink: DeltaSink) -> None:
    writer = writer_of(sink)
    writer.position()
    writer.maintain([])


def merged_in_the_other_way(sink: DeltaSink) -> None:
    way: Merge = "on_read" if sink.merge == "on_write" else "on_write"
    sink = replace(sink, merge=way)
    changed(sink)
    writer = writer_of(sink)
    writer.position()
    writer.maintain([])


def with_properties(sink: DeltaSink) -> None:
    changed(replace(sink, table_properties={"public.t": {"ours": "too"}}))


WRITES = {
    "copy": copied,
    "copy with another column": copied_with_another_column,
    "batch": changed,
    "inserts": added_to,
    "new column": altered(None),
    "new column with a value": altered(7),
    "wider column": widened,
    "comment": commented,
    "maintenance": maintained,
    "the other way of merging": merged_in_the_other_way,
    "properties": with_properties,
}


def definition_of(sink: DeltaSink) -> dict[str, Any]:
    """All that others may have given, flat."""
    old = snapshot_of(sink)
    listed = (old.protocol.get("readerFeatures") or (), old.protocol.get("writerFeatures") or ())
    domains = {}
    for commit in sorted(Path(location(sink), "_delta_log").glob("*.json")):
        for line in commit.read_text().splitlines():
            if (domain := json.loads(line).get("domainMetadata")) is not None:
                domains[f"domain {domain['domain']}"] = domain
    return {
        **{
            f"{column['name']}: {name}": value
            for column in json.loads(old.metadata["schemaString"])["fields"]
            for name, value in column["metadata"].items()
        },
        **{f"property {name}": value for name, value in old.configuration.items()},
        **{f"feature {name}": True for names in listed for name in names},
        **{name: old.metadata.get(name) for name in ("name", "description", "partitionColumns")},
        **domains,
    }


def refusal_of(write: Callable[[DeltaSink], None], sink: DeltaSink) -> TableError | None:
    try:
        write(sink)
    except TableError as error:
        return error
    return None


OURS = {
    "property delta.enableDeletionVectors",
    "property pgsluice.merge",
    "feature deletionVectors",
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("merge", ["on_write", "on_read"])
def test_it_is_kept_or_the_write_is_refused(
    tmp_path: Path,
    merge: Merge,
    write: Callable[[DeltaSink], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pgsluice.sinks.delta.upkeep.MANY_COMMITS", 1)  # maintenance does all
    lost = {}
    for name, given in GIVEN.items():
        sink = made(tmp_path / name, merge)
        given.add(sink)
        before, rows = definition_of(sink), rows_of(sink)
        refused = refusal_of(write, sink)
        if refused is not None:
            assert "Delta table" in str(refused)
            assert "pgsluice copy CONFIG public.t" in (refused.hint or "")
            assert rows_of(sink) == rows
        after = definition_of(sink)
        lost[name] = {n for n, value in before.items() if after.get(n) != value} - OURS
    assert {name: names for name, names in lost.items() if names} == {}


class TestGeneratedColumns:
    def test_one_that_the_source_lacks_is_computed(self, sink: DeltaSink) -> None:
        Given(computed={"g": "a + 1"}, versions=(1, 4)).add(sink)
        copied(sink)
        assert rows_of(sink) == [{**row(1, 1), "g": 2}, {**row(3, 3), "g": 4}]
        t = changes()
        t.update(row(1, 5))
        t.insert(row(4, 6))
        writer_of(sink, 2).apply(net(t), Lsn(300))
        writer_of(sink, 2).apply(net(changes().insert(row(5, 8))), Lsn(400))
        assert [found["g"] for found in rows_of(sink)] == [6, 4, 7, 9]
        with pytest.raises(TableError, match="has the generated column 'g', which it would lose"):
            copied_with_another_column(sink, 3)

    def test_one_of_the_source_has_to_have_the_computed_values(self, sink: DeltaSink) -> None:
        GIVEN["a generated column of the source"].add(sink)
        with pytest.raises(TableError, match="violate one of its constraints"):
            writer_of(sink, 2).load(batches(row(1, 9)), Lsn(200))
        copied(sink)
        assert rows_of(sink) == [row(1, 1), row(3, 3)]


def test_rules_that_deltalake_does_not_write_are_named(sink: DeltaSink) -> None:
    GIVEN["an unknown feature"].add(sink)
    with pytest.raises(TableError, match="ofTomorrow"):
        changed(sink)
    with pytest.raises(TableError, match="ofTomorrow"):
        copied(sink)


def test_a_column_with_another_name_in_the_files_is_refused(sink: DeltaSink) -> None:
    names = {"id": "id", "a": "col-1", "big": "big"}
    metadata = {
        name: {"delta.columnMapping.id": i, "delta.columnMapping.physicalName": physical}
        for i, (name, physical) in enumerate(names.items())
    }
    Given(MAPPING, metadata, versions=(2, 5)).add(sink)
    for write in (changed, copied):
        with pytest.raises(TableError, match=r"column mapping"):
            write(sink)


@pytest.mark.soak  # make soak AREA=long
def test_spark_reads_what_it_gave_a_table_after_copies(tmp_path: Path) -> None:
    given = {
        "a mapping": "ALTER TABLE {} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
        "a constraint": "ALTER TABLE {} ADD CONSTRAINT small CHECK (id < 100)",
        "a generated column": "REPLACE TABLE {} (id BIGINT NOT NULL, a INT, big STRING,"
        " g INT GENERATED ALWAYS AS (a + 1)) USING delta",
    }
    with delta_spark(tmp_path) as spark:
        for name, statement in given.items():
            sink = made(tmp_path / name, "on_write")
            table = f"delta.`{location(sink)}`"
            spark.sql(statement.format(table))
            before = definition_of(sink)
            copied(sink)
            assert before.items() <= definition_of(sink).items(), name
            computed = {"g": 2} if "generated" in name else {}
            rows = spark.rows(f"SELECT * FROM {table} WHERE id = 1")
            assert rows == [{**row(1, 1), **computed}], name
