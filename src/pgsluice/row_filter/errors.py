"""The error of a filter that PostgreSQL accepts and pgsluice cannot evaluate exactly."""

from __future__ import annotations

from pgsluice.sql import SqlRefused


class FilterNotExact(SqlRefused):
    """PostgreSQL accepts this filter, but pgsluice refuses it, because it cannot evaluate it
    exactly.

    ``detail`` is the reason, ``server_hint`` what the user can do instead.
    """
