"""Comments of tables and their columns."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import psycopg

from pgsluice.definitions.comments import TableComments

_COMMENTS = """
SELECT d.objoid, a.attname::text, d.description
FROM pg_catalog.pg_description d
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = d.objoid AND a.attnum = d.objsubid
WHERE d.classoid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objoid = ANY(%s::oid[])
"""


def fetch_comments(
    connection: psycopg.Connection[Any], oids: Collection[int]
) -> dict[int, TableComments]:
    """The comments of tables, by OID; empty ones of tables that have none."""
    tables: dict[int, str] = {}
    columns: dict[int, dict[str, str]] = {oid: {} for oid in oids}
    for oid, column, text in connection.execute(_COMMENTS, [[*oids]]):
        if column is None:
            tables[oid] = text
        else:
            columns[oid][column] = text
    return {oid: TableComments(tables.get(oid, ""), columns[oid]) for oid in oids}
