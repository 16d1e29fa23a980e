"""The server's publications: their actions and options, and the statements that make ours."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from psycopg import sql

from pgsluice.catalog import Connection
from pgsluice.definitions.publications import (
    ACTIONS,
    Action,
    GeneratedColumns,
    OwnedPublication,
    Publication,
    PublicationTable,
)
from pgsluice.sql import quote_identifier

#: The COMMENT of the publications that pgsluice creates.
OUR_COMMENT = "Made and kept in step by pgsluice; `pgsluice drop` removes it."
_OUR_MARK = "Made and kept in step by pgsluice"
_ONLY = " Only for these tables of streams: "
TableName = tuple[str, str]
"""Schema and name."""

_FIRST_AWARE = {13: 130021, 14: 140018, 15: 150013, 16: 160009, 17: 170005}
"""The minor releases of 8 May 2025, by major version."""


def notices_publications(connection: Connection) -> bool:
    """Whether the server notices during a connection that a publication changes while transactions
    are open.

    Older servers decide by the catalog of an open transaction's start, and keep the decision after
    its end: a table that a publication has got meanwhile, or all tables of a publication that was
    dropped and created again, are not sent any more. Source: the server, asked with such
    transactions; the fix is PostgreSQL's commit 4909b38af0.
    """
    version = connection.info.server_version
    return version >= _FIRST_AWARE.get(version // 10000, 180000)


# All of them: a connection has one list of publications for all tables.
_UNNOTICED = """
SELECT coalesce(pg_catalog.md5(pg_catalog.string_agg(
           pg_catalog.concat_ws(' ', c.oid, c.xmin), ',' ORDER BY c.oid, c.xmin::text)), ''),
       coalesce(pg_catalog.bool_or(
           pg_catalog.age(c.xmin) <= pg_catalog.age(s.catalog_xmin)), false)
FROM (
    SELECT oid, xmin FROM pg_catalog.pg_publication
    UNION ALL SELECT oid, xmin FROM pg_catalog.pg_publication_rel
    {schemas}
) AS c
LEFT JOIN pg_catalog.pg_replication_slots s ON s.slot_name = %s
"""
_OF_SCHEMAS = "UNION ALL SELECT oid, xmin FROM pg_catalog.pg_publication_namespace"


@dataclass(frozen=True, slots=True)
class UnnoticedPublications:
    """The publications of a server that does not notice in a connection that they change.

    Attributes:
        versions: two equal values mean that none has changed.
        are_recent: the slot may still decode transactions that began before the last change.
    """

    versions: str
    are_recent: bool


def unnoticed_publications(connection: Connection, slot: str = "") -> UnnoticedPublications | None:
    """The state of all publications.

    Args:
        slot: the slot to ask for in ``are_recent``.

    Returns:
        None: the server notices changes (:func:`notices_publications`).
    """
    if notices_publications(connection):
        return None
    schemas = _OF_SCHEMAS if connection.info.server_version >= 150000 else ""
    (row,) = connection.execute(_UNNOTICED.format(schemas=schemas), [slot]).fetchall()
    return UnnoticedPublications(*row)


@dataclass(frozen=True, slots=True)
class PublicationInfo:
    """One row of pg_publication.

    Attributes:
        actions: the published actions: ``insert``, ``update``, ``delete``, ``truncate``.
        via_root: changes of partitions are published under their root's name.
        generated_columns: ``none`` or ``stored`` (18+).
        is_ours: the publication has our COMMENT; only such ones are altered or dropped.
        only: the tables that one of our publications is for; None: all.
        version: its OID and xmin.
    """

    oid: int
    name: str
    all_tables: bool
    actions: frozenset[Action]
    via_root: bool
    generated_columns: GeneratedColumns
    is_ours: bool
    may_alter: bool
    owner: str
    only: frozenset[TableName] | None = None
    version: str = ""


def _only(comment: str) -> frozenset[TableName] | None:
    _, _, listed = comment.partition(_ONLY)
    try:
        return frozenset((str(schema), str(name)) for schema, name in json.loads(listed))
    except (TypeError, ValueError):  # there is no list, or a user has changed it
        return None


# As JSON, because 11, 13 and 18 added columns to the catalog.
_PUBLICATIONS = """
SELECT p.oid, to_jsonb(p), pg_catalog.obj_description(p.oid, 'pg_publication'),
       pg_catalog.pg_has_role(p.pubowner, 'USAGE'), pg_catalog.pg_get_userbyid(p.pubowner),
       p.oid::text || ':' || p.xmin::text
FROM pg_catalog.pg_publication p
WHERE %(names)s::text[] IS NULL OR p.pubname = ANY (%(names)s::text[])
ORDER BY p.pubname
"""


def publications_of(
    connection: Connection, names: Collection[str] | None = None
) -> dict[str, PublicationInfo]:
    """The publications with these names, or all; missing ones are ignored."""
    parameters = {"names": None if names is None else list(names)}
    publications = {}
    rows = connection.execute(_PUBLICATIONS, parameters).fetchall()
    for oid, row, comment, may_alter, owner, version in rows:
        publications[row["pubname"]] = PublicationInfo(
            oid=int(oid),
            name=row["pubname"],
            all_tables=row["puballtables"],
            actions=frozenset(action for action in ACTIONS if row.get(f"pub{action}")),
            via_root=bool(row.get("pubviaroot")),
            generated_columns="stored" if row.get("pubgencols") == "s" else "none",
            is_ours=(comment or "").startswith(_OUR_MARK),
            may_alter=may_alter,
            owner=owner,
            only=_only(comment or ""),
            version=version,
        )
    return publications


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
    """All publications of the connection's database, by name, in the form of pgsluice's own: the
    same code can display and resolve both."""
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
            Publication(
                name=info.name,
                tables=tuple(tables.get(info.oid, ())),
                schemas=tuple(schemas.get(info.oid, ())),
                all_tables=info.all_tables,
                publish=tuple(info.actions),
                publish_via_partition_root=info.via_root,
                publish_generated_columns=info.generated_columns,
            ),
            info.owner,
        )
        for info in publications_of(connection).values()
    ]


SENDS_GENERATED = "publish_generated_columns = stored"


def drop_statement(names: Sequence[str]) -> str:
    """The statement that drops publications, to be run, or printed for a role with more
    privileges."""
    return f"DROP PUBLICATION IF EXISTS {', '.join(map(quote_identifier, names))}"


def create_statements(
    name: str,
    tables: Sequence[str],
    options: Sequence[str],
    only: Collection[TableName] | None = None,
) -> list[str]:
    """CREATE PUBLICATION and its COMMENT; the tables are given by :func:`table_name`."""
    listed = f" FOR TABLE {', '.join(tables)}" if tables else ""
    parameters = f" WITH ({', '.join(options)})" if options else ""
    return [f"CREATE PUBLICATION {_quoted(name)}{listed}{parameters}", set_comment(name, only)]


def set_comment(name: str, only: Collection[TableName] | None) -> str:
    """The COMMENT of a publication that pgsluice creates for these tables; None: for all."""
    comment = OUR_COMMENT if only is None else OUR_COMMENT + _ONLY + json.dumps(sorted(only))
    return f"COMMENT ON PUBLICATION {_quoted(name)} IS {sql.Literal(comment).as_string()}"


def alter(publication: str, change: str) -> str:
    """ALTER PUBLICATION, such as with ``ADD TABLE t``."""
    return f"ALTER PUBLICATION {_quoted(publication)} {change}"


def table_name(namespace: str, name: str, kind: str) -> str:
    """A relation of that relkind as publications name it."""
    # ONLY: inheriting tables are listed separately; each has its own replica identity.
    only = "ONLY " if kind == "r" else ""
    return f"{only}{_quoted(namespace)}.{_quoted(name)}"


def _quoted(name: str) -> str:
    """A name in quotes; control characters are written as escapes, because statements are also
    printed."""
    return sql.Identifier(name).as_string() if name.isprintable() else quote_identifier(name)
