"""The publications of streams, which have only the tables that a stream has asked for.

All streams of a slot share them, because capture requests a slot's publications once. Their COMMENT
has the tables, so that every capture keeps them (:mod:`~pgsluice.catalog.publications.managed`). A
stream of all tables removes the list. A table is never taken from it: another stream may read it.
"""

from __future__ import annotations

import hashlib
from typing import Any

import psycopg

from pgsluice.catalog.publications.managed import INSERT_SUFFIX, ensure_publications
from pgsluice.catalog.publications.publications import TableName, publications_of
from pgsluice.catalog.publications.statements import set_comment
from pgsluice.catalog.tables.tables import user_tables

Connection = psycopg.Connection[Any]

_SUFFIX = "_stream"
_LONGEST = 63 - len(_SUFFIX + INSERT_SUFFIX)


def stream_publication(slot: str) -> str:
    """The name of the first publication of a slot's streams."""
    if len(slot) > _LONGEST:
        slot = slot[: _LONGEST - 9] + "_" + hashlib.sha256(slot.encode()).hexdigest()[:8]
    return slot + _SUFFIX


def publish_for_stream(connection: Connection, name: str, table: TableName | None) -> None:
    """Have a stream's table published, before its capture or its start.

    Args:
        connection: in autocommit mode, not inside a transaction.
        name: from :func:`stream_publication`.
        table: schema and name; None: all tables.

    Raises:
        SourceRefused: as :func:`pgsluice.catalog.ensure_publications`.
        psycopg.Error: our role may not change the publications.
    """
    wanted = None if table is None else {_root(connection, table)}
    found = publications_of(connection, [name, name + INSERT_SUFFIX])
    first = found.get(name)
    if first is not None and first.is_ours and first.only is not None:
        only = None if wanted is None else first.only | wanted
        if only != first.only:
            with connection.transaction():
                for each in found.values():
                    if each.is_ours:
                        connection.execute(set_comment(each.name, only))
    ensure_publications(connection, [name], only=wanted)


def _root(connection: Connection, table: TableName) -> TableName:
    """The table that publications name for it: of a partition, its partition root."""
    named = (each.root for each in user_tables(connection) if (each.namespace, each.name) == table)
    return next(named, table)
