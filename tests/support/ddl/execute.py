"""Executes the statements of a row of the table of DDL."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import psycopg
from tests.support.ddl.row import Interrupted, Row

_INTERRUPTED_AFTER = "200ms"


def execute(connection: psycopg.Connection[Any], row: Row, *statements: str) -> None:
    """Execute texts of a row, each as one query."""
    for statement in statements:
        if not statement.strip():
            continue
        text = row.sql(statement).encode()
        if isinstance(statement, Interrupted):
            _interrupt(connection, row, text)
        else:
            connection.execute(text)


def _interrupt(connection: psycopg.Connection[Any], row: Row, text: bytes) -> None:
    """Execute a statement that waits for a reader of the row's table, and is cancelled."""
    info = connection.info
    with psycopg.connect(info.dsn, password=info.password) as reader:
        reader.execute(f"SELECT FROM {row.slug}")
        connection.execute(f"SET statement_timeout = '{_INTERRUPTED_AFTER}'")
        with suppress(psycopg.errors.QueryCanceled):
            connection.execute(text)
        connection.execute("RESET statement_timeout")
