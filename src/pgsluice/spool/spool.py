"""A spool as a folder: its identity, and its small durable files.

:mod:`pgsluice.spool.layout` has the names of the files. A spool without ``start.json`` is an
*intent*: its slot does not exist yet.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pgsluice.errors import ForeignSpool, SpoolError
from pgsluice.lsn import Lsn
from pgsluice.spool.formats import (
    FORMAT,
    RESTORE_STATE,
    damaged,
    decode_file,
    encode_json,
    missing,
)
from pgsluice.spool.identity import SpoolIdentity, read_identity
from pgsluice.spool.layout import (
    EPOCH,
    FRONTIER,
    IDENTITY,
    RELEASED,
    START,
    forget,
    subscription_folder,
    subscription_names,
)
from pgsluice.spool.records.file import RecordReader
from pgsluice.spool.records.record import SubscriptionRecord
from pgsluice.spool.storage import LocalStorage, make_folder
from pgsluice.system.machine import executor

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ChainStart:
    """Where the chain of segments starts.

    Attributes:
        registered: the slot's consistent point, where the spool's first segment started.
        floor: the oldest retained LSN: positions at or below it were deleted, or never were in the
            spool.
    """

    registered: Lsn
    floor: Lsn


class Spool:
    """A folder that is a spool. Opening it reads only its identity.

    Attributes:
        identity: the source that it belongs to, as of the last read or write.
    """

    def __init__(self, path: Path, identity: SpoolIdentity) -> None:
        self.path = path
        self.identity = identity
        self.storage = LocalStorage(path)
        self._records: dict[str, RecordReader] = {}

    @classmethod
    def create(
        cls, path: str | Path, identity: SpoolIdentity, *, start: Lsn | None = None
    ) -> Spool:
        """Create a spool in a new or empty folder.

        Args:
            start: where its chain starts, if known; otherwise the spool is an intent until
                :meth:`register_start`.

        Raises:
            ForeignSpool: the folder is already a spool.
            SpoolError: the folder cannot be created or written.
        """
        spool = cls(Path(path), identity)
        make_folder(spool.path)
        if spool.storage.read(IDENTITY) is not None:
            raise ForeignSpool(f"{path} is already a spool", path=str(path))
        spool.storage.replace(IDENTITY, identity.to_json())
        if start is not None:
            spool.register_start(start)
        return spool

    @classmethod
    def open(cls, path: str | Path) -> Spool:
        """Open an existing spool.

        Raises:
            SpoolError: the folder is no spool, or its identity cannot be read.
            ForeignSpool: this version does not read its format.
        """
        folder = Path(path)
        identity = read_identity(folder)
        if identity is None and (machine := executor()) is not None:
            raise SpoolError(
                f"the executor on {machine} does not see the spool {folder}",
                hint="mount the folder at the same path on every executor, which also write there",
                path=str(folder),
            )
        if identity is None:
            raise SpoolError(
                f"{folder} is not a spool",
                hint="`pgsluice run CONFIG` or `pgsluice capture CONFIG` makes it at the first "
                "start; check the path",
                path=str(folder),
            )
        return cls(folder, identity)

    @staticmethod
    def exists(path: str | Path) -> bool:
        """Whether the folder is a spool, or the intent of one.

        Raises:
            SpoolError: it has other files of a spool, but not the identity, which is created first
                and deleted last.
        """
        folder = Path(path)
        storage = LocalStorage(folder)

        def has_others() -> bool:
            return any(storage.read(name) is not None for name in (START, FRONTIER))

        # Another process may make or forget the spool meanwhile: so the other files are looked for
        # before the identity, and once more if it is not there.
        had_others = has_others()
        if storage.read(IDENTITY) is not None:
            return True
        if had_others and has_others() and storage.read(IDENTITY) is None:
            raise missing(str(folder / IDENTITY))
        return False

    @staticmethod
    def forget(path: str | Path) -> bool:
        """Delete every file of a spool, and its folder if nothing else is in it.

        If it is interrupted, call it again to delete the rest. The caller holds the writer's lock.

        Returns:
            True if there was any file.
        """
        return forget(Path(path))

    def replace_identity(self, identity: SpoolIdentity) -> None:
        """Record a new timeline, or other publications or options; called by the writer only.

        Raises:
            ForeignSpool: the identity is of another spool, slot, database or system.
        """
        fixed = ("spool_id", "system_identifier", "database", "slot")
        if any(getattr(identity, name) != getattr(self.identity, name) for name in fixed):
            raise ForeignSpool(f"{self.path} holds another source's changes", path=str(self.path))
        if identity != self.identity:
            self.storage.replace(IDENTITY, identity.to_json())
            self.identity = identity

    def chain_start(self) -> ChainStart | None:
        """Where the chain starts; None while the spool is an intent.

        Raises:
            SpoolError: the file is damaged, or missing although something was received.
        """
        start = self.read_state(
            START, lambda raw: ChainStart(Lsn.parse(raw["registered"]), Lsn.parse(raw["floor"]))
        )
        if start is None and self.has_frontier_file():
            raise missing(str(self.path / START))
        return start

    def register_start(self, lsn: Lsn) -> None:
        """Turn an intent into a spool whose chain starts at ``lsn``, the slot's consistent point.

        Raises:
            SpoolError: the chain already has a start.
        """
        if self.chain_start() is not None:
            raise SpoolError(f"{self.path} already has a start", path=str(self.path))
        self._write_start(ChainStart(lsn, lsn))

    def raise_floor(self, start: ChainStart, floor: Lsn) -> None:
        """Record that segments at or below ``floor`` will be deleted; called before the
        deletion."""
        self._write_start(ChainStart(start.registered, floor))

    def _write_start(self, start: ChainStart) -> None:
        self.write_state(START, {"registered": str(start.registered), "floor": str(start.floor)})

    def frontier_file(self) -> Lsn:
        """The received-through LSN in its file, 0 without one; see ``SpoolReader.frontier``."""
        return self.read_state(FRONTIER, lambda raw: Lsn.parse(raw["frontier"])) or Lsn(0)

    def has_frontier_file(self) -> bool:
        """Whether the received-through LSN was ever written."""
        return self.storage.read(FRONTIER) is not None

    def write_frontier(self, lsn: Lsn) -> None:
        """Make the received-through LSN durable; called by the writer only."""
        self.write_state(FRONTIER, {"frontier": str(lsn)})

    def raise_epoch(self) -> int:
        """Record the number of a new writer durably; it is higher than all earlier ones."""
        epoch = (self.read_state(EPOCH, lambda raw: int(raw["epoch"])) or 0) + 1
        self.write_state(EPOCH, {"epoch": epoch, "pid": os.getpid()})
        return epoch

    def subscriptions(self) -> list[SubscriptionRecord]:
        """The records of every subscription that ever registered, by name."""
        names = subscription_names(self.path)
        return [record for name in names if (record := self.subscription(name)) is not None]

    def subscription(self, name: str) -> SubscriptionRecord | None:
        """One subscription's record; None before it registered."""
        reader = self._records.setdefault(name, RecordReader(self.path, name))
        return reader.read()

    def subscription_folder(self, name: str) -> Path:
        """The folder of a subscription's record, lock, command files and checkpoint."""
        return subscription_folder(self.path, name)

    def released(self) -> dict[str, dict[str, str]]:
        """Holds that the size limit dropped, by subscription: LSNs by relation OID or ``*``.

        The subscription's driver turns them into copies: the table, or all tables, become ``i``.
        """
        return self.read_state(RELEASED, lambda raw: dict(raw["released"])) or {}

    def write_released(self, released: dict[str, dict[str, str]]) -> None:
        """Replace the list of dropped holds; called by the writer only."""
        self.write_state(RELEASED, {"released": released})

    def read_state(
        self, name: str, decode: Callable[[Mapping[str, Any]], T], hint: str = RESTORE_STATE
    ) -> T | None:
        """Read a state file of this spool; None if it is missing.

        Args:
            hint: what to do if it is damaged.

        Raises:
            SpoolError: it is damaged, of another spool, or another file under this name.
        """
        data = self.storage.read(name)
        if data is None:
            return None
        path = str(self.path / name)
        raw = decode_file(data, path, hint)
        own = {"file": name, "spool_id": self.identity.spool_id}
        says = {key: raw.get(key) for key in own}
        if says != own:
            raise SpoolError(
                f"{path} is {says['file']} of the spool {says['spool_id']}, not {name} of "
                f"{own['spool_id']}",
                hint=hint,
                path=path,
            )
        try:
            return decode(raw)
        except (ValueError, KeyError, TypeError) as error:
            raise damaged(path, f"it is not a spool's {name}", hint) from error

    def write_state(self, name: str, raw: Mapping[str, Any]) -> None:
        """Make a state file durable; called by the writer only."""
        own = {"format": FORMAT, "file": name, "spool_id": self.identity.spool_id}
        self.storage.replace(name, encode_json({**own, **raw}))
