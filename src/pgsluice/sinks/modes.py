"""What a target has of its table: a mode of a subscription, as sinks see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pgsluice.changes.change_log import LogColumns
from pgsluice.changes.history.columns import HistoryColumns


@dataclass(frozen=True, slots=True)
class TargetMode:
    """What a target has of its table: by default, its current rows.

    Attributes:
        log: the change columns of a change log, which has every change as a row; None: the target
            is no log.
        deleted_column: the column with the time when a row was deleted; None: deleted rows go.
        history: the columns of a history, which has every version of a row; None: the target is
            none.
        hides: which columns are masked or excluded, and how. A log, a history, and deleted rows
            keep values from before, which another mask would have to hide, too.
        log_retention_s: how long a log has to reach back, in seconds; None: for ever.
    """

    log: LogColumns | None = None
    deleted_column: str | None = None
    history: HistoryColumns | None = None
    hides: str = ""
    log_retention_s: float | None = None

    @property
    def name(self) -> str:
        """What distinguishes the mode from others; empty for the default."""
        hides = f":hides:{self.hides}" if self.hides else ""
        if self.log is not None:
            return f":changelog:{self.log.prefix}{hides}"
        if self.history is not None:
            return f":history:{self.history.prefix}{hides}"
        return "" if self.deleted_column is None else f":deleted:{self.deleted_column}{hides}"


CURRENT: Final = TargetMode()
