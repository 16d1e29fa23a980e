"""A stream from a standby ends when the standby is promoted.

The walsender of a standby keeps sending through the promotion, on another timeline, and does not
say so (18). What it sends then is past the switch point, and the spool could not tell later which
timeline it came from. So after data is received, and before it becomes durable, the server is
asked whether it still is a standby. If not, the connection ends, and the next one follows the
new timeline.
"""

from __future__ import annotations

from pgsluice.errors import SourceUnreachable
from pgsluice.replication import connect_sql, source_errors


class StandbyWatch:
    """Asks one server whether it still is a standby; a context manager.

    Args:
        dsn: of that server alone.
        timeout_s: for connecting.
        silence_s: for each answer; None: as long as it takes.

    Raises:
        SourceUnreachable, SourceRefused: it cannot be asked.
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
        """See that everything received so far came from a standby.

        Raises:
            SourceUnreachable: it was promoted, or cannot be asked any more.
        """
        with source_errors("asking whether the server still is a standby"):
            row = self._connection.execute("SELECT pg_catalog.pg_is_in_recovery()").fetchone()
        if row is None or not row[0]:
            raise SourceUnreachable("the standby was promoted: connecting again to follow it")
