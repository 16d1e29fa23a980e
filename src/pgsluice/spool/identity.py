"""The source that a spool belongs to: a small file that capture compares with the server."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pgsluice.lsn import Lsn
from pgsluice.spool.formats import FORMAT, damaged, decode_file, encode_json
from pgsluice.spool.layout import IDENTITY
from pgsluice.spool.object_storage import open_storage
from pgsluice.stores.spool_place import SpoolPlace

_NOWHERE = Lsn(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolIdentity:
    """The source that a spool belongs to.

    Attributes:
        spool_id: a UUID of the spool; targets store it together with their positions.
        system_identifier: the server's, from IDENTIFY_SYSTEM.
        timeline: the server's timeline at capture's last connection.
        history: the earlier timelines, oldest first, each with the LSN where its successor started;
            empty on the first timeline, and while the history is unknown.
        database, slot: the name of the slot, and of the database that it decodes.
        publications, options: the names, and pgoutput's options, of the last START_REPLICATION.
        intended_at: the server's flush LSN when this file was written, before the slot was created:
            see :mod:`pgsluice.capture.source.first_start`.
    """

    spool_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    system_identifier: str
    timeline: int
    database: str
    slot: str
    publications: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    intended_at: Lsn = _NOWHERE
    history: tuple[tuple[int, Lsn], ...] = ()

    def has(self, timeline: int, lsn: Lsn) -> bool:
        """Whether the source's history contains ``lsn`` on ``timeline``.

        True for a timeline that the spool does not know, because capture may follow it later.
        """
        end = dict(self.history).get(timeline)
        return end is None or lsn <= end

    def to_json(self) -> bytes:
        """Encode the content of ``identity.json``; :meth:`from_json` decodes it."""
        return encode_json(
            {
                "format": FORMAT,
                "file": IDENTITY,
                **asdict(self),
                "options": dict(self.options),
                "intended_at": str(self.intended_at),
                "history": [[timeline, str(lsn)] for timeline, lsn in self.history],
            }
        )

    @classmethod
    def from_json(cls, data: bytes, path: str) -> SpoolIdentity:
        """Decode the content of ``identity.json``; raises as :func:`read_identity`."""
        raw = decode_file(data, path)
        del raw["format"]
        try:
            if raw.pop("file", IDENTITY) != IDENTITY:
                raise ValueError
            raw["publications"] = tuple(raw["publications"])
            raw["intended_at"] = Lsn.parse(raw["intended_at"])
            history = raw.get("history", ())
            raw["history"] = tuple((int(timeline), Lsn.parse(lsn)) for timeline, lsn in history)
            return cls(**raw)
        except (ValueError, KeyError, TypeError) as error:
            raise damaged(path, "it is not the identity of a spool") from error


def read_identity(place: SpoolPlace | Path) -> SpoolIdentity | None:
    """The identity of a spool; None if the folder has none. Raises ForeignSpool if this version
    does not read its format, and SpoolError if the file cannot be read, or is damaged."""
    place = SpoolPlace.of(place)
    data = open_storage(place).read(IDENTITY)
    return None if data is None else SpoolIdentity.from_json(data, place.named(IDENTITY))


def spool_id_of(place: SpoolPlace | Path) -> str | None:
    """The id of a spool; None if the folder is not a spool. Raises as :func:`read_identity`."""
    identity = read_identity(place)
    return None if identity is None else identity.spool_id
