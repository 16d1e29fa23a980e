"""The origin of a target's rows, and the marker that a commit has of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from pgsluice.lsn import Lsn
from pgsluice.sinks.modes import CURRENT, TargetMode


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
