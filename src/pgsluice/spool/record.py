"""What a subscription knows durably: its position, and the state of each of its tables.

Only the subscription's driver writes its record; capture (for retention), ``status`` and the
Spark source read it. Registration, the first write, happens before the first snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from pgsluice.errors import SpoolError
from pgsluice.lsn import Lsn
from pgsluice.spool.identity import FORMAT, check_format

_NOWHERE = Lsn(0)


class TableState(StrEnum):
    """PostgreSQL's relation states, and parked."""

    INITIALISE = "i"
    DATA_COPY = "d"
    COPIED = "f"
    SYNCHRONISED = "s"
    READY = "r"
    PARKED = "p"


class Owner(StrEnum):
    """Who a subscription belongs to."""

    CONFIG = "config"
    """The configuration: without it there, it does not hold the spool."""
    SOURCE = "source"
    """A streaming query of the ``pgoutput`` source: it holds the spool until dropped."""


@dataclass(frozen=True, slots=True)
class TableRecord:
    """One table of a subscription, known by the OID of its root relation.

    Attributes:
        namespace, name: at the source, as last seen.
        state: see :class:`TableState`.
        applied_through: end of the last batch that covered it, changes or not.
        committed: position of its last commit in the target; None before the first.
        copy_number: how often it has been copied; rises with each copy.
        fingerprint: of filters and columns on both sides.
        rows: changes applied so far.
        error: why it is parked, for people; None otherwise.
        merge_s: how long its last merge took.
        next_due: seconds since 1970 before which it is deferred; 0 when it is not.
        target: where it lies, for people.
        version: the target's version after its last commit; None before the first.
    """

    namespace: str
    name: str
    state: TableState = TableState.INITIALISE
    applied_through: Lsn = _NOWHERE
    committed: Lsn | None = None
    copy_number: int = 0
    fingerprint: str = ""
    rows: int = 0
    error: str | None = None
    merge_s: float = 0.0
    next_due: float = 0.0
    target: str = ""
    version: int | None = None

    @property
    def is_parked(self) -> bool:
        """Did it stop for an error of its own?"""
        return self.state is TableState.PARKED


@dataclass(frozen=True, slots=True)
class Cut:
    """All tables at one position: the only statement across tables that readers may rely on.

    Attributes:
        position: the end of the batch.
        written_at: seconds since 1970.
        versions: target version by relation OID.
    """

    position: Lsn
    written_at: float
    versions: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class SubscriptionRecord:
    """A subscription's durable state.

    Attributes:
        name: as configured.
        owner: see :class:`Owner`.
        mode: ``current``, ``changelog`` or ``history``.
        sink: what it writes to, for people; without secrets.
        registered: the position at which it registered.
        position: the end of the last batch that is done; the next one starts here.
        tables: by relation OID.
        cuts: recent ones, the newest last.
        extra: keys that this version does not know, kept as they are.
    """

    name: str
    owner: Owner
    mode: str
    sink: str
    registered: Lsn
    position: Lsn
    tables: Mapping[int, TableRecord] = field(default_factory=dict)
    cuts: tuple[Cut, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def newest_cut(self) -> Cut | None:
        """The newest cut; None before the first."""
        return self.cuts[-1] if self.cuts else None

    def with_table(self, oid: int, **changes: Any) -> SubscriptionRecord:
        """The record with fields of one known table changed."""
        return replace(self, tables={**self.tables, oid: replace(self.tables[oid], **changes)})

    def to_json(self) -> bytes:
        """The file's content; :meth:`from_json` reads it back."""
        raw = {
            **self.extra,
            "format": FORMAT,
            "name": self.name,
            "owner": self.owner.value,
            "mode": self.mode,
            "sink": self.sink,
            "registered": str(self.registered),
            "position": str(self.position),
            "tables": {str(oid): _table_to_json(table) for oid, table in self.tables.items()},
            "cuts": [
                {
                    "position": str(cut.position),
                    "written_at": cut.written_at,
                    "versions": {str(oid): version for oid, version in cut.versions.items()},
                }
                for cut in self.cuts
            ],
        }
        return json.dumps(raw, indent=1, ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, data: bytes, path: str) -> SubscriptionRecord:
        """Read the file's content.

        Raises:
            ForeignSpool: of a format that this version does not read.
            SpoolError: not a subscription's record.
        """
        try:
            raw: dict[str, Any] = json.loads(data)
            check_format(raw.pop("format", None), path)
            return cls(
                name=raw.pop("name"),
                owner=Owner(raw.pop("owner")),
                mode=raw.pop("mode"),
                sink=raw.pop("sink"),
                registered=Lsn.parse(raw.pop("registered")),
                position=Lsn.parse(raw.pop("position")),
                tables={
                    int(oid): _table_from_json(table) for oid, table in raw.pop("tables").items()
                },
                cuts=tuple(
                    Cut(
                        position=Lsn.parse(cut["position"]),
                        written_at=cut["written_at"],
                        versions={int(oid): version for oid, version in cut["versions"].items()},
                    )
                    for cut in raw.pop("cuts")
                ),
                extra=raw,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SpoolError(f"{path} is not a subscription's record", path=path) from error


def _table_to_json(table: TableRecord) -> dict[str, Any]:
    committed = None if table.committed is None else str(table.committed)
    return {
        **asdict(table),
        "state": table.state.value,
        "applied_through": str(table.applied_through),
        "committed": committed,
    }


def _table_from_json(raw: dict[str, Any]) -> TableRecord:
    committed = raw["committed"]
    known = {name: raw[name] for name in TableRecord.__slots__ if name in raw}
    return TableRecord(
        **{
            **known,
            "state": TableState(raw["state"]),
            "applied_through": Lsn.parse(raw["applied_through"]),
            "committed": None if committed is None else Lsn.parse(committed),
        }
    )
