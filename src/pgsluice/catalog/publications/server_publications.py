"""Reads the server's publications in the same form as pgsluice's own.

The same code can then display and resolve both. Filters, column lists and schemas came with
PostgreSQL 15, ``publish_via_partition_root`` with 13, TRUNCATE with 11; on older servers they have
their defaults.
"""

from __future__ import annotations

from typing import Any

import psycopg

from pgsluice.definitions.publications import (
    ACTIONS,
    OwnedPublication,
    Publication,
    PublicationTable,
)

Connection = psycopg.Connection[Any]


_PUBLICATIONS = """
SELECT p.oid, to_jsonb(p), pg_catalog.pg_get_userbyid(p.pubowner)
FROM pg_catalog.pg_publication p ORDER BY p.pubname
"""

_TABLES = """
SELECT r.prpubid, c.oid, n.nspname, c.relname, {columns}, {where},
       c.relkind <> 'p' AND EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhparent = c.oid)
FROM pg_catalog.pg_publication_rel r
JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
ORDER BY n.nspname, c.relname
"""
_COLUMNS = """
CASE WHEN r.prattrs IS NOT NULL THEN ARRAY(
    SELECT a.attname::text FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = r.prrelid AND a.attnum = ANY (r.prattrs::int2[]) ORDER BY a.attnum) END
"""

_SCHEMAS = """
SELECT s.pnpubid, n.nspname
FROM pg_catalog.pg_publication_namespace s JOIN pg_catalog.pg_namespace n ON n.oid = s.pnnspid
ORDER BY n.nspname
"""


def server_publications(connection: Connection) -> list[OwnedPublication]:
    """All publications of the connection's database, by name."""
    has_filters = connection.info.server_version >= 150000
    query = _TABLES.format(
        columns=_COLUMNS if has_filters else "NULL::text[]",
        where="pg_catalog.pg_get_expr(r.prqual, r.prrelid)" if has_filters else "NULL::text",
    )
    tables: dict[int, list[PublicationTable]] = {}
    for publication, oid, namespace, name, columns, where, only in connection.execute(
        query.encode()
    ).fetchall():
        listed = None if columns is None else tuple(columns)
        table = PublicationTable(name, namespace, listed, where, only, int(oid))
        tables.setdefault(int(publication), []).append(table)
    schemas: dict[int, list[str]] = {}
    for publication, name in connection.execute(_SCHEMAS).fetchall() if has_filters else ():
        schemas.setdefault(int(publication), []).append(name)
    return [
        OwnedPublication(
            _publication(row, tables.get(int(oid), []), schemas.get(int(oid), [])), owner
        )
        for oid, row, owner in connection.execute(_PUBLICATIONS).fetchall()
    ]


def _publication(
    row: dict[str, Any], tables: list[PublicationTable], schemas: list[str]
) -> Publication:
    return Publication(
        name=row["pubname"],
        tables=tuple(tables),
        schemas=tuple(schemas),
        all_tables=row["puballtables"],
        publish=tuple(action for action in ACTIONS if row.get(f"pub{action}")),
        publish_via_partition_root=bool(row.get("pubviaroot")),
        publish_generated_columns="stored" if row.get("pubgencols") == "s" else "none",
    )
