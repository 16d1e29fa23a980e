"""A table as applications have them, with awkward values, for row filters that are given as text.

The server and pgsluice read the same text: ``CREATE PUBLICATION`` says whether the server takes it,
``SELECT`` computes it, and both are compared with what pgsluice binds, prints and computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql
from tests.support.filter_oracle import plain

from pgsluice.catalog.tables.source_tables import source_catalog
from pgsluice.errors import EvaluationError
from pgsluice.publication import load_publications
from pgsluice.publication.statements.filters import bind_filter
from pgsluice.row_filter import FilterNotExact, plan_filters
from pgsluice.sql import SqlRefused
from pgsluice.types import resolve_type

ROWS = 60
_WORDS = (
    "", " ", "active", "pending", "draft", "trial", "open", "closed", "acme", "ACME", "Acme GmbH",
    "x", "test", "a@example.com", "bot_7@example.com", "Admin@Example.Com", "b@test.example",
    "+49 30 123", "12345", "(030) 12-34", "1.0", "2.17", "10.01", "https://a.example/?q=1", "EU",
    "US", "APAC", "de", "de-AT", "en", "Jörg Müller", "ÉCOLE", "école", "İstanbul", "ISTANBUL",
    "ıspanak", "Straße", "ΣΊΣΥΦΟΣ", "σίσυφος", "Ǆ", "日本語", "emoji 😀", "a\tb", "a\nb", "ﬁn", "Å",
    "٣٤", "a\u00a0b", "vip", "K", "kelvin \u212a", "created", "0d6f1a5e", "aaa",
)  # fmt: skip
_DOCUMENTS = (
    "{}", '{"type": "order", "total": 120.50, "vip": true, "tags": ["vip", "x"]}',
    '{"type": "refund", "total": 99, "test": true, "address": {"city": "Berlin", "zip": 10115}}',
    '{"type": null, "tags": "vip", "total": "12"}', '[{"type": "order"}, "vip", 7]', '"order"',
    "7", "null", '{"total": 1e5, "vip": "true"}', '{"type": "\\u00e9\\ud83d\\ude00", "é": 1}',
    '{"total": 123456789012345678901234567890.5}', '{"tags": [], "address": []}',
    '{"event": "created", "user": {"id": 7, "name": "Ann"}, "note": "\\ud83d\\ude00"}',
    '{"event": "deleted", "event": "created", "user": {"id": "7"}}',
)  # fmt: skip
_COLUMNS: dict[str, tuple[str, ...]] = {
    "tenant_id int": ("1", "42", "7", "-1", "2147483647", "0", "15"),
    "parent_id bigint": ("1", "9223372036854775807"),
    "power_of numeric(20,0)": ("1", "11", "10", "99999999999999999999"),
    "account_id uuid": (
        "0d6f1a5e-8f5c-4c4d-9e0a-111111111111", "0d6f1a5e-8f5c-4c4d-9e0a-222222222222",
        "ffffffff-ffff-ffff-ffff-ffffffffffff", "80000000-0000-0000-0000-000000000000",
    ),
    **{f"{name} text": _WORDS for name in (
        "org", "status", "email", "name", "phone", "notes", "url", "version", "account_text",
        "concat_op",
    )},
    "state varchar(20)": _WORDS,
    "lang varchar(5)": ("de", "de-AT", "en", "en-GB", ""),
    'region text COLLATE "C"': _WORDS,
    "kind char(3)": ("ORD", "REF", "XX", "O", ""),
    "country char(2)": ("DE", "AT", "US", "D", ""),
    "price numeric(10,2)": ("100", "99.99", "0", "-5.5", "99999999.99", "12.35"),
    "amount numeric": (
        "0", "100", "12.345", "-0.5", "NaN", "Infinity", "1e40", "0.000000000000000000001",
        "123456789012345678901234567890.5", "12345678901234567890123456789012345.678", "99.5",
        "123456789012345678901234567890.6",
    ),
    "qty int": ("0", "1", "4", "5", "-3", "2147483647", "-2147483648"),
    "weight smallint": ("0", "1", "6", "-32768", "32767"),
    "score int": ("0", "1", "77", "100", "-1"),
    "discount real": ("0.1", "0.2", "NaN", "-0", "1e30"),
    "rate float8": ("0.5", "1e10", "NaN", "-Infinity", "0.7"),
    "is_active bool": ("t", "f"),
    "deleted bool": ("t", "f"),
    "deleted_at timestamptz": ("2023-05-17 10:00:00+00",),
    "created_at timestamptz": (
        "2023-05-17 10:00:00+00", "2023-05-16 22:30:00+00", "2022-12-31 23:30:00+00",
        "2023-03-12 06:59:59.999999+00", "2023-03-12 07:00:00+00", "1883-11-18 16:00:00+00",
        "infinity", "4000-01-01 00:00:00+00", "0044-03-15 00:00:00+00 BC", "1970-01-01 00:00:00+00",
        "2023-10-29 00:59:59+00", "2023-10-29 01:00:00+00", "12023-07-01 00:00:00+00",
    ),
    "updated_at timestamp": (
        "2023-05-17 10:00:00", "2023-05-01 00:00:00", "2023-10-29 02:30:00", "2023-03-26 02:30:00",
        "infinity", "-infinity", "1999-12-31 23:59:59.999999", "2023-10-29 03:00:00",
        "2023-05-20 18:00:00", "0044-03-15 00:00:00 BC", "2023-10-29 02:00:00",
    ),
    "birth date": ("1990-06-01", "1980-01-01", "2001-02-28", "infinity", "0001-01-01"),
    "due date": ("2023-05-17", "2023-12-31", "infinity", "-infinity", "5874897-12-31"),
    "opens time": ("08:00", "09:00:00.000001", "24:00:00", "00:00"),
    "ttl interval": ("1 day", "24:00:00", "1 mon", "-1 day", "01:30:00", "5400 sec"),
    "tags text[]": ("{}", "{vip}", "{vip,NULL}", "{x,beta}", "{{vip,x},{y,z}}", "{test}"),
    "roles int[]": ("{}", "{1,7}", "{7}", "{NULL}"),
    "attrs jsonb": _DOCUMENTS,
    "payload json": _DOCUMENTS,
    "ip inet": ("10.1.2.3", "10.1.2.3/16", "192.168.0.1", "::1", "127.0.0.1", "fe80::1/64"),
    "net cidr": ("10.0.0.0/8", "10.1.2.0/24", "::/0"),
    "mac macaddr": ("08:00:2b:01:02:03", "ff:ff:ff:ff:ff:ff"),
    "period daterange": (
        "empty", "[2023-01-01,2024-01-01)", "(,2023-05-01]", "[2024-01-01,)", "(,)",
    ),
    "slots int4range": ("empty", "[1,10)", "[7,8)", "[20,30)", "(,)"),
    "valid tstzrange": ("empty", "[2023-01-01 00:00:00+00,infinity)", "(,2020-01-01 00:00:00+00)"),
    "flags bit(8)": ("10000000", "00000000", "11111111"),
    "raw bytea": ("\\xdeadbeef", "\\x", "\\xde", "\\x00ff"),
}  # fmt: skip
TABLE = f"CREATE TABLE orders (id bigint PRIMARY KEY, {', '.join(_COLUMNS)})"


def insert_rows(connection: psycopg.Connection[Any], seed: int, rows: int = ROWS) -> None:
    """Fill ``orders`` with random rows; values that the database's encoding lacks are left out."""
    random = Random(seed)
    names = [column.partition(" ")[0] for column in _COLUMNS]
    types = [column.partition(" ")[2].partition(" COLLATE")[0] for column in _COLUMNS]
    casts = ", ".join(f"%s::{name}" for name in types)
    encoding = connection.execute("SELECT pg_catalog.getdatabaseencoding()").fetchone()
    codec = {"UTF8": "utf-8", "LATIN1": "latin-1"}[encoding[0]] if encoding else "utf-8"
    query = f"INSERT INTO orders (id, {', '.join(names)}) VALUES (%s, {casts})"
    for number in range(rows):
        values = [
            None if random.random() < 0.15 else random.choice(_fitting(values, codec))
            for values in _COLUMNS.values()
        ]
        row_id = random.choice((number, number + 10_000_000_000))
        connection.execute(sql.SQL(query), [row_id, *values])  # type: ignore[arg-type]


def _fitting(values: tuple[str, ...], codec: str) -> list[str]:
    """The values that an encoding has; JSON's escapes of characters need UTF8, too."""
    fitting = [value for value in values if value.encode(codec, "ignore").decode(codec) == value]
    return fitting if codec == "utf-8" else [value for value in fitting if "\\u" not in value]


def connection_text(connection: psycopg.Connection[Any], query: str) -> list[str | None]:
    """The texts of a query's only column."""
    result = connection.pgconn.exec_(query.encode())
    raw = (result.get_value(row, 0) for row in range(result.ntuples))
    return [None if value is None else value.decode() for value in raw]


class Verdict(Enum):
    """The outcome of a filter."""

    SAME = "the same truth, or the same error at the same row"
    REFUSED = "the server takes it, pgsluice refuses it and says so"
    BOTH_REFUSE = "neither takes it"
    CANNOT_KNOW = "the same up to a row of which only the server can know"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A filter's verdict; ``detail`` has the difference, or the reason of a refusal."""

    verdict: Verdict
    text: str
    detail: str = ""


class FilterTable:
    """``orders`` on a server, and its rows as Arrow columns.

    Args:
        connection: in autocommit mode, to a database of PostgreSQL 15 or newer that has the table.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        for setting in (
            "client_encoding = UTF8", "datestyle = ISO", "timezone = UTC", "extra_float_digits = 3",
        ):  # fmt: skip
            connection.execute(f"SET {setting}")  # type: ignore[arg-type]
        self._connection = connection
        self.version = connection.info.server_version
        self._catalog = source_catalog(connection)
        table = self._catalog.visible("orders")
        assert table is not None
        self._table = table
        self._texts = {column.name: self._printed(column.name) for column in table.columns}
        self._typed = {column.name: self._decoded(column) for column in table.columns}
        self.rows = len(self._texts["id"])

    def _select(self, expression: str, where: str = "") -> list[Any]:
        query = f"SELECT {expression} FROM (SELECT * FROM orders {where} ORDER BY id OFFSET 0) o"
        return [value for (value,) in self._connection.execute(query).fetchall()]  # type: ignore[arg-type]

    def _printed(self, column: str) -> pa.Array:
        """A column as the server sends it."""
        result = connection_text(self._connection, f"SELECT {column} FROM orders ORDER BY id")
        return pa.array(result, pa.large_string())

    def _decoded(self, column: Any) -> pa.Array:
        text = self._texts[column.name]
        decoded = resolve_type(column.type_oid, column.typmod, {}).decode_text(
            text.cast(pa.large_binary())
        )
        fits = decoded.unfit is None and not pa.types.is_nested(decoded.values.type)
        return decoded.values if fits else text

    def server_refuses(self, text: str) -> str | None:
        """The server's message if it does not take the filter."""
        try:
            with self._connection.transaction(force_rollback=True):
                self._connection.execute(f"CREATE PUBLICATION p FOR TABLE orders WHERE ({text})")  # type: ignore[arg-type]
        except psycopg.Error as error:
            return str(error.diag.message_primary)
        return None

    def compare(self, text: str) -> Outcome:
        """What the server and pgsluice make of a filter."""
        refused = self.server_refuses(text)
        statement = f"CREATE PUBLICATION p FOR TABLE orders WHERE ({text})"
        try:
            publications = load_publications(statement, self._catalog)
        except FilterNotExact as error:
            verdict = Verdict.BOTH_REFUSE if refused else Verdict.REFUSED
            return Outcome(verdict, text, str(error))
        except SqlRefused as error:
            if refused is None:
                return Outcome(Verdict.DIFFERENT, text, f"only here: {error}")
            return Outcome(Verdict.BOTH_REFUSE, text, refused)
        if refused is not None:
            return Outcome(Verdict.DIFFERENT, text, f"only the server refuses: {refused}")
        printed = next(iter(publications)).tables[0].where
        assert printed is not None
        return self._computed(text, printed)

    def _computed(self, text: str, printed: str) -> Outcome:
        evaluator = plan_filters([bind_filter(printed, self._table, self._catalog.text_rules)])
        verdicts = [self._of(text, evaluator, columns) for columns in (self._texts, self._typed)]
        return max(verdicts, key=lambda outcome: list(Verdict).index(outcome.verdict))

    def _of(self, text: str, evaluator: Any, columns: dict[str, pa.Array]) -> Outcome:
        error: EvaluationError | None = None
        try:
            ours = evaluator.evaluate(columns, self.rows).to_pylist()
        except EvaluationError as failure:
            error = failure
            before = {name: column.slice(0, error.row) for name, column in columns.items()}
            ours = evaluator.evaluate(before, error.row).to_pylist() if error.row else []
        message = None
        try:
            theirs = self._select(f"({text})")
        except psycopg.Error as failure:
            message = str(failure.diag.message_primary)
            ids = sorted(int(value) for value in self._texts["id"].to_pylist())
            limit = ids[len(ours)] if len(ours) < len(ids) else ids[-1]
            theirs = self._select(f"({text})", f"WHERE id < {limit}") if ours else []
        is_unknown = error is not None and error.condition == "cannot_know"
        if not is_unknown and (error and error.message) != plain(message):
            return Outcome(Verdict.DIFFERENT, text, f"server: {message}; here: {error}")
        if ours != theirs[: len(ours)]:
            row = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
            return Outcome(Verdict.DIFFERENT, text, f"row {row}: {theirs[row]}, here {ours[row]}")
        return Outcome(Verdict.CANNOT_KNOW if is_unknown else Verdict.SAME, text, str(error or ""))
