"""What an initial copy reads of a table, and when it has to be read again.

A copy reads what ours and the server's publications both have: the rows that pass one of our
filters and one of the server's, the columns in both lists. ``publish`` plays no part: rows that
were inserted before the subscription are copied by one that only publishes updates, too. As in
PostgreSQL, src/backend/replication/logical/tablesync.c (fetch_remote_table_info).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from pgsluice.catalog.publications import PublishedBy
from pgsluice.publication.model import ACTIONS
from pgsluice.publication.resolution import Resolution
from pgsluice.sql import parenthesised


@dataclass(frozen=True, slots=True)
class CopyCondition:
    """What a copy's query selects.

    Attributes:
        where: for the query's WHERE, in the SQL of any server from 10 on; None: all rows.
        columns: in the table's order.
    """

    where: str | None
    columns: tuple[str, ...]


def copy_condition(own: Resolution, server: Sequence[PublishedBy] = ()) -> CopyCondition:
    """What to copy of ``own.table``.

    Args:
        own: what acts on it, of our publications.
        server: how the server's publications publish it; empty: without filter or list.
    """
    both = [any_of(own.copy_filters), any_of(_server_filters(server))]
    given = [one for one in both if one is not None]
    columns = own.published_columns
    for one in server:
        if one.columns is not None:
            columns = tuple(name for name in columns if name in one.columns)
    if len(given) < 2:
        return CopyCondition(given[0] if given else None, columns)
    return CopyCondition(" AND ".join(f"({one})" for one in given), columns)


def any_of(filters: Sequence[str]) -> str | None:
    """Filters, ORed; None without any."""
    if len(filters) < 2:
        return filters[0] if filters else None
    return " OR ".join(map(parenthesised, filters))


def _server_filters(server: Sequence[PublishedBy]) -> tuple[str, ...]:
    """The server's filters, unless one of its publications has none."""
    filters = [one.row_filter for one in server]
    given = tuple(dict.fromkeys(one for one in filters if one is not None))
    return given if None not in filters else ()


def fingerprint(own: Resolution | None, server: Sequence[PublishedBy] = ()) -> str:
    """A stable text for what acts on a relation: another one means copy again.

    Filters, columns and the relation that decides count (it by OID, for a rename changes no row);
    ``publish`` counts only where it changes which filters act on a published action.
    """
    parts: list[object] = [_own(own)]
    parts.append(sorted(_server_filters(server)))
    parts.append(sorted({one.columns for one in server if one.columns is not None}))
    text = json.dumps(parts, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _own(own: Resolution | None) -> object:
    if own is None:
        return None
    copied = sorted(own.copy_filters)
    others = {
        action: sorted(own.filters(action))
        for action in ACTIONS
        if action != "truncate" and action in own.published
        if sorted(own.filters(action)) != copied
    }
    return [own.published_as.oid, copied, others, own.columns, own.generated_columns]
