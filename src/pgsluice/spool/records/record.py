"""A subscription's record: its position, and the state of each of its tables.

A record is an immutable value. The subscription's owner saves each new one with
:class:`pgsluice.spool.records.file.RecordStore`. Capture (for retention), ``status`` and the Spark
source read it. A subscription *registers* by saving its first record, before its first snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from operator import attrgetter
from typing import Any, NamedTuple

from pgsluice.lsn import Lsn
from pgsluice.shown import shown

_NOWHERE = Lsn(0)


TargetName = tuple[str, str]
"""A target's schema and table name."""


class TableState(StrEnum):
    """PostgreSQL's relation states, parked and unpublished.

    The transitions between them are in :mod:`pgsluice.subscription.lifecycle.transitions`.
    """

    INITIALISE = "i"
    DATA_COPY = "d"
    COPIED = "f"
    READY = "r"
    PARKED = "p"
    UNPUBLISHED = "u"


class Owner(StrEnum):
    """What a subscription belongs to."""

    CONFIG = "config"
    """The configuration: the subscription holds the spool as long as the configuration names it."""
    SOURCE = "source"
    """A query of the ``pgoutput`` source: the subscription holds the spool until it is dropped."""


class OldTarget(NamedTuple):
    """The target under a table's old name, from which its target under the new name is copied.

    Attributes:
        namespace, name: the old name.
        copy_number: of the table's copy there.
        version: the target's version that has the table's last commit.
    """

    namespace: str
    name: str
    copy_number: int
    version: int


class UnseenLeaf(NamedTuple):
    """A leaf whose rows the target may have, though no look has found it at the table.

    Attributes:
        oid: the leaf.
        parent, condition, columns: the only bound that it has had, as
            :class:`pgsluice.facts.LeafBound` has it; without a parent it is not known.
    """

    oid: int
    parent: int = 0
    condition: str = ""
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableRecord:
    """One table of a subscription, known by the OID of its root relation.

    Attributes:
        namespace, name: the target's: the name of the source's table at the last look.
        state: see :class:`TableState`.
        applied_through: the end of the last batch that covered the table, with changes or not.
        committed: the position of its last commit in the target; 0 before the first.
        copy_number: how often it has been copied; rises with each copy.
        is_published: do the server's publications send it? Changes made while they do not are
            lost.
        copied_for: what the last copy was made for that a failure asked for, or the end of the
            reason for which it was parked (:func:`pgsluice.schema_rules.cause_of_copy`).
        parked_for: a :class:`pgsluice.errors.ParkReason` that a look can see end; else empty.
        alter_after: the target gets columns that a look found once the table is applied through
            this position; 0: none is due.
        alter_facts: the facts of the source's table at that look, as JSON.
        old_target: in state ``d``, after the table was renamed: its rows are copied from there.
        load_leaves: in state ``d``: only these partitions are loaded, into the rows that the target
            has.
        gone_bounds: in state ``d``: only the rows that fulfil one of these SQL conditions are
            replaced, since partitions with such rows are gone. Without these and ``load_leaves``
            the whole table is copied.
        gone_leaves: these partitions; their changes do not count any more.
        unseen_leaves: the leaves that batches have brought since the last look, and that it has
            not found. The others are those of the fingerprint.
        copy_reason: why it is copied again, or rows of partitions are replaced, or were the last
            time, for people; empty: only its first copy was made.
        incomplete: what its target does not get, although the table is not parked, for people.
        copied_at, copied_on: the position of its copy, and the timeline of that position; 0 where
            they are not known.
        looked_at, looked_on: the LSN and timeline before which the server's WAL has all that the
            fingerprint has; 0 where a copy read it, or where they are not known.
        to_verify: why its target has to be compared with the source; empty: it need not.
        verification_number: rises with each reason to verify it.
        fingerprint: of the source's table; a later look at the table is compared with it.
        rows: the number of changes applied so far.
        rows_skipped: rows that changes updated or deleted, but that the target did not have.
        error: why the table is parked, for people; None otherwise.
        merge_s: the duration of its last merge.
        deferred: its next merge waits, because the last one was expensive.
        next_due: it waits until then, in seconds since 1970.
        target: where the target lies, for people.
        version: the target's version after its last commit; -1 before the first.
        may_replace_foreign_target: the next copy may replace a target that carries another
            source's position: a user asked for it by copying the table.
        predecessor_oids: dropped relations of the same name; the target has their rows until a
            copy of this table replaces it.
        relations: the relations whose changes belong to this table, if one of pgsluice's own
            publications sends some partitions of its root; empty: all relations with this root.
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
    looked_at: Lsn = _NOWHERE
    looked_on: int = 0
    to_verify: str = ""
    verification_number: int = 0
    alter_after: Lsn = _NOWHERE
    alter_facts: str = ""
    copied_for: str = ""
    parked_for: str = ""
    old_target: OldTarget | None = None
    incomplete: tuple[str, ...] = ()
    load_leaves: tuple[int, ...] = ()
    gone_bounds: tuple[str, ...] = ()
    gone_leaves: tuple[int, ...] = ()
    copy_reason: str = ""
    unseen_leaves: tuple[UnseenLeaf, ...] = ()

    def at(self, position: Lsn) -> TableRecord:
        """The same, applied through another position.

        Each batch moves all tables of a subscription: ``dataclasses.replace`` would take most of
        its time where there are thousands.
        """
        return TableRecord(self.namespace, self.name, self.state, position, *_after_position(self))

    @property
    def shown_state(self) -> TableState:
        """The state that people see: the target of an active table that is not sent stands still,
        like that of an unpublished one."""
        return self.state if self.is_published or not self.is_active else TableState.UNPUBLISHED

    @property
    def is_parked(self) -> bool:
        """Does it get no changes because of an error?"""
        return self.state is TableState.PARKED

    @property
    def is_to_copy(self) -> bool:
        """Does it wait for a copy, or for one to end?"""
        return self.state in (TableState.INITIALISE, TableState.DATA_COPY)

    @property
    def replaces_partitions(self) -> bool:
        """Does it wait for rows of some partitions, while the target keeps all others?"""
        is_begun = self.state is TableState.DATA_COPY
        return is_begun and bool(self.load_leaves or self.gone_bounds)

    @property
    def copy_words(self) -> str:
        """What is copied again now, and why, for people; empty: nothing is."""
        if not self.is_to_copy or not self.copy_reason:
            return ""
        what = "rows of partitions are replaced" if self.replaces_partitions else "is copied again"
        why = self.copy_reason.removeprefix(f"{self.title}: ").removeprefix(f"{self.title} ")
        return f"{what}: {why}"

    @property
    def is_active(self) -> bool:
        """Is it copied, so that changes are applied to it?"""
        return self.state in (TableState.COPIED, TableState.READY)

    @property
    def target_name(self) -> TargetName:
        """The target's name, which no other table of the subscription has."""
        return self.namespace, self.name

    @property
    def title(self) -> str:
        """The target's name, as messages have it."""
        return shown(f"{self.namespace}.{self.name}")


_after_position = attrgetter(*(field.name for field in fields(TableRecord)[4:]))


@dataclass(frozen=True, slots=True)
class FormerTarget:
    """A target that a renamed table left: it stands still until a table has its name again.

    Attributes:
        oids: the tables whose rows it may have, the last one first.
        target: where it lies, for people.
        why: why it stands still, for people.
    """

    oids: tuple[int, ...]
    target: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Cut:
    """All tables at one position. Only a cut tells readers what several tables have in common.

    Attributes:
        lsn: the end of the batch.
        made_at: seconds since 1970.
        versions: each target's version, by relation OID.
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
        sink: the target, for people; without secrets.
        registered: the position at which it registered.
        position: the end of the last batch; the next one starts here.
        looked_through: transactions with a position up to this were seen by the last look at the
            catalog, but for those whose commits waited for a synchronous standby then; 0 before
            the first.
        tables: by relation OID.
        unpublished: tables that are no longer published, by relation OID: their targets stay as
            they are, and still belong to them.
        former: targets that renamed tables left, by name.
        query: what a query of the ``pgoutput`` source reads
            (:mod:`pgsluice.spark.source.registration`); empty for one of a configuration.
        cut: the newest; None before the first.
        cuts: older ones for readers that still use them, about one a minute, the newest last.
        extra: keys that this version does not know; they are saved unchanged.
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
    former: Mapping[TargetName, FormerTarget] = field(default_factory=dict)
    looked_through: Lsn = _NOWHERE
    query: Mapping[str, Any] = field(default_factory=dict)
