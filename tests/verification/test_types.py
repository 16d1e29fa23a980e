"""Every type: decoded values hash as at the source, and the smallest change of one does not."""

from __future__ import annotations

from dataclasses import replace
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.support.arrow_rows import ArrowRows
from tests.support.databases import MakeDatabase
from tests.support.typed_tables import fill, slot_of

from pgsluice.columnar import RelationChanges
from pgsluice.types import TypeOptions
from pgsluice.verification import ComparedTable, DeltaRows, TargetRows, compare

Connection = psycopg.Connection[Any]
pytestmark = pytest.mark.pg(">= 14")


def test_decoded_values_hash_as_at_the_source(database: MakeDatabase, tmp_path: Path) -> None:
    wrong = []
    with slot_of(database()) as slot:
        tables = fill(slot)
        messages = slot.messages(binary=False)
        for numeric in ("string", "double", "decimal(38,10)"):
            decoded = slot.decode(messages, options=TypeOptions(numeric=numeric))
            of_numeric = {table for table, case in tables.items() if "numeric" in case.type}
            for table in tables if numeric == "string" else of_numeric:
                for column in ("v", "a", "c"):
                    name = f"{tables[table].type} as {numeric}, column {column}"
                    rows = fitting(decoded[table], column)
                    ids = rows["id"]
                    there = target(tmp_path / f"{table}_{column}_{numeric}", rows)
                    if not equal(slot.connection, table, ids, there):
                        wrong.append(f"{name}: differs")
                    other = changed(rows)
                    if other is not None and equal(slot.connection, table, ids, ArrowRows(other)):
                        wrong.append(f"{name}: a change is not seen")
    assert not wrong, "\n".join(wrong)


def fitting(changes: RelationChanges, column: str) -> pa.Table:
    """The key and one column of the rows whose value fits the column's type."""
    number = changes.schema.get_field_index(column)
    unfit = changes.new.unfit.get(number, np.zeros(len(changes), np.bool_))
    keys = changes.new.columns[changes.schema.get_field_index("id")]
    table = pa.table({"id": keys, column: changes.new.columns[number]})
    return table.filter(pa.array(~unfit))


def target(folder: Path, rows: pa.Table) -> TargetRows:
    """A Delta table; rows in memory where only text is stored, or a date that deltalake cannot
    write."""
    if pa.types.is_string(rows.schema.types[1]):
        return ArrowRows(rows)
    try:
        write_deltalake(folder, rows)
    except Exception:
        return ArrowRows(rows)
    return DeltaRows(folder)


def equal(connection: Connection, table: str, ids: pa.Array, rows: TargetRows) -> bool:
    row_filter = f"id IN ({', '.join(map(str, ids.to_pylist()))})"
    columns = rows.schema.names
    compared = replace(ComparedTable.find(connection, f"public.{table}"), row_filter=row_filter)
    return compare(connection, compared, rows, columns=columns).equal


def changed(rows: pa.Table) -> pa.Table | None:
    """The same rows with the smallest change of the first value that is not NULL."""
    column = rows.column(1).combine_chunks()
    places = np.flatnonzero(column.is_valid())
    if not len(places):
        return None
    place = int(places[0])
    other = _other(column[place])
    values = pa.concat_arrays([column.slice(0, place), other, column.slice(place + 1)])
    return rows.set_column(1, rows.schema.names[1], values)


def _other(value: pa.Scalar) -> pa.Array:
    """One value that differs from another as little as its type allows."""
    kind = value.type
    if pa.types.is_list(kind):
        elements = pa.concat_arrays([value.values, pa.nulls(1, kind.value_type)])
        return pa.ListArray.from_arrays([0, len(elements)], elements, type=kind)
    if pa.types.is_date(kind):
        return pa.array([value.cast(pa.int32()).as_py() ^ 1], pa.int32()).cast(kind)
    if pa.types.is_timestamp(kind):
        return pa.array([value.cast(pa.int64()).as_py() ^ 1], pa.int64()).cast(kind)
    if pa.types.is_floating(kind):
        number = np.array([value.as_py()], kind.to_pandas_dtype())
        is_finite = np.isfinite(number)
        return pa.array(np.where(is_finite, np.nextafter(number, -np.inf), 0).astype(number.dtype))
    known = value.as_py()
    if pa.types.is_boolean(kind):
        other: Any = not known
    elif pa.types.is_integer(kind):
        other = known ^ 1
    elif pa.types.is_decimal(kind):
        unit = Decimal((int(known > 0), (1,), -kind.scale))
        other = Context(prec=76).add(known, unit)
    else:
        other = known + (b"\x00" if pa.types.is_binary(kind) else " ")
    return pa.array([other], kind)
