"""A stream from a standby ends with its promotion.

A walsender of a standby goes on through the promotion without a word [18], on another
timeline. What it sends then is past the switch point, as if it came from an old primary that
went on: the spool could not tell later. So nothing becomes durable before the server was
asked, after it was received, whether it is a standby still. When it is none any more, the
connection ends; with the next one the timeline is followed as always.
"""

from __future__ import annotations

from types import TracebackType

from pgsluice.errors import SourceUnreachable
from pgsluice.replication import connect_sql, source_errors


class StandbyWatch:
    """Asks one server whether it is a standby still; a context manager.

    Args:
        dsn: of that server alone.
        timeout_s: for connecting.

    Raises:
        SourceUnreachable, SourceRefused: it cannot be asked.
    """

    def __init__(self, dsn: str, timeout_s: float) -> None:
        self._connection = connect_sql(dsn, timeout_s=timeout_s, application="standby watch")

    def __enter__(self) -> StandbyWatch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def check(self) -> None:
        """See that what was received until now came from a standby.

        Raises:
            SourceUnreachable: it was promoted, or cannot be asked any more.
        """
        with source_errors("asking whether the server is a standby still"):
            row = self._connection.execute("SELECT pg_catalog.pg_is_in_recovery()").fetchone()
        if row is None or not row[0]:
            raise SourceUnreachable("the standby was promoted: connecting again to follow it")
