"""Types of keys, each with texts that are equal to the server and not identical.

A unique index holds one of two such texts at a time, and an UPDATE from one to the other is a
change of the key. PostgreSQL is the oracle: :func:`random_changes` are executed, and the target
has to show the texts that the server shows.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class KeyType:
    """A table whose key column has the type.

    Attributes:
        name: of the table.
        sql: the type.
        texts: of values; some are equal, but not identical.
        setup: what creates the type.
        first_version: of the server that has it.
        has_index: the key is a primary key; otherwise there is no index, and REPLICA IDENTITY
            is FULL.
        numeric: the type that numeric maps to.
        extension: that has the type.
    """

    name: str
    sql: str
    texts: tuple[str, ...]
    setup: str = ""
    first_version: int = 10
    has_index: bool = True
    numeric: str = "string"
    extension: str = ""

    @property
    def statements(self) -> list[str]:
        """Make the table."""
        key = "PRIMARY KEY" if self.has_index else "NOT NULL"
        made = [
            self.setup,
            f"CREATE TABLE {self.name} (k {self.sql} {key}, v int, large text)",
            f"ALTER TABLE {self.name} ALTER large SET STORAGE EXTERNAL",
            "" if self.has_index else f"ALTER TABLE {self.name} REPLICA IDENTITY FULL",
        ]
        return [statement for statement in made if statement]

    def equal(self, text: str) -> str:
        """A condition that finds the row with a key."""
        if self.has_index:
            return f"k = {_literal(text)}::{self.sql}"
        return f"k::text = {_literal(text)}::{self.sql}::text"

    def insert(self, text: str, value: int) -> str:
        """Insert a row, with a value so large that an UPDATE of others does not send it."""
        return (
            f"INSERT INTO {self.name} SELECT {_literal(text)}::{self.sql}, {value},"
            f" repeat('{value:03d}', 1000)"
            f" WHERE NOT EXISTS (SELECT FROM {self.name} WHERE {self.equal(text)})"
        )

    def random_changes(self, seed: int, count: int) -> list[str]:
        """Transactions with up to four changes each."""
        chosen = random.Random(f"{self.name} {seed}")
        return [
            "; ".join(self._change(chosen, number) for _ in range(chosen.randint(1, 4)))
            for number in range(count)
        ]

    def _change(self, chosen: random.Random, number: int) -> str:
        text, other = chosen.choice(self.texts), chosen.choice(self.texts)
        match chosen.choice("IIUKKKD"):
            case "I":
                return self.insert(text, number)
            case "D":
                return f"DELETE FROM {self.name} WHERE {self.equal(text)}"
            case "U":
                return f"UPDATE {self.name} SET v = {number} WHERE {self.equal(text)}"
        # To another text of the same key, or to a key that no row has.
        return (
            f"UPDATE {self.name} SET k = {_literal(other)}::{self.sql} WHERE {self.equal(text)}"
            f" AND ({self.equal(other)}"
            f" OR NOT EXISTS (SELECT FROM {self.name} WHERE {self.equal(other)}))"
        )


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_MANY_DIGITS = ("9223372036854775808", "9223372036854775809", "18446744073709551617", "-1", "1")
_MOMENTS = (
    "2024-01-01 00:00:00", "2024-01-01 00:00:00.000001", "2024-01-01 00:00:00.123456",
    "2024-01-01 00:00:00.1234", "0044-03-15 12:00:00 BC", "0001-01-01 00:00:00",
    "9999-12-31 23:59:59.999999", "10000-01-01 00:00:00",
)  # fmt: skip

KEY_TYPES: Sequence[KeyType] = (
    KeyType("booleans", "bool", ("t", "f")),
    KeyType("int2s", "int2", ("-32768", "0", "32767")),
    KeyType("int8s", "int8", ("-9223372036854775808", "9223372036854775807", "0", "-1")),
    KeyType("oids", "oid", ("0", "4294967295", "1")),
    KeyType("float4s", "float4", ("0", "-0", "NaN", "Infinity", "-Infinity", "1.1", "1e-45")),
    KeyType("float8s", "float8", ("0", "-0", "NaN", "1.1", "5e-324", "9007199254740993")),
    KeyType("numerics", "numeric", ("1", "1.0", "1.00", "NaN", "0", "0.0", "-1.5")),
    KeyType("scaled", "numeric(10, 2)", ("1", "1.00", "0.30", "-99999999.99")),
    KeyType("long_numerics", "numeric(38)", _MANY_DIGITS),
    KeyType("decimals", "numeric", ("1", "1.0", "1.00", "0.1", "0.10", "123456789012.1234567891"),
            numeric="decimal(38,10)"),
    KeyType("texts", "text", ("a", "A", "a ", "", "it's", "x" * 40, "x" * 40 + "y", "NULL")),
    KeyType("texts_any_case", 'text COLLATE "any_case"', ("a", "A", "á", "b", "B"),
            extension="icu"),
    KeyType("texts_of_citext", "citext", ("a", "A", "b", "B "), "CREATE EXTENSION citext",
            extension="citext"),
    KeyType("varchars", "varchar(5)", ("a", "a ", "A", "ab")),
    KeyType("chars", "char(5)", ("a", "a  ", "A", "")),
    KeyType("names", "name", ("a", "A", "b")),
    KeyType("letters", '"char"', ("a", "A", "b")),
    KeyType("bytes", "bytea", ("\\x", "\\x00", "\\x0000", "\\xff", "\\x" + "ff" * 40)),
    KeyType("days", "date", ("2024-01-01", "4713-01-01 BC", "0001-01-01", "10000-01-01")),
    KeyType("walls", "timestamp", _MOMENTS),
    KeyType("moments", "timestamptz", (*(f"{one}+00" for one in _MOMENTS), "2024-01-01 01:00+01")),
    KeyType("clocks", "time", ("00:00", "24:00", "12:00:00.5", "12:00:00.500")),
    KeyType("zoned_clocks", "timetz", ("12:00+00", "13:00+01", "12:00+01", "24:00+00")),
    KeyType("intervals", "interval", ("1 day", "24 hours", "30 days", "1 mon", "-1 day +24:00",
                                      "0", "1 year", "12 mons")),
    KeyType("uuids", "uuid", ("6b9d2a50-7e58-4d5f-9b5a-0a8f0d1c2b3a",
                              "6B9D2A50-7E58-4D5F-9B5A-0A8F0D1C2B3A",
                              "00000000-0000-0000-0000-000000000000")),
    KeyType("documents", "jsonb", ("1", "1.0", "1.00", '{"a": 1.0, "b": 2}', '{"b": 2, "a": 1}',
                                   "[]", '"1"')),
    KeyType("raw_documents", "json", ("1", "1.0", '{"a":1}', '{"a": 1}'), has_index=False),
    KeyType("addresses", "inet", ("10.0.0.1", "10.0.0.1/32", "10.0.0.1/24", "::1", "10.0.0.0/8")),
    KeyType("networks", "cidr", ("10.0.0.0/8", "10.0.0.0/16", "::/0")),
    KeyType("hardware", "macaddr", ("08:00:2b:01:02:03", "08002b:010203", "08:00:2b:01:02:04")),
    KeyType("bits", "varbit", ("", "0", "00", "1")),
    KeyType("money_amounts", "money", ("1", "1.00", "-1")),
    KeyType("words", "tsvector", ("a b", "b a", "a:1 b", "")),
    KeyType("positions", "pg_lsn", ("0/1", "0/01", "FFFFFFFF/FFFFFFFF")),
    KeyType("moods", "mood", ("sad", "ok"), "CREATE TYPE mood AS ENUM ('sad', 'ok')"),
    KeyType("domains", "amount", ("1", "1.0", "0", "0.0"), "CREATE DOMAIN amount AS numeric"),
    KeyType("int_ranges", "int4range", ("[1,2)", "[1,1]", "(0,3)", "empty", "(,)", "[1,)")),
    KeyType("numeric_ranges", "numrange", ("[1,2)", "[1.0,2)", "[1.00,2.0)", "empty", "(,)")),
    KeyType("day_ranges", "daterange", ("[2024-01-01,2024-01-02)", "[2024-01-01,2024-01-01]",
                                        "[2024-01-01,)", "empty")),
    KeyType("multiranges", "nummultirange", ("{[1,2)}", "{[1.0,2)}", "{}", "{[1,2),[3,4)}"),
            first_version=14),
    KeyType("int_arrays", "int4[]", ("{}", "{1}", "{1,NULL}", "{NULL,1}", "{1,2}")),
    KeyType("text_arrays", "text[]", ("{a,b}", '{"a,b"}', "{NULL}", '{"NULL"}', "{}", '{""}')),
    KeyType("float_arrays", "float8[]", ("{0}", "{-0}", "{NaN}", "{0,NaN}", "{}")),
    KeyType("numeric_arrays", "numeric[]", ("{1}", "{1.0}", "{1.00,2}", "{1,2}")),
    KeyType("decimal_arrays", "numeric[]", ("{1}", "{1.0}", "{1.00,2}", "{1,2}"),
            numeric="decimal(38,10)"),
    KeyType("moment_arrays", "timestamptz[]", ('{"2024-01-01 00:00+00"}', "{NULL}", "{}",
                                               '{"2024-01-01 01:00+01"}')),
    KeyType("composites", "pair", ("(0,a)", "(-0,a)", '(0,"a ")', "(,)", "(1,)"),
            "CREATE TYPE pair AS (number float8, word text)"),
    KeyType("composite_arrays", "pair_of_two[]", ('{"(0,a)"}', '{"(-0,a)"}', "{}", '{"(,)"}'),
            "CREATE TYPE pair_of_two AS (number float8, word text)"),
    KeyType("floats_without_index", "float8", ("0", "-0", "NaN", "1.5"), has_index=False),
    KeyType("numerics_without_index", "numeric", ("1", "1.0", "2"), has_index=False),
)  # fmt: skip

ANY_CASE = (
    "CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
)


def key_types(server_version: int, extensions: Collection[str]) -> list[KeyType]:
    """The types that a server has.

    Args:
        server_version: such as 18.
        extensions: that it has; ``icu`` among them if it has :data:`ANY_CASE`.
    """
    return [
        one
        for one in KEY_TYPES
        if one.first_version <= server_version and one.extension in {"", *extensions}
    ]
