"""A table as applications have them, with awkward values, for row filters that are given as text.

The server and pgsluice read the same text: ``CREATE PUBLICATION`` says whether the server takes it,
``SELECT`` computes it, and both are compared with what pgsluice binds, prints and computes.
"""

from __future__ import annotations

from random import Random
from typing import Any

import psycopg
from psycopg import sql
from tests.support.filter_oracle import Oracle, Outcome, Verdict, compare_filter

from pgsluice.catalog.tables.source_tables import source_catalog
from pgsluice.publication import load_publications
from pgsluice.publication.statements.filters import bind_filter
from pgsluice.row_filter import FilterNotExact, plan_filters
from pgsluice.sql import SqlRefused

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


class FilterTable:
    """``orders`` on a server, and its rows as Arrow columns.

    Args:
        connection: in autocommit mode, to a database of PostgreSQL 15 or newer that has the table.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self.version = connection.info.server_version
        self._catalog = source_catalog(connection)
        table = self._catalog.visible("orders")
        assert table is not None
        self._table = table
        self._oracle = Oracle(connection, "orders", [column.name for column in table.columns])
        self.rows = self._oracle.rows

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
        outcomes = [compare_filter(self._oracle, text, evaluator, typed) for typed in (False, True)]
        return max(outcomes, key=lambda outcome: list(Verdict).index(outcome.verdict))
