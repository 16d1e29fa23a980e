"""The origin of a target's rows, what the target has of its table, and the marker that a commit has
of both."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from pgsluice.changes.change_log import LogColumns
from pgsluice.changes.history.columns import HistoryColumns
from pgsluice.lsn import Lsn


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
    def keeps_rows(self) -> bool:
        """Whether a copy again keeps the rows from before it."""
        return self.log is not None or self.history is not None

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


@dataclass(frozen=True, slots=True)
class TargetIdentity:
    """The origin of a target's rows: one copy of one relation in one spool, in one mode.

    Attributes:
        spool_id: the spool whose LSNs are the target's positions.
        relation_oid: the table at the source (for a partitioned table, its root).
        copy_number: how often the table has been copied; each copy raises it.
        mode: what the target has of the table. Rows of another mode cannot be continued.
    """

    spool_id: str
    relation_oid: int
    copy_number: int
    mode: TargetMode = CURRENT

    @property
    def owner(self) -> int:
        """Spool, relation and mode as one number of 63 bits, which any target can store."""
        name = f"{self.spool_id}:{self.relation_oid}{self.mode.name}".encode()
        return int.from_bytes(hashlib.sha256(name).digest()[:8], "big") >> 1


@dataclass(frozen=True, slots=True)
class CommitMarker:
    """The marker in our newest commit of a target.

    Attributes:
        owner: :attr:`TargetIdentity.owner` of the rows.
        copy_number: the number of the newest copy.
        position: the position up to which the table is applied; None if the target has it for
            another identity than the handle's.
    """

    owner: int
    copy_number: int
    position: Lsn | None

    def reaches(self, identity: TargetIdentity, position: Lsn) -> bool:
        """Whether the table is already at ``position``, so that a write up to it would change
        nothing."""
        reached = (self.copy_number, self.position or 0)
        return reached >= (identity.copy_number, position)
