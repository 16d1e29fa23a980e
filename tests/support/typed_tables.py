"""A table for every type of the registry, with extreme values, and the changes that made it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from tests.columnar.type_cases import CASES, USER_TYPES, Case
from tests.support.databases import Database
from tests.support.segments import facts_message, segment

from pgsluice.catalog.tables.relations import fetch_relation_facts
from pgsluice.columnar import RelationChanges, decode_segment
from pgsluice.replication import connect_sql


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


@contextmanager
def slot_of(database: Database) -> Iterator[Slot]:
    """Make a publication, a slot and the types that users make."""
    database.execute(
        "CREATE PUBLICATION p FOR ALL TABLES",
        "SELECT pg_create_logical_replication_slot('s', 'pgoutput')",
        USER_TYPES,
    )
    with connect_sql(database.dsn) as connection:
        yield Slot(database, connection, connection.info.server_version // 10000)


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
