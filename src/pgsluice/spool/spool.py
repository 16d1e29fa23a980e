"""A spool as a folder: its identity, and its small durable files.

:mod:`pgsluice.spool.layout` has the names of the files. A spool without ``start.json`` is an
*intent*: its slot does not exist yet.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pgsluice.errors import ForeignSpool, SpoolError, SpoolTaken
from pgsluice.lsn import Lsn
from pgsluice.spool.formats import FORMAT, RESTORE_FILE, damaged, decode_file, encode_json, missing
from pgsluice.spool.identity import SpoolIdentity, read_identity
from pgsluice.spool.layout import EPOCH, FRONTIER, IDENTITY, RELEASED, START, subscription_names
from pgsluice.spool.object_storage import ObjectStorage, open_storage
from pgsluice.spool.records.record import SubscriptionRecord
from pgsluice.spool.records.store import RecordReader, record_reader
from pgsluice.spool.storage import Storage, make_folder
from pgsluice.stores.spool_place import SpoolPlace
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
        path: the folder of this machine's files; for a spool on a disk, the spool itself.
        identity: the source that it belongs to, as of the last read or write.
    """

    def __init__(self, place: SpoolPlace, identity: SpoolIdentity) -> None:
        self.place = place
        self.path = place.folder
        self.identity = identity
        self.storage: Storage = open_storage(place)
        self._records: dict[str, RecordReader] = {}

    @classmethod
    def create(cls, path: SpoolPlace | Path, identity: SpoolIdentity) -> Spool:
        """Create a spool in a new or empty folder; it is an intent until :meth:`register_start`.
        Raises ForeignSpool if the folder is already a spool, and SpoolError if it cannot be created
        or written."""
        spool = cls(SpoolPlace.of(path), identity)
        make_folder(spool.path)
        if spool.storage.read(IDENTITY) is not None:
            raise ForeignSpool(f"{path} is already a spool", path=str(path))
        spool.storage.replace(IDENTITY, identity.to_json())
        return spool

    @classmethod
    def open(cls, path: SpoolPlace | Path) -> Spool:
        """Open an existing spool; raises SpoolError if the folder is none, or if its identity
        cannot be read, and ForeignSpool if this version does not read its format."""
        place = SpoolPlace.of(path)
        identity = read_identity(place)
        if identity is None and not place.is_remote and (machine := executor()) is not None:
            raise SpoolError(
                f"the executor on {machine} does not see the folder of the spool {place}",
                hint="mount this folder, writable, at the same path on every executor",
                path=str(place),
            )
        if identity is None:
            raise SpoolError(
                f"{place} is not a spool of pgsluice",
                hint="correct the path of the spool; `pgsluice run CONFIG` or `pgsluice capture "
                "CONFIG` creates the spool at the first start",
                path=str(place),
            )
        return cls(place, identity)

    @staticmethod
    def exists(path: SpoolPlace | Path) -> bool:
        """Whether the folder is a spool, or the intent of one; raises SpoolError if only the
        identity is missing, which is created first and deleted last."""
        place = SpoolPlace.of(path)
        storage = open_storage(place)

        def has_others() -> bool:
            return any(storage.read(name) is not None for name in (START, FRONTIER))

        # Another process may make or forget the spool meanwhile: so the other files are looked for
        # before the identity, and once more if it is not there.
        if place.is_remote and storage.read(IDENTITY) is not None:
            return True  # each look is a request
        had_others = has_others()
        if storage.read(IDENTITY) is not None:
            return True
        if had_others and has_others() and storage.read(IDENTITY) is None:
            raise missing(place.named(IDENTITY))
        return False

    def replace_identity(self, identity: SpoolIdentity) -> None:
        """Record a new timeline, or other publications or options; called by the writer only.
        Raises ForeignSpool if the spool, slot, database or system differs."""
        fixed = ("spool_id", "system_identifier", "database", "slot")
        if any(getattr(identity, name) != getattr(self.identity, name) for name in fixed):
            raise ForeignSpool(f"{self.place} holds another source's changes", path=str(self.place))
        if identity != self.identity:
            self.storage.replace(IDENTITY, identity.to_json())
            self.identity = identity

    def chain_start(self) -> ChainStart | None:
        """Where the chain starts; None while the spool is an intent. Raises SpoolError if the file
        is damaged, or missing although something was received."""

        def read() -> ChainStart | None:
            return self.read_state(
                START, lambda raw: ChainStart(Lsn.parse(raw["registered"]), Lsn.parse(raw["floor"]))
            )

        start = read()
        # Capture may have written both files since we looked, the start first.
        if start is None and self.has_frontier_file() and (start := read()) is None:
            raise missing(self.place.named(START))
        return start

    def register_start(self, lsn: Lsn) -> None:
        """Turn an intent into a spool whose chain starts at ``lsn``, the slot's consistent point;
        raises SpoolError if it has a start."""
        if self.chain_start() is not None:
            raise SpoolError(f"{self.place} already has a start", path=str(self.place))
        self.write_start(ChainStart(lsn, lsn))

    def write_start(self, start: ChainStart) -> None:
        """Record where the chain starts durably, before segments at or below it are deleted."""
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
        """Record the number of a new writer durably; it is higher than all earlier ones. Raises
        SpoolTaken if another process, in a store, does so at the same time."""
        self.storage.expect(EPOCH)
        epoch = (self.read_state(EPOCH, lambda raw: int(raw["epoch"])) or 0) + 1
        writer = {"pid": os.getpid(), "host": socket.gethostname(), "id": str(uuid.uuid4())}
        self.write_state(EPOCH, {"epoch": epoch, **writer})
        return epoch

    def check_epoch(self, epoch: int) -> None:
        """Raise SpoolTaken if a later writer has opened the spool, where no lock keeps it out."""
        if not isinstance(self.storage, ObjectStorage):
            return
        data = self.storage.read_now(EPOCH)
        raw = {} if data is None else decode_file(data, self.place.named(EPOCH))
        if raw.get("epoch") != epoch:
            raise SpoolTaken(
                f"another capture process writes to the spool {self.place} now: process "
                f"{raw.get('pid')} on host {raw.get('host')}",
                hint="stop one of the two capture processes: only one can write to a spool",
                path=str(self.place),
            )
        self.storage.announcements.still_there()

    def subscriptions(self) -> list[SubscriptionRecord]:
        """The records of every subscription that ever registered, by name."""
        names = subscription_names(self.place)
        return [record for name in names if (record := self.subscription(name)) is not None]

    def subscription(self, name: str) -> SubscriptionRecord | None:
        """One subscription's record; None before it registered."""
        reader = self._records.get(name)
        if reader is None:
            reader = self._records[name] = record_reader(self.place, name)
        return reader.read()

    def released(self) -> dict[str, dict[str, str]]:
        """Holds that the size limit dropped, by subscription: LSNs by relation OID or ``*``.

        The subscription's driver turns them into copies: the table, or all tables, become ``i``.
        """
        return self.read_state(RELEASED, lambda raw: dict(raw["released"])) or {}

    def write_released(self, released: dict[str, dict[str, str]]) -> None:
        """Replace the list of dropped holds; called by the writer only."""
        self.write_state(RELEASED, {"released": released})

    def read_state(
        self, name: str, decode: Callable[[Mapping[str, Any]], T], hint: str = RESTORE_FILE
    ) -> T | None:
        """Read a state file of this spool; None if it is missing. ``hint``: what to do if it is
        damaged. Raises SpoolError if it is damaged, of another spool, or another file under this
        name."""
        data = self.storage.read(name)
        if data is None:
            return None
        path = self.place.named(name)
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
        """Make a state file of the spool durable; called by the writer only."""
        own = {"format": FORMAT, "file": name, "spool_id": self.identity.spool_id}
        self.storage.replace(name, encode_json({**own, **raw}))
