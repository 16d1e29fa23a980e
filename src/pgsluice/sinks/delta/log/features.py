"""Table features: which ones a table needs, and how deletion vectors are enabled and disabled.

Source: the Delta protocol, "Table Features" and "Valid Feature Names in Table Features".
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa

from pgsluice.errors import TableError
from pgsluice.hints import copy_again
from pgsluice.sinks.delta.log.columns import (
    GENERATED,
    NAIVE_TIMESTAMPS,
    VARIANTS,
    column_metadata,
    features_of,
    schema_string,
)
from pgsluice.sinks.delta.log.layout import with_layout
from pgsluice.sinks.delta.log.snapshot import DeltaSnapshot
from pgsluice.sinks.joined_columns import another_target
from pgsluice.sinks.lake.layout.layout import Layout

VECTORS = "deletionVectors"
_PROPERTY = "delta.enableDeletionVectors"
_OURS = "pgsluice.merge"
"""The property of a table that has deletion vectors because of ``merge``."""
_CONSTRAINT = "delta.constraints."
_MAPPING = "column mapping"
# Features that a writer version without a list of features had, by the first such version.
_OF_OLD_WRITERS = (
    (2, "appendOnly"),
    (2, "invariants"),
    (3, "checkConstraints"),
    (4, "changeDataFeed"),
    (4, "generatedColumns"),
)

_KNOWN_FEATURES = frozenset(
    {
        VECTORS,
        NAIVE_TIMESTAMPS,
        VARIANTS,
        "appendOnly",
        "invariants",
        "checkConstraints",
        "generatedColumns",
        "changeDataFeed",
        "vacuumProtocolCheck",
    }
)
"""Table features that our commits respect, or that take effect only through what :func:`_demands`
checks."""


def has_rules_of_others(snapshot: DeltaSnapshot) -> bool:
    """Whether a table that is merged on write has rules that only deltalake enforces.

    A change data feed counts as one: for rewritten files, it has to record which of their rows
    changed.
    """
    return bool(_unknown_rules(snapshot)) or has_change_data_feed(snapshot)


def has_row_rules(snapshot: DeltaSnapshot) -> bool:
    """Whether the table has constraints or rules for columns, which each row has to fulfil."""
    has_constraints = any(name.startswith(_CONSTRAINT) for name in snapshot.configuration)
    return has_constraints or bool(_column_rules(snapshot.metadata["schemaString"]))


def has_change_data_feed(snapshot: DeltaSnapshot) -> bool:
    """Whether readers can query which rows of the table changed."""
    return snapshot.configuration.get("delta.enableChangeDataFeed") == "true"


def refuse_unknown_rules(snapshot: DeltaSnapshot, table: str, *, is_log: bool = False) -> None:
    """Refuse a table with protocol features or properties that our commits do not support.

    Args:
        is_log: the table is a change log.

    Raises:
        TableError: the table has such a rule; the message names it.
    """
    if rules := _unknown_rules(snapshot):
        rule = rules[0]
        way = "change logs" if is_log else "merge-on-read"
        by_deltalake = f'set merge_tables = {{ "{table}" = "on_write" }} in the sink, or '
        raise TableError(
            f"the Delta table at {snapshot.folder.uri} has {rule}, which pgsluice does not support "
            f"with {way}",
            hint=("" if is_log else by_deltalake)
            + f"remove {rule} from the Delta table; then copy the table: {copy_again(table)}",
            table=table,
            location=snapshot.folder.uri,
        )


def refuse_partitioned(snapshot: DeltaSnapshot, table: str) -> None:
    """Refuse a partitioned table with rules that only deltalake keeps.

    Raises:
        TableError: always.
    """
    rule = next(iter(_unknown_rules(snapshot)), "a change data feed")
    raise TableError(
        f"the Delta table at {snapshot.folder.uri} has {rule}, which pgsluice does not support "
        "with partition_by",
        hint=f"remove {rule} from the Delta table, or the table from partition_by in the sink; "
        f"then copy the table: {copy_again(table)}",
        table=table,
        location=snapshot.folder.uri,
    )


def refuse_renamed_columns(snapshot: DeltaSnapshot, table: str) -> None:
    """Refuse a table whose columns have other names in its files, which only deltalake knows.

    Raises:
        TableError: there is such a column.
    """
    for name, metadata in column_metadata(snapshot.metadata).items():
        if metadata.get("delta.columnMapping.physicalName", name) != name:
            raise TableError(
                f"column {name!r} of the Delta table at {snapshot.folder.uri} has another name in "
                "the table's files (column mapping), which pgsluice does not support",
                hint=another_target(table),
                table=table,
                location=snapshot.folder.uri,
            )


def keeps_columns(snapshot: DeltaSnapshot, schema: pa.Schema, table: str) -> bool:
    """Whether a table has just these columns, and perhaps generated ones of others.

    Raises:
        TableError: it has other columns, and rules that would be lost with the new ones.
    """
    had = column_metadata(snapshot.metadata)
    more = [name for name in had if GENERATED in had[name] and name not in schema.names]
    if {field for field in snapshot.schema if field.name not in more} == {*schema}:
        return True
    rules = [f"the generated column {name!r}" for name in more]
    rules += [rule for rule in _demands(snapshot) if rule == _MAPPING]
    if rules:
        raise TableError(
            f"the Delta table at {snapshot.folder.uri} has {rules[0]}, which it would lose with "
            f"the new columns of table {table}",
            hint=f"remove {rules[0]} from the Delta table, and copy the table: "
            f"{copy_again(table)}; or {another_target(table)}",
            table=table,
            location=snapshot.folder.uri,
        )
    return False


def _unknown_rules(snapshot: DeltaSnapshot) -> list[str]:
    """The table's rules that our commits do not support."""
    features = {
        *(snapshot.protocol.get("readerFeatures") or ()),
        *(snapshot.protocol.get("writerFeatures") or ()),
    }
    unknown = [f"the table feature {name}" for name in sorted(features - _KNOWN_FEATURES)]
    return unknown or list(_demands(snapshot)) if snapshot.metadata else []


def _demands(snapshot: DeltaSnapshot) -> Iterator[str]:
    """Rules of the table that our commits would violate."""
    if (snapshot.metadata.get("partitionColumns") or []) != snapshot.layout.partition_columns:
        yield "partition columns"
    for name, value in snapshot.configuration.items():
        if name == "delta.appendOnly" and value == "true":
            yield "the property delta.appendOnly"
        if name.startswith(_CONSTRAINT):
            yield f"a constraint ({name.removeprefix(_CONSTRAINT)})"
        if name == "delta.columnMapping.mode" and value != "none":
            yield _MAPPING
    yield from _column_rules(snapshot.metadata["schemaString"])


@lru_cache(maxsize=2000)
def _column_rules(schema: str) -> tuple[str, ...]:
    """The rules in a table's column definitions, which are checked at each batch."""
    return tuple(
        f"a rule for column {column['name']!r} ({name})"
        for column in json.loads(schema)["fields"]
        for name in column.get("metadata") or {}
        if name in ("delta.invariants", GENERATED)
    )


def definition(
    snapshot: DeltaSnapshot,
    *,
    schema: pa.Schema | None,
    layout: Layout,
    properties: Mapping[str, str | None],
    configured: Mapping[str, str],
    allows_vectors: bool,
) -> list[dict[str, Any]]:
    """Actions that define a table; its rows do not change.

    Args:
        snapshot: the table, or the place for a new one; its existing definition is kept.
        schema: the new columns, in Delta's types; metadata of existing ones is kept. None: the
            existing columns.
        layout: which rows share files from now on.
        properties: the properties of a new table.
        configured: properties that the table has from now on.
        allows_vectors: enable deletion vectors, if they are not enabled yet.
    """
    metadata = snapshot.metadata
    columns = metadata.get("schemaString")
    if schema is not None:
        columns = schema_string(layout.with_parts(schema), metadata)
    if not metadata:
        metadata = {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "configuration": {k: v for k, v in properties.items() if v is not None},
            "createdTime": int(time.time() * 1000),
        }
    metadata = with_layout(metadata, layout)
    vectors = {_PROPERTY: "true", _OURS: "on_read"} if allows_vectors else {}
    configuration = {**metadata["configuration"], **configured, **vectors}
    needed = features_of(schema or pa.schema([])) | ({VECTORS} if allows_vectors else set())
    return [
        {"protocol": _protocol_with(needed, snapshot.protocol)},
        {"metaData": {**metadata, "schemaString": columns, "configuration": configuration}},
    ]


def _protocol_with(needed: set[str], old: Mapping[str, Any]) -> dict[str, Any]:
    """A table's protocol with more features; without any, old readers can open it."""
    listed = old.get("writerFeatures")
    if listed is None and not needed:
        first = {"minReaderVersion": 1, "minWriterVersion": 2}
        return {**first, **{name: value for name, value in old.items() if value is not None}}
    if listed is None:
        first = old.get("minWriterVersion", 2)
        listed = [name for version, name in _OF_OLD_WRITERS if first >= version]
    readers = {*(old.get("readerFeatures") or ()), *needed}
    return {
        "minReaderVersion": 3 if readers else old.get("minReaderVersion", 1),
        "minWriterVersion": 7,
        **({"readerFeatures": sorted(readers)} if readers else {}),
        # Spark holds NOT NULL to be an invariant.
        "writerFeatures": sorted({*listed, "invariants", *needed}),
    }


def was_merged_on_read(configuration: Mapping[str, str | None]) -> bool:
    """Whether a table with these properties has deletion vectors because of ``merge``; others may
    also have enabled them."""
    return configuration.get(_OURS) == "on_read"


def definition_without_vectors(snapshot: DeltaSnapshot) -> list[dict[str, Any]]:
    """Actions that disable deletion vectors for a table."""
    old = snapshot.protocol
    readers = sorted({*(old.get("readerFeatures") or ())} - {VECTORS})
    protocol = {
        "minReaderVersion": 3 if readers else 1,
        "minWriterVersion": 7,
        **({"readerFeatures": readers} if readers else {}),
        "writerFeatures": sorted({*(old.get("writerFeatures") or ())} - {VECTORS}),
    }
    ours = (_PROPERTY, _OURS)
    configuration = {k: v for k, v in snapshot.configuration.items() if k not in ours}
    metadata = {**snapshot.metadata, "configuration": configuration}
    return [{"protocol": protocol}, {"metaData": metadata}]
