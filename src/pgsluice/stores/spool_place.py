"""Where a spool is: its files, and what belongs to one machine.

The files of a spool are in a folder on a disk, or in an object store. Locks, command files and
status are always in a folder of one machine: for a spool on a disk, it is the spool's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SpoolPlace:
    """The location of a spool; picklable.

    Attributes:
        folder: this machine's folder. On a disk: the spool.
        url: the spool's URL in an object store; None: it is on a disk.
        options: options of the store, under deltalake's names; some are secret.
    """

    folder: Path
    url: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    @classmethod
    def of(cls, place: SpoolPlace | Path | str) -> SpoolPlace:
        """The location of a spool on a disk by its path."""
        return place if isinstance(place, SpoolPlace) else cls(Path(place))

    def __str__(self) -> str:
        return str(self.folder) if self.url is None else self.url

    @property
    def is_remote(self) -> bool:
        """Whether the spool is in an object store."""
        return self.url is not None

    def named(self, name: str) -> str:
        """The path or URL of one of the spool's files, for messages."""
        return f"{self}/{name}"
