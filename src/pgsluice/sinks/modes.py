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
        names: which columns have other names at the target.
    """

    log: LogColumns | None = None
    deleted_column: str | None = None
    history: HistoryColumns | None = None
    hides: str = ""
    log_retention_s: float | None = None
    names: str = ""

    @property
    def has_current_rows_only(self) -> bool:
        """Whether the target has the table's rows of now, and no other row."""
        return self.log is None and self.history is None and self.deleted_column is None

    @property
    def own_columns(self) -> list[str]:
        """The names of the columns that the target has beside the table's."""
        names = [] if self.log is None else [*self.log.names]
        names += [] if self.history is None else self.history.names
        return names if self.deleted_column is None else [*names, self.deleted_column]

    @property
    def name(self) -> str:
        """What distinguishes the mode from others; empty for the default."""
        names = f":names:{self.names}" if self.names else ""
        hides = f":hides:{self.hides}" if self.hides else ""
        if self.log is not None:
            return f":changelog:{self.log.prefix}{hides}{names}"
        if self.history is not None:
            return f":history:{self.history.prefix}{hides}{names}"
        if self.deleted_column is not None:
            return f":deleted:{self.deleted_column}{hides}{names}"
        return names


CURRENT: Final = TargetMode()
