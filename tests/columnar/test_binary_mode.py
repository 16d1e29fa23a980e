"""Binary mode: values sent by a real server decode to the same arrays as in text form.

Every type of the registry, and types of every kind that users make, stand in a table of their
own: as a column, in an array, and inside a composite (so that their text must come from the
binary form too). The same transactions are read from the slot twice, with ``binary`` off and on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.columnar.type_cases import CASES, NAMES_OF_OIDS
from tests.support.arrays import assert_identical
from tests.support.databases import MakeDatabase, Servers
from tests.support.segments import segment
from tests.support.typed_tables import Slot, fill, slot_of

from pgsluice.columnar import RelationChanges, decode_segment
from pgsluice.embedded import EmbeddedServer
from pgsluice.errors import ConversionError
from pgsluice.types import ENTRIES, TypeOptions
from pgsluice.wire import Relation, decode_message


def test_every_type_of_the_registry_has_a_case() -> None:
    spelt = {case.type.split("(")[0].strip('"') for case in CASES} | NAMES_OF_OIDS.keys()
    assert {entry.name for entry in ENTRIES} - spelt == set()


def _versions() -> list[Any]:
    if "PGSLUICE_TEST_VERSION" in os.environ:
        return [None]
    return [18, *(pytest.param(old, marks=pytest.mark.soak) for old in (16, 14))]  # AREA=long


@pytest.fixture(scope="module", params=_versions(), ids="pg{}".format)
def binary_server(
    request: pytest.FixtureRequest, server: EmbeddedServer, servers: Servers
) -> EmbeddedServer:
    """The first version that has binary mode and the last one, or the server under test."""
    return server if request.param is None else servers(request.param)


@pytest.fixture
def slot(database: MakeDatabase, binary_server: EmbeddedServer) -> Iterator[Slot]:
    with slot_of(database(binary_server)) as slot:
        yield slot


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
