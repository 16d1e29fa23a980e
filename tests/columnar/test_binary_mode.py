"""Binary mode: values sent by a real server decode to the same arrays as in text form.

Every type of the registry, and types of every kind that users make, stand in a table of their
own: as a column, in an array, and inside a composite (so that their text must come from the
binary form too). The same transactions are read from the slot twice, with ``binary`` off and on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.types as pt
import pytest
from tests.columnar.type_cases import CASES, NAMES_OF_OIDS, USER_TYPES, Case
from tests.support.databases import Database, Servers
from tests.support.segments import facts_message, segment

from pgsluice.catalog import fetch_relation_facts
from pgsluice.columnar import RelationChanges, decode_segment
from pgsluice.embedded import EmbeddedServer
from pgsluice.errors import ConversionError
from pgsluice.replication import connect_sql
from pgsluice.types import ENTRIES, TypeOptions
from pgsluice.wire import Relation, decode_message

MakeDatabase = Callable[..., Database]


def test_every_type_of_the_registry_has_a_case() -> None:
    spelt = {case.type.split("(")[0].strip('"') for case in CASES} | NAMES_OF_OIDS.keys()
    assert {entry.name for entry in ENTRIES} - spelt == set()


def _versions() -> list[int | None]:
    return [None] if "PGSLUICE_TEST_VERSION" in os.environ else [18, 16, 14]


@pytest.fixture(scope="module", params=_versions(), ids="pg{}".format)
def binary_server(
    request: pytest.FixtureRequest, server: EmbeddedServer, servers: Servers
) -> EmbeddedServer:
    """Versions that have binary mode, from the first one on; or the server under test."""
    return server if request.param is None else servers(request.param)


@dataclass(frozen=True)
class Slot:
    """A database with a publication of all tables and a slot, read as capture reads."""

    database: Database
    connection: psycopg.Connection[Any]
    version: int

    def messages(self, *, binary: bool) -> list[bytes]:
        rows = self.connection.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes('s', NULL, NULL,"
            f" 'proto_version', '1', 'publication_names', 'p', 'binary', '{binary}')"
        )
        return [bytes(data) for (data,) in rows]

    def facts(self) -> list[bytes]:
        """The messages with facts that capture would have written."""
        oids = "SELECT oid::bigint FROM pg_class WHERE relkind = 'r' AND relname LIKE 't\\_%'"
        fetched = [
            (oid, fetch_relation_facts(self.connection, oid))
            for (oid,) in self.connection.execute(oids).fetchall()
        ]
        return [facts_message(oid, facts) for oid, facts in fetched]

    def decode(self, messages: list[bytes], **options: Any) -> dict[str, RelationChanges]:
        view = segment([*self.facts(), *messages])
        return {changes.relation.name: changes for changes in decode_segment(view, **options)}


@pytest.fixture
def slot(database: MakeDatabase, binary_server: EmbeddedServer) -> Iterator[Slot]:
    db = database(binary_server)
    db.execute(
        "CREATE PUBLICATION p FOR ALL TABLES",
        "SELECT pg_create_logical_replication_slot('s', 'pgoutput')",
        USER_TYPES,
    )
    with connect_sql(db.dsn) as connection:
        yield Slot(db, connection, connection.info.server_version // 10000)


def fill(slot: Slot) -> dict[str, Case]:
    """A table for each case that the server can have; by the tables' names."""
    (user,) = slot.connection.execute("SELECT current_user").fetchone() or ("",)
    tables = {}
    for number, case in enumerate(CASES):
        if slot.version < case.since or not has(slot, case):
            continue
        tables[f"t_{number}"] = case
        values = [value.replace("{user}", user) for value in case.values]
        of_array = f"{case.type}[]" if case.has_array else "int[]"
        short = f"ARRAY[v::{case.type}, NULL]" if case.has_array else "NULL"
        deep = f"array_fill(v::{case.type}, ARRAY[2,1], ARRAY[0,-1])" if case.has_array else "NULL"
        inner = case.type if case.has_send else "text"
        slot.connection.execute(f"CREATE TYPE public.c_{number} AS (v {inner}, a {of_array})")
        slot.connection.execute(
            f"CREATE TABLE public.t_{number}"
            f" (id int PRIMARY KEY, v {case.type}, a {of_array}, c public.c_{number})"
        )
        slot.connection.execute(
            f"INSERT INTO public.t_{number} SELECT n, v::{case.type}, {short}::{of_array},"
            f" ROW(v::{inner}, {deep})::public.c_{number}"
            " FROM unnest(%s::text[]) WITH ORDINALITY AS u (v, n)",
            [[*values, None]],
        )
        if case.has_array:
            slot.connection.execute(
                f"INSERT INTO public.t_{number}"
                f" SELECT -1, NULL, array_agg(v ORDER BY id), NULL FROM public.t_{number}"
                if "words" not in case.type
                else f"INSERT INTO public.t_{number} VALUES (-1, NULL, '{{}}', NULL)"
            )
    return tables


def has(slot: Slot, case: Case) -> bool:
    """Was this server built with the libraries that the type needs?"""
    try:
        if case.needs:
            slot.connection.execute(f"CREATE EXTENSION IF NOT EXISTS {case.needs} SCHEMA public")
        if case.type == "xml":
            slot.connection.execute("SELECT '<a/>'::xml")
    except (psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedFile):
        return False
    return True


def assert_identical(first: pa.Array, second: pa.Array) -> None:
    """The arrays have the same bits: NaN equals NaN, and -0 is not 0."""
    assert first.type == second.type
    if pt.is_list(first.type):
        assert first.is_null().equals(second.is_null())
        lengths = [list_.value_lengths().to_pylist() for list_ in (first, second)]
        assert lengths[0] == lengths[1]
        assert_identical(first.flatten(), second.flatten())
    elif pt.is_floating(first.type):
        assert repr(first.to_pylist()) == repr(second.to_pylist())
    elif pt.is_string(first.type):
        assert first.to_pylist() == second.to_pylist()
    else:
        assert first.equals(second), (first, second)


def assert_same(text: RelationChanges, binary: RelationChanges, case: str) -> None:
    assert binary.schema == text.schema, case
    for number, field in enumerate(text.schema):
        place = f"{case}, column {field.name}"
        try:
            assert_identical(binary.new.columns[number], text.new.columns[number])
        except AssertionError as error:
            raise AssertionError(f"{place}: {error}") from error
        unfit = [run.new.unfit.get(number, np.zeros(0)).tolist() for run in (text, binary)]
        assert unfit[0] == unfit[1], place


@pytest.mark.pg(">= 14")
def test_binary_values_equal_text_values(slot: Slot) -> None:
    tables = fill(slot)
    text_messages, binary_messages = slot.messages(binary=False), slot.messages(binary=True)
    # Changes alternate between text and binary form, so that each column has values of both.
    mixed = [
        pair[number % 2]
        for number, pair in enumerate(zip(text_messages, binary_messages, strict=True))
    ]
    for numeric in ("string", "double", "decimal(38,10)"):
        options = TypeOptions(numeric=numeric)
        text = slot.decode(text_messages, options=options)
        binary = slot.decode(binary_messages, options=options)
        both = slot.decode(mixed, options=options)

        assert text.keys() == tables.keys()
        for table, case in tables.items():
            assert_same(text[table], binary[table], case.type)
            assert_same(text[table], both[table], f"{case.type}, mixed")


@pytest.mark.pg(">= 14")
def test_a_binary_value_whose_text_only_the_server_knows_is_refused_with_a_hint(slot: Slot) -> None:
    (user,) = slot.connection.execute("SELECT current_user").fetchone() or ("",)
    for number, (name, value) in enumerate(NAMES_OF_OIDS.items()):
        slot.connection.execute(f"CREATE TYPE public.c_{number} AS (v {name})")
        for kind, (column, made) in enumerate(
            [
                (name, "v::{0}"),
                (f"{name}[]", "ARRAY[v::{0}]"),
                (f"public.c_{number}", "ROW(v::{0})"),
            ]
        ):
            table = f"public.t_{number}_{kind}"
            slot.connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v {column})")
            slot.connection.execute(
                f"INSERT INTO {table} SELECT 1, {made.format(name)}::{column}"
                " FROM unnest(%s::text[]) AS t (v)",
                [[value.replace("{user}", user)]],
            )
    messages = slot.messages(binary=True)
    view = segment([*slot.facts(), *messages])
    assert len(slot.decode(slot.messages(binary=False))) == 3 * len(NAMES_OF_OIDS)
    for relation in [decode_message(message) for message in messages if message[:1] == b"R"]:
        assert isinstance(relation, Relation)
        with pytest.raises(ConversionError, match="binary = false") as caught:
            list(decode_segment(view, oids=[relation.oid]))
        name = list(NAMES_OF_OIDS)[int(relation.name.split("_")[1])]
        assert name in str(caught.value)
        assert caught.value.facts["column"] == "v"
