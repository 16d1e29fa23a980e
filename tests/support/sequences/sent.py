"""Compares a target with what the server's publications send of its table."""

from __future__ import annotations

from typing import Any

import psycopg
from tests.support.ddl.row import Publisher, Row
from tests.support.histories import assert_no_overlaps
from tests.support.oracle import compare_exact, target_rows

from pgsluice.verification import DeltaRows

_SENT = """
SELECT p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate, {columns}, {row_filter}
FROM pg_publication_tables t JOIN pg_publication p USING (pubname)
WHERE pubname = ANY (%s) AND format('%%s.%%s', schemaname, tablename) = ANY (%s)
"""
_LEAVES = """
SELECT relid::regclass::text FROM pg_partition_tree(%s) WHERE isleaf AND relid <> %s::regclass
"""


def compare_sent(
    connection: psycopg.Connection[Any], row: Row, title: str, target: str
) -> tuple[list[Any], list[Any]]:
    """As :func:`compare_exact`, with the rows and columns that are sent. A history also has no
    overlapping versions of a key.

    A table that is not sent in the end, or not with all that is done to it, cannot be judged: its
    target may have anything.
    """
    rows = target_rows(connection, title, target)
    assert_no_overlaps(connection, title, DeltaRows(target))
    if row.publisher is not Publisher.SERVER:
        return compare_exact(connection, title, rows)
    has_lists = connection.info.server_version >= 150000
    query = _SENT.format(
        columns="t.attnames::text[]" if has_lists else "NULL",
        row_filter="t.rowfilter" if has_lists else "NULL",
    )
    names = [row.sql(name) for name in row.publications]
    leaves = [f"public.{name}" for (name,) in connection.execute(_LEAVES, [title, title])]
    as_one = connection.execute(query.encode(), [names, [title]]).fetchall()
    sent = as_one or connection.execute(query.encode(), [names, leaves]).fetchall()
    is_sent = bool(as_one) or (bool(leaves) and len(sent) >= len(leaves))
    if not is_sent or not all(is_complete for is_complete, _, _ in sent):
        return [], []
    filters = [row_filter for _, _, row_filter in as_one]
    row_filter = " OR ".join(filters) if filters and all(filters) else "true"
    columns = sent[0][1] if as_one else None
    return compare_exact(connection, title, rows, columns=columns, row_filter=row_filter)
