"""What a target has of its table: a mode of a subscription, as sinks see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pgsluice.changes.change_log import LogColumns


@dataclass(frozen=True, slots=True)
class TargetMode:
    """What a target has of its table: by default, its current rows.

    Attributes:
        log: the change columns of a change log, which has every change as a row; None: the target
            is no log.
    """

    log: LogColumns | None = None

    @property
    def name(self) -> str:
        """What distinguishes the mode from others; empty for the default."""
        return "" if self.log is None else f":changelog:{self.log.prefix}"


CURRENT: Final = TargetMode()
