"""A row that is copied equals the same row that is streamed, for every type of the registry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.columnar.type_cases import NAMES_OF_OIDS
from tests.support.arrays import assert_identical
from tests.support.databases import MakeDatabase
from tests.support.typed_tables import Slot, fill, slot_of

from pgsluice.catalog.tables.relations import fetch_relation_facts
from pgsluice.columnar import RelationChanges
from pgsluice.errors import TableError
from pgsluice.facts import RelationFacts
from pgsluice.sinks.target import TableOptions, column_type, target_table
from pgsluice.snapshots.ranges import WHOLE
from pgsluice.snapshots.reader import TableQuery, fitting_batch, table_reader
from pgsluice.snapshots.snapshot import Snapshot, temporary_snapshot
from pgsluice.types import TypeOptions

pytestmark = pytest.mark.pg(">= 14")


def fill_with_names(slot: Slot) -> list[str]:
    """A table for each type whose text is a name of something in the catalog."""
    (user,) = slot.connection.execute("SELECT current_user").fetchone() or ("",)
    tables = []
    for number, (type_name, value) in enumerate(NAMES_OF_OIDS.items()):
        table = f"t_name_{number}"
        slot.connection.execute(
            f"CREATE TABLE public.{table} (id int PRIMARY KEY, v {type_name}, a {type_name}[])"
        )
        slot.connection.execute(
            f"INSERT INTO public.{table} SELECT 1, v::{type_name}, ARRAY[v::{type_name}]"
            " FROM unnest(%s::text[]) AS t (v)",
            [[value.replace("{user}", user)]],
        )
        tables.append(table)
    return tables


def test_a_copied_row_equals_the_row_of_the_stream(database: MakeDatabase) -> None:
    shop = database()
    with slot_of(shop) as slot:
        titles = {table: case.type for table, case in fill(slot).items()}
        titles |= {table: table for table in fill_with_names(slot)}
        messages = slot.messages(binary=False)
        facts = facts_of(slot, titles)
        with temporary_snapshot(shop.dsn, 60) as snapshot:
            for options in (
                TypeOptions("string", for_column=True),
                *map(TypeOptions, ("string", "double", "decimal(38,10)")),
            ):
                streamed = slot.decode(messages, options=options)
                assert streamed.keys() == titles.keys()
                for table, title in titles.items():
                    if options.numeric != "string" and "num" not in title:
                        continue
                    if options.is_text:
                        assert not streamed[table].new.unfit, title
                    try:
                        compare(shop.dsn, snapshot, facts[table], streamed[table], options)
                    except AssertionError as error:
                        raise AssertionError(f"{title} as {options}: {error}") from error


def facts_of(slot: Slot, tables: Iterable[str]) -> dict[str, RelationFacts]:
    facts = {}
    for table in tables:
        ((oid,),) = slot.connection.execute(
            "SELECT %s::regclass::oid::bigint", [f"public.{table}"]
        ).fetchall()
        of_table = fetch_relation_facts(slot.connection, oid)
        assert of_table is not None
        facts[table] = of_table
    return facts


def compare(
    dsn: str,
    snapshot: Snapshot,
    facts: RelationFacts,
    streamed: RelationChanges,
    options: TypeOptions,
) -> None:
    """Columns whose values fit in the same rows are read together; what does not fit is refused
    by the copy where the stream calls it unfit."""
    names = streamed.schema.names
    ids = streamed.new.columns[names.index("id")]
    together: dict[tuple[bool, ...], list[str]] = defaultdict(list)
    for number, name in enumerate(names):
        unfit = streamed.new.unfit.get(number, np.zeros(len(ids), np.bool_))
        together[tuple((~unfit).tolist())].append(name)
    for fits, columns in together.items():
        fitting = ids.filter(pa.array(fits))
        copied = read(dsn, snapshot, facts, ["id", *columns], fitting, options)
        for name in columns:
            expected = streamed.new.columns[names.index(name)].filter(pa.array(fits))
            found = copied.column(name).combine_chunks()
            assert_identical(found, expected.take(pc.sort_indices(fitting)))
        if not all(fits):
            others = ids.filter(pa.array(~np.array(fits)))
            with pytest.raises(TableError, match="not fit"):
                read(dsn, snapshot, facts, ["id", columns[0]], others, options)


def read(
    dsn: str,
    snapshot: Snapshot,
    facts: RelationFacts,
    columns: Sequence[str],
    ids: pa.Array,
    types: TypeOptions,
) -> pa.Table:
    """Some columns of the rows with these ids, by their ids."""
    options, columns = TableOptions(types), list(dict.fromkeys(columns))
    by_name = {column.name: column for column in facts.columns}
    target = target_table(facts, options, columns)
    query = TableQuery(
        facts=facts,
        columns=tuple(target.schema.names),
        types=tuple(column_type(by_name[name], facts, options) for name in target.schema.names),
        row_filter=f"id IN ({', '.join(map(str, ids.to_pylist()))})",
    )
    (portion,) = WHOLE
    with table_reader(dsn, snapshot, query, WHOLE) as reader:
        rows = [fitting_batch(each, target.schema) for each in reader.rows(portion)]
    return pa.Table.from_batches(rows, target.schema).sort_by("id")
