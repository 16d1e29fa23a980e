"""Ends a stream from a standby when the standby is promoted.

The walsender of a standby keeps sending after the promotion, on another timeline, without reporting
it (18). That data is past the switch point, and the spool could not tell its timeline later. So
before received data becomes durable, pgsluice checks whether the server is still a standby. If not,
the connection ends, and the next one follows the new timeline.
"""

from __future__ import annotations

from pgsluice.errors import SourceUnreachable
from pgsluice.replication import connect_sql, source_errors


class StandbyWatch:
    """Checks whether one server is still a standby; a context manager.

    Args:
        dsn: a connection string for this server only.
        timeout_s: the timeout for connecting, in seconds.
        silence_s: the timeout for each answer, in seconds; None: no limit.

    Raises:
        SourceUnreachable, SourceRefused: it cannot be queried.
    """

    def __init__(self, dsn: str, timeout_s: float, silence_s: float | None) -> None:
        self._connection = connect_sql(
            dsn, timeout_s=timeout_s, application="standby watch", silence_s=silence_s
        )

    def __enter__(self) -> StandbyWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def check(self) -> None:
        """Check that everything received so far was sent by a standby.

        Raises:
            SourceUnreachable: it was promoted, or can no longer be queried.
        """
        with source_errors("asking whether the server still is a standby"):
            row = self._connection.execute("SELECT pg_catalog.pg_is_in_recovery()").fetchone()
        if row is None or not row[0]:
            raise SourceUnreachable("the standby was promoted: connecting again to follow it")
