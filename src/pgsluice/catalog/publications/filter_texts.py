"""The texts of the server's row filters, with a cache.

To print a filter, the server opens its table, and waits for ACCESS EXCLUSIVE locks on it. The text
depends on the filter's row in pg_publication_rel and on the names of the table's columns. So a text
is reused as long as the xmin of all these rows stays the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg

Connection = psycopg.Connection[Any]

FILTER_VERSION = """
r.oid::text || ':' || r.xmin::text || ' ' || (
    SELECT pg_catalog.string_agg(a.attnum::text || ':' || a.xmin::text, ' ' ORDER BY a.attnum)
    FROM pg_catalog.pg_attribute a WHERE a.attrelid = r.prrelid AND a.attnum > 0)
"""
"""An SQL expression for everything that the text of a filter depends on; ``r`` is its row in
pg_publication_rel."""

_PRINTED = """
SELECT r.oid, pg_catalog.pg_get_expr(r.prqual, r.prrelid)
FROM pg_catalog.pg_publication_rel r WHERE r.oid = ANY (%s::oid[])
"""


class FilterTexts:
    """The texts of the filters in the last call."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def of(self, connection: Connection, versions: Mapping[int, str]) -> dict[int, str]:
        """The texts, as the server prints them.

        Args:
            connection: to the source.
            versions: OID of a row in pg_publication_rel -> its :data:`FILTER_VERSION`.
        """
        known = self._texts
        new = {oid: version for oid, version in versions.items() if version not in known}
        printed = connection.execute(_PRINTED, [list(new)]).fetchall() if new else ()
        texts = {oid: known[version] for oid, version in versions.items() if version in known}
        texts |= {int(oid): text for oid, text in printed}
        # Printed from the newest rows, which may be newer than the snapshot: a text that is too
        # new is kept for a version that never comes again.
        self._texts = {versions[oid]: text for oid, text in texts.items()}
        return texts
