"""The source that a spool belongs to: a small file that capture compares with the server."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pgsluice.errors import ForeignSpool, SpoolError
from pgsluice.lsn import Lsn

FORMAT = 2
"""The format that is written. FORMAT and FORMAT - 1 are read.

2: prepared transactions, and references with the relations of their transaction.
"""

_NOWHERE = Lsn(0)


@dataclass(frozen=True, slots=True)
class SpoolIdentity:
    """The source that a spool belongs to.

    Attributes:
        spool_id: a UUID of the spool; targets store it together with their positions.
        system_identifier: of the server, from IDENTIFY_SYSTEM.
        timeline: the server's, when capture connected last.
        history: the timelines before it, oldest first, each with the LSN where its successor
            began; empty on the first timeline, and while the history is not known.
        database, slot: the name of the slot, and of the database that it decodes.
        publications: their names, as requested in START_REPLICATION.
        options: pgoutput's options, as requested.
        intended_at: the server's flush LSN when this file was written, before its slot was
            created: see :mod:`pgsluice.capture.slot`.
        format: the spool's format.
    """

    spool_id: str
    system_identifier: str
    timeline: int
    database: str
    slot: str
    publications: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    intended_at: Lsn = _NOWHERE
    format: int = FORMAT
    history: tuple[tuple[int, Lsn], ...] = ()

    @classmethod
    def new(
        cls,
        *,
        system_identifier: str,
        timeline: int,
        database: str,
        slot: str,
        publications: tuple[str, ...] = (),
        options: Mapping[str, str] | None = None,
        intended_at: Lsn = _NOWHERE,
    ) -> SpoolIdentity:
        """An identity with a new spool id."""
        return cls(
            spool_id=str(uuid.uuid4()),
            system_identifier=system_identifier,
            timeline=timeline,
            database=database,
            slot=slot,
            publications=publications,
            options=dict(options or {}),
            intended_at=intended_at,
        )

    def has(self, timeline: int, lsn: Lsn) -> bool:
        """Does the source's history contain ``lsn`` of ``timeline``?

        True for a timeline that the spool does not know, because capture may follow it later.
        """
        end = dict(self.history).get(timeline)
        return end is None or lsn <= end

    def to_json(self) -> bytes:
        """The file's content; :meth:`from_json` reads it back."""
        return json.dumps(
            {
                **asdict(self),
                "options": dict(self.options),
                "intended_at": str(self.intended_at),
                "history": [[timeline, str(lsn)] for timeline, lsn in self.history],
            },
            indent=1,
        ).encode()

    @classmethod
    def from_json(cls, data: bytes, path: str) -> SpoolIdentity:
        """Read the file's content.

        Raises:
            ForeignSpool: a newer format than this version reads.
            SpoolError: not an identity.
        """
        try:
            raw: dict[str, Any] = json.loads(data)
            check_format(raw["format"], path)
            raw["publications"] = tuple(raw["publications"])
            raw["intended_at"] = Lsn.parse(raw["intended_at"])
            history = raw.get("history", ())
            raw["history"] = tuple((int(timeline), Lsn.parse(lsn)) for timeline, lsn in history)
            return cls(**raw)
        except (ValueError, KeyError, TypeError) as error:
            raise SpoolError(f"{path} is not the identity of a spool", path=path) from error


def check_format(
    written_format: object, path: str, *, oldest: int = FORMAT - 1, newest: int = FORMAT
) -> None:
    """Refuse a file of a format that this version does not read.

    Raises:
        ForeignSpool: the format is newer or older than what is read.
    """
    if not isinstance(written_format, int) or not oldest <= written_format <= newest:
        raise ForeignSpool(
            f"{path} has format {written_format}; this pgsluice reads {oldest} to {newest}",
            hint="use the version of pgsluice that wrote it, or a newer one",
            path=path,
            format=written_format,
        )
