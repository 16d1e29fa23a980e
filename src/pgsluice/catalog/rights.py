"""The rights that a copy of a table needs, and the statements that give them.

A copy uses the table's schema, reads the table, and has to see all of its rows: with
``row_security = off``, which every session of pgsluice sets, a policy makes the query fail.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import psycopg

from pgsluice.sql import quote_identifier

Connection = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class TableRights:
    """What our role may do with one table."""

    role: str
    namespace: str
    name: str
    may_use_schema: bool
    may_select: bool
    sees_all_rows: bool

    @property
    def may_read(self) -> bool:
        """Whether a query of the table is allowed; it may still not see all rows."""
        return self.may_use_schema and self.may_select


_RIGHTS = """
SELECT c.oid, current_user::text, n.nspname, c.relname,
       pg_catalog.has_schema_privilege(n.oid, 'USAGE'),
       pg_catalog.has_table_privilege(c.oid, 'SELECT'),
       NOT pg_catalog.row_security_active(c.oid)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (%s::oid[]) AND pg_catalog.has_table_privilege(c.oid, 'SELECT') IS NOT NULL
"""


def table_rights(connection: Connection, oids: Collection[int]) -> dict[int, TableRights]:
    """Our role's rights on these tables, by OID; tables that do not exist are left out."""
    rows = connection.execute(_RIGHTS, [list(oids)]).fetchall()
    return {int(oid): TableRights(*values) for oid, *values in rows}


def grants(rights: Iterable[TableRights]) -> list[str]:
    """The statements that give what is missing; a superuser can run each as it is."""
    tables = list(rights)
    statements = []
    for namespace, role in sorted({(t.namespace, t.role) for t in tables if not t.may_use_schema}):
        statements.append(
            f"GRANT USAGE ON SCHEMA {quote_identifier(namespace)} TO {quote_identifier(role)};"
        )
    for role in sorted({table.role for table in tables}):
        unread = [t for t in tables if t.role == role and not t.may_select]
        if names := ", ".join(map(_sql_name, unread)):
            statements.append(f"GRANT SELECT ON {names} TO {quote_identifier(role)};")
        if any(table.role == role and not table.sees_all_rows for table in tables):
            statements.append(f"ALTER ROLE {quote_identifier(role)} BYPASSRLS;")
    return statements


def _sql_name(table: TableRights) -> str:
    return f"{quote_identifier(table.namespace)}.{quote_identifier(table.name)}"
