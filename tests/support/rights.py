"""A role that may do nothing, and the SQL that pgsluice prints so that it may do what it needs."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.support.commands import Command, WriteConfig
from tests.support.databases import Database, MakeDatabase

from pgsluice.embedded import EmbeddedServer
from pgsluice.sql import quote_identifier

_TABLES = """
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE secret (id int PRIMARY KEY);
ALTER TABLE secret ENABLE ROW LEVEL SECURITY;
CREATE SCHEMA "Shop";
CREATE TABLE "Shop"."Order Lines" (id int PRIMARY KEY);
CREATE TABLE parted (id int NOT NULL) PARTITION BY RANGE (id);
CREATE TABLE part PARTITION OF parted (PRIMARY KEY (id)) FOR VALUES FROM (0) TO (9);
"""


REVOKED = {
    "LOGIN": "ALTER ROLE {role} NOLOGIN",
    "CONNECT": "REVOKE CONNECT ON DATABASE {database} FROM {role}",
    "REPLICATION": "ALTER ROLE {role} NOREPLICATION",
    "USAGE": 'REVOKE USAGE ON SCHEMA "Shop" FROM {role}',
    "SELECT": 'REVOKE SELECT ON "Shop"."Order Lines" FROM {role}',
    "BYPASSRLS": "ALTER ROLE {role} NOBYPASSRLS",
    "read_only": "ALTER ROLE {role} SET default_transaction_read_only = on",
    "OWNER": "ALTER PUBLICATION {database} OWNER TO postgres",
}
"""What takes each right away again; the role and the database are put in."""

MakeRole = Callable[..., "Role"]


@dataclass(frozen=True)
class Role:
    """A role with an odd name, which may do nothing, and its configuration."""

    database: Database
    name: str
    path: Path

    @property
    def sql_name(self) -> str:
        return quote_identifier(self.name)

    def as_superuser(self, *statements: str) -> None:
        """Run statements as a superuser, in the database."""
        self.database.execute(*statements)


@pytest.fixture
def make_role(database: MakeDatabase, write_config: WriteConfig) -> Iterator[MakeRole]:
    """``make_role(server=None)``: a fresh database and a role that may not even log in."""
    roles: list[Role] = []

    def make(server: EmbeddedServer | None = None) -> Role:
        db = database(server)
        name = f'App "{uuid.uuid4().hex[:8]}"'
        quoted = quote_identifier(name)
        db.execute(
            _TABLES,
            f"CREATE ROLE {quoted} NOLOGIN",
            f"REVOKE CONNECT ON DATABASE {db.name} FROM PUBLIC",
        )
        dsn = make_conninfo(db.dsn, user=name)
        path = write_config(dsn, db.name, f'publications = ["{db.name}"]')
        role = Role(db, name, path)
        roles.append(role)
        return role

    yield make
    for role in roles:
        with psycopg.connect(role.database.server.dsn(), autocommit=True) as connection:
            statement = f"REVOKE ALL ON DATABASE {role.database.name} FROM {role.sql_name}"
            connection.execute(statement.encode())
        role.as_superuser(f"DROP OWNED BY {role.sql_name} CASCADE", f"DROP ROLE {role.sql_name}")


def paste_until_ready(role: Role, pgsluice: Command) -> list[str]:
    """Run what check prints until it prints nothing more; returns all that was run."""
    pasted: list[str] = []
    for _ in range(10):
        output = pgsluice("check", role.path).out
        statements = printed_rights(output)
        if not statements:
            assert "error   " not in output
            return pasted
        assert not set(statements) & set(pasted), f"it helped nothing:\n{output}"
        role.as_superuser(*statements)
        pasted += statements
    raise AssertionError(f"still not ready after {pasted}")


_STATEMENT = re.compile(
    r"^\s*(?:→ )?((?:ALTER|GRANT|CREATE|COMMENT|DROP|SELECT pg_drop)\b[^…]*;)(?:  -- .*)?$"
)


def printed_rights(output: str) -> list[str]:
    """The statements in an output of check that give the role something.

    Check also advises a limit of the server's WAL, with or without rights.
    """
    return [
        statement
        for statement in printed_statements(output)
        if not statement.startswith("ALTER SYSTEM")
    ]


def printed_statements(output: str) -> list[str]:
    """The whole statements in an output, in order; not those that leave something open (…)."""
    matches = map(_STATEMENT.match, output.splitlines())
    return [match[1] for match in matches if match is not None]
