"""What a subscription knows durably: its position, and the state of each of its tables.

Only the subscription's driver writes its record; capture (for retention), ``status`` and the
Spark source read it. Registration, the first write, happens before the first snapshot.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from pgsluice.errors import SpoolError
from pgsluice.lsn import Lsn
from pgsluice.spool.identity import FORMAT, check_format
from pgsluice.spool.storage import LocalStorage

_NOWHERE = Lsn(0)
_SUBSCRIPTION_NAME = re.compile(r"\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")


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
        namespace, name: of the target: what the source's table was called when it was found.
        state: see :class:`TableState`.
        applied_through: end of the last batch that covered it, changes or not.
        committed: position of its last commit in the target; 0 before the first.
        copy_number: how often it has been copied; rises with each copy.
        copied_at, copied_on: the position of its copy, and the timeline whose position that
            is; 0 where they are not known.
        fingerprint: what later looks at the source's table are compared with.
        rows: changes applied so far.
        error: why it is parked, for people; None otherwise.
        merge_s: how long its last merge took.
        deferred: its next merge waits, since the last one was expensive.
        next_due: seconds since 1970 until which it waits.
        target: where it lies, for people.
        version: the target's version after its last commit; -1 before the first.
        adopts: the next copy may take over a target that carries another source's position:
            a user asked for it by copying the table.
        replaces: relations of the same name that were here before and are gone; the target
            is still theirs until the copy that takes it over.
        relations: those whose changes are this table's, where a publication of ours gives it
            some partitions of its root; empty: all that have it as their root.
    """

    namespace: str
    name: str
    state: TableState = TableState.INITIALISE
    applied_through: Lsn = _NOWHERE
    committed: Lsn = _NOWHERE
    copy_number: int = 0
    fingerprint: str = ""
    rows: int = 0
    error: str | None = None
    merge_s: float = 0.0
    deferred: bool = False
    next_due: float = 0.0
    target: str = ""
    version: int = -1
    adopts: bool = False
    replaces: tuple[int, ...] = ()
    relations: tuple[int, ...] = ()
    copied_at: Lsn = _NOWHERE
    copied_on: int = 0

    @property
    def is_parked(self) -> bool:
        """Did it stop for an error of its own?"""
        return self.state is TableState.PARKED

    @property
    def is_to_copy(self) -> bool:
        """Does it wait for a copy, perhaps one that was cut off?"""
        return self.state in (TableState.INITIALISE, TableState.DATA_COPY)

    @property
    def is_active(self) -> bool:
        """Is it copied, so that it takes changes?"""
        return not self.is_parked and not self.is_to_copy


@dataclass(frozen=True, slots=True)
class Cut:
    """All tables at one position: the only statement across tables that readers may rely on.

    Attributes:
        lsn: the end of the batch.
        made_at: seconds since 1970.
        versions: target version by relation OID.
    """

    lsn: Lsn
    made_at: float
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
        left: tables that are not published any more, by relation OID: their targets stay as they
            are, and are still theirs.
        cut: the newest; None before the first.
        cuts: older ones that still have readers, about one a minute, the newest last.
        extra: keys that this version does not know, kept as they are.
    """

    name: str
    owner: Owner
    mode: str
    sink: str
    registered: Lsn
    position: Lsn
    tables: Mapping[int, TableRecord] = field(default_factory=dict)
    cut: Cut | None = None
    cuts: tuple[Cut, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    left: Mapping[int, TableRecord] = field(default_factory=dict)

    def with_table(self, oid: int, **changes: Any) -> SubscriptionRecord:
        """The record with fields of one known table changed."""
        return replace(self, tables={**self.tables, oid: replace(self.tables[oid], **changes)})

    def to_copy(self, oid: int, *, adopts: bool = False) -> SubscriptionRecord:
        """The record with one known table marked to be copied (again).

        Args:
            oid: the table.
            adopts: see :class:`TableRecord`; stays once it is set.
        """
        return self.with_table(
            oid,
            state=TableState.INITIALISE,
            error=None,
            deferred=False,
            adopts=adopts or self.tables[oid].adopts,
        )

    @classmethod
    def load(cls, spool_path: str | Path, name: str) -> SubscriptionRecord:
        """Read a registered subscription's record.

        Raises:
            SpoolError: it has not registered, or its record cannot be read.
        """
        record = cls.find(spool_path, name)
        if record is None:
            raise SpoolError(
                f"the subscription {name} is not known to the spool {spool_path}",
                hint="`pgsluice run` registers it at its first start",
            )
        return record

    @classmethod
    def find(cls, spool_path: str | Path, name: str) -> SubscriptionRecord | None:
        """Read a subscription's record; None before it registered.

        Raises:
            SpoolError: the record cannot be read.
        """
        path = record_name(name)
        data = LocalStorage(Path(spool_path)).read(path)
        return None if data is None else cls.from_json(data, path)

    def save(self, spool_path: str | Path) -> None:
        """Replace the record durably; only the subscription's driver may.

        Raises:
            SpoolError: it could not be written; the old one is as it was.
        """
        LocalStorage(Path(spool_path)).replace(record_name(self.name), self.to_json())

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
            "tables": _tables_to_json(self.tables),
            "left": _tables_to_json(self.left),
            "cut": None if self.cut is None else _cut_to_json(self.cut),
            "cuts": [_cut_to_json(cut) for cut in self.cuts],
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
            cut = raw.pop("cut")
            check_format(raw.pop("format", None), path)
            return cls(
                name=raw.pop("name"),
                owner=Owner(raw.pop("owner")),
                mode=raw.pop("mode"),
                sink=raw.pop("sink"),
                registered=Lsn.parse(raw.pop("registered")),
                position=Lsn.parse(raw.pop("position")),
                tables=_tables_from_json(raw.pop("tables")),
                left=_tables_from_json(raw.pop("left", {})),
                cut=None if cut is None else _cut_from_json(cut),
                cuts=tuple(_cut_from_json(one) for one in raw.pop("cuts")),
                extra=raw,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SpoolError(f"{path} is not a subscription's record", path=path) from error


def record_name(name: str) -> str:
    """Where a subscription's record lies below the spool.

    Raises:
        SpoolError: the name cannot be a folder's.
    """
    if not _SUBSCRIPTION_NAME.match(name):
        raise SpoolError(f"{name!r} cannot name a subscription: letters, digits, _ . - only")
    return f"subscriptions/{name}/record.json"


def _cut_to_json(cut: Cut) -> dict[str, Any]:
    versions = {str(oid): version for oid, version in cut.versions.items()}
    return {"lsn": str(cut.lsn), "made_at": cut.made_at, "versions": versions}


def _cut_from_json(raw: dict[str, Any]) -> Cut:
    versions = {int(oid): version for oid, version in raw["versions"].items()}
    return Cut(lsn=Lsn.parse(raw["lsn"]), made_at=raw["made_at"], versions=versions)


def _tables_to_json(tables: Mapping[int, TableRecord]) -> dict[str, Any]:
    return {str(oid): _table_to_json(table) for oid, table in tables.items()}


def _tables_from_json(raw: dict[str, Any]) -> dict[int, TableRecord]:
    return {int(oid): _table_from_json(table) for oid, table in raw.items()}


def _table_to_json(table: TableRecord) -> dict[str, Any]:
    return {
        **asdict(table),
        "state": table.state.value,
        "applied_through": str(table.applied_through),
        "committed": str(table.committed),
        "copied_at": str(table.copied_at),
    }


def _table_from_json(raw: dict[str, Any]) -> TableRecord:
    known = {name: raw[name] for name in TableRecord.__slots__ if name in raw}
    return TableRecord(
        **{
            **known,
            "replaces": tuple(raw.get("replaces", ())),
            "relations": tuple(raw.get("relations", ())),
            "state": TableState(raw["state"]),
            "applied_through": Lsn.parse(raw["applied_through"]),
            "committed": Lsn.parse(raw["committed"]),
            "copied_at": Lsn.parse(raw.get("copied_at", "0/0")),
        }
    )
