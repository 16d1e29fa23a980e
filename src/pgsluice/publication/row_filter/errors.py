"""Why a filter is refused: in PostgreSQL's words, or because only we cannot do it exactly.

Both show themselves as psql shows the server's errors::

    ERROR:  column "x" does not exist
    LINE 1: a > 5 AND x = 1
                      ^
"""

from __future__ import annotations

from pgsluice.publication.errors import PublicationError


class RowFilterError(PublicationError):
    """PostgreSQL refuses this filter, with these words.

    ``source`` is the filter's text, or the statement that holds it once it is known.
    """


class FilterNotExact(RowFilterError):
    """PostgreSQL accepts this filter; we cannot do exactly what it does, so we refuse.

    ``detail`` is the reason, ``server_hint`` the way out.
    """
