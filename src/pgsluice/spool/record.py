"""What a subscription knows durably: its position, and the state of each of its tables.

A record is a value that never changes; a subscription's owner replaces it and saves it with
:class:`pgsluice.spool.record_file.RecordStore`. Capture (for retention), ``status`` and the
Spark source read it. A subscription registers, which writes its first record, before the
first snapshot is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pgsluice.lsn import Lsn

_NOWHERE = Lsn(0)


class TableState(StrEnum):
    """PostgreSQL's relation states, parked and unpublished.

    What leads from one to another: :mod:`pgsluice.subscription.lifecycle`.
    """

    INITIALISE = "i"
    DATA_COPY = "d"
    COPIED = "f"
    READY = "r"
    PARKED = "p"
    UNPUBLISHED = "u"


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
        is_published: the server's publications send it; what changes while they do not is lost.
        copied_at, copied_on: the position of its copy, and the timeline whose position that
            is; 0 where they are not known.
        fingerprint: what later looks at the source's table are compared with.
        rows: changes applied so far.
        rows_skipped: rows that they updated or deleted and that the target lacked.
        error: why it is parked, for people; None otherwise.
        merge_s: how long its last merge took.
        deferred: its next merge waits, since the last one was expensive.
        next_due: seconds since 1970 until which it waits.
        target: where it lies, for people.
        version: the target's version after its last commit; -1 before the first.
        may_replace_foreign_target: the next copy may replace a target that carries another
            source's position: a user asked for it by copying the table.
        predecessor_oids: relations of the same name that are gone; the target is still theirs
            until a copy of this table replaces it.
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
    may_replace_foreign_target: bool = False
    predecessor_oids: tuple[int, ...] = ()
    rows_skipped: int = 0
    relations: tuple[int, ...] = ()
    is_published: bool = True
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
        return self.state in (TableState.COPIED, TableState.READY)

    @property
    def title(self) -> str:
        """The target's name, as messages have it."""
        return f"{self.namespace}.{self.name}"


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
        unpublished: tables that are not published any more, by relation OID: their targets
            stay as they are, and are still theirs.
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
    unpublished: Mapping[int, TableRecord] = field(default_factory=dict)
