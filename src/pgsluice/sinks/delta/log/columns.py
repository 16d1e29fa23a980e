"""The columns of a Delta table: types, comments, new columns, table features."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, TableFeatures
from deltalake import Field as DeltaField
from deltalake import Schema as DeltaSchema

from pgsluice.definitions.source_tables import TableComments
from pgsluice.errors import TableError
from pgsluice.hints import copy_again
from pgsluice.sinks.lake.staging import stored_rows, stored_schema
from pgsluice.sinks.target import refuse_other_case
from pgsluice.types.nested.variants import ARROW as VARIANT
from pgsluice.types.nested.variants import STORED

GENERATED = "delta.generationExpression"
"""The metadata of a column that Delta computes from others."""
NAIVE_TIMESTAMPS, VARIANTS = "timestampNtz", "variantType"
_FEATURES = {
    NAIVE_TIMESTAMPS: TableFeatures.TimestampWithoutTimezone,
    VARIANTS: TableFeatures.VariantType,
}
"""Table features that types of columns need."""


def existing_schema(handle: DeltaTable) -> pa.Schema:
    """The columns of an open Delta table as Arrow fields, VARIANT as its Arrow type."""
    return arrow_schema(handle.schema())


def written_schema(handle: DeltaTable, given: Sequence[str]) -> pa.Schema:
    """The columns of an open Delta table without generated ones that are not given: deltalake
    computes them."""
    generated = GENERATED.encode()
    return pa.schema(
        [
            field
            for field in existing_schema(handle)
            if field.name in given or generated not in (field.metadata or {})
        ]
    )


def arrow_schema(schema: DeltaSchema) -> pa.Schema:
    """The columns of a Delta schema as Arrow fields, VARIANT as its Arrow type."""
    fields = pa.schema(schema.to_arrow())
    return pa.schema(
        [field.with_type(VARIANT) if field.type == STORED else field for field in fields]
    )


def rows(handle: DeltaTable, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """All rows of a table, with these columns, batch by batch."""
    for batch in pa.RecordBatchReader.from_stream(handle.scan(columns=schema.names)):
        # The engine returns text as views, which pyarrow does not write to Parquet.
        yield batch.select(schema.names).cast(schema)


def as_delta(schema: pa.Schema, table: str) -> pa.Schema:
    """These columns in the Arrow types that Delta returns for them.

    Raises:
        TableError: Delta has no type for a column, or two names differ only by case.
    """
    refuse_other_case(schema.names, table)
    fields = [_delta_field(field, table) for field in schema]
    return arrow_schema(DeltaSchema(fields))


def _delta_field(field: pa.Field, table: str) -> DeltaField:
    try:
        (converted,) = DeltaSchema.from_arrow(pa.schema([field])).fields
    except Exception as error:  # deltalake raises a bare Exception here
        raise TableError(
            f"Delta has no type for column {field.name!r} of table {table} ({field.type})",
            hint=f'in `types` of the subscription, set "{table}.{field.name}" to "string"; then '
            f"copy the table: {copy_again(table)}",
            table=table,
            column=field.name,
        ) from error
    return converted


def schema_string(schema: pa.Schema, before: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Columns as in a ``metaData`` action; those that the action ``before`` has keep their metadata
    (comments, rules and marks of others).

    deltalake reads a VARIANT as a struct of two byte strings, and writes such a struct back as one.
    """
    text = DeltaSchema.from_arrow(schema).to_json()
    parsed = json.loads(text, object_hook=_variant_or_same)
    had = column_metadata(before)
    for field in parsed["fields"]:
        field["metadata"] = had.get(field["name"], field["metadata"])
    return json.dumps(parsed)


def column_metadata(action: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The metadata of each column in a ``metaData`` action."""
    fields = json.loads(action["schemaString"])["fields"] if action else []
    return {field["name"]: field.get("metadata") or {} for field in fields}


def delta_schema(
    schema: pa.Schema, before: Mapping[str, Any] = MappingProxyType({})
) -> DeltaSchema:
    """Columns of Arrow types as the schema that deltalake writes; arguments as of
    :func:`schema_string`."""
    return DeltaSchema.from_json(schema_string(schema, before))


def as_stored(rows: pa.Table) -> pa.Table:
    """Rows in the types of files, which deltalake wants."""
    batches = map(stored_rows, rows.to_batches())
    return pa.Table.from_batches(batches, stored_schema(rows.schema))


def _variant_or_same(parsed: dict[str, Any]) -> dict[str, Any] | str:
    return "variant" if parsed == _VARIANT_AS_STRUCT else parsed


_VARIANT_AS_STRUCT = {
    "type": "struct",
    "fields": [
        {"name": field.name, "type": "binary", "nullable": True, "metadata": {}}
        for field in VARIANT
    ],
}


def comments_of(metadata: Mapping[str, Any]) -> TableComments:
    """The comments of a table and its columns, from its ``metaData`` action."""
    columns = {name: had.get("comment") for name, had in column_metadata(metadata).items()}
    return TableComments(
        metadata.get("description") or "",
        {name: text for name, text in columns.items() if text},
    )


def with_comments(schema: str, columns: Mapping[str, str]) -> str:
    """The columns of a ``metaData`` action with these comments, and no others."""
    parsed = json.loads(schema)
    for field in parsed["fields"]:
        comment = {"comment": columns[field["name"]]} if field["name"] in columns else {}
        others = {k: v for k, v in (field.get("metadata") or {}).items() if k != "comment"}
        field["metadata"] = {**others, **comment}
    return json.dumps(parsed)


def list_features(handle: DeltaTable, schema: pa.Schema) -> bool:
    """Add the features that the types of a table's new columns need, and that it does not have;
    returns whether there were some, which are committed."""
    missing = features_of(schema) - {*(handle.protocol().writer_features or ())}
    if not missing:
        return False
    handle.alter.add_feature(
        [_FEATURES[name] for name in sorted(missing)],
        allow_protocol_versions_increase=True,
        commit_properties=CommitProperties(max_commit_retries=0),
    )
    return True


def features_of(schema: pa.Schema) -> set[str]:
    """The table features that the types of columns need."""
    needed = set()
    for kind in (kind for field in schema for kind in _nested_types(field.type)):
        if pa.types.is_timestamp(kind) and kind.tz is None:
            needed.add(NAIVE_TIMESTAMPS)
        elif kind == VARIANT:
            needed.add(VARIANTS)
    return needed


def _nested_types(kind: pa.DataType) -> Iterator[pa.DataType]:
    yield kind
    for index in range(kind.num_fields):
        yield from _nested_types(kind.field(index).type)


def list_invariants(handle: DeltaTable) -> bool:
    """Add the feature "invariants" to a table that has NOT NULL columns and lists its features;
    returns whether it lacked the feature, which is committed.

    Delta on Spark treats NOT NULL as an invariant. If a table's protocol lists features (it does as
    soon as there is a timestamp without time zone), Spark refuses the table unless this feature is
    among them. deltalake lists only the features that it needs itself.
    """
    listed = handle.protocol().writer_features
    if listed is None or "invariants" in listed:
        return False
    if all(field.nullable for field in handle.schema().fields):
        return False
    handle.alter.add_feature(
        TableFeatures.Invariants, commit_properties=CommitProperties(max_commit_retries=0)
    )
    return True
