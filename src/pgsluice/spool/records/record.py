"""A subscription's record: its position, and the state of each of its tables.

A record is an immutable value. The subscription's owner saves each new one with
:class:`pgsluice.spool.records.file.RecordStore`. Capture (for retention), ``status`` and the Spark
source read it. A subscription *registers* by saving its first record, before its first snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
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


class Partitions(NamedTuple):
    """The only partitions whose rows a copy replaces; the target keeps all other rows.

    Attributes:
        load: the partitions whose rows are loaded.
        gone: partitions whose rows are deleted; their changes do not count any more.
        gone_bounds: the SQL conditions of these rows.
    """

    load: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()
    gone_bounds: tuple[str, ...] = ()


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


class AddedColumns(NamedTuple):
    """Columns that a catalog refresh found, and that the target does not have yet.

    Attributes:
        after: the target gets them once the table is applied through this position.
        facts: of the source's table at that refresh, as JSON.
    """

    after: Lsn
    facts: str


@dataclass(frozen=True, slots=True)
class SourceView:
    """The source's table as the last catalog refresh, or its copy's snapshot, had it.

    Attributes:
        fingerprint: the next refresh is compared with it; empty before a copy.
        relations: the relations whose changes belong to this table, if one of pgsluice's own
            publications sends some partitions of its root; empty: all relations with this root.
        lsn, timeline: before which the server's WAL has all that the fingerprint has; 0 where a
            copy read it, or where they are not known.
    """

    fingerprint: str = ""
    relations: tuple[int, ...] = ()
    lsn: Lsn = _NOWHERE
    timeline: int = 0


@dataclass(frozen=True, slots=True)
class Copied:
    """A table's last copy, and why it was made, or why the next one is.

    Attributes:
        position, timeline: of its snapshot; 0 where they are not known.
        cause: what a failure asked for a copy for, or the end of the reason for which the table was
            parked (:func:`pgsluice.schema_rules.cause_of_copy`).
        reason: why it is copied again, or rows of partitions are replaced, or were the last time,
            for people; empty: only its first copy was made.
    """

    position: Lsn = _NOWHERE
    timeline: int = 0
    cause: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """Which rows of others a table's copy may replace at its target.

    Attributes:
        predecessor_oids: dropped relations of the same name, whose rows the target has.
        any_source: also those of another source: a user asked for it by copying the table.
    """

    predecessor_oids: tuple[int, ...] = ()
    any_source: bool = False


@dataclass(frozen=True, slots=True)
class Pending:
    """What waits at a table whose target has the rows of a position.

    Attributes:
        due: its next merge waits until then, in seconds since 1970; None: it does not wait.
        columns: those that its target gets; None: none.
        verification: why its target has to be compared with the source; empty: it need not.
        unseen_leaves: the leaves that batches have brought since the last look, and that it has
            not found. The others are those of the fingerprint.
    """

    due: float | None = None
    columns: AddedColumns | None = None
    verification: str = ""
    unseen_leaves: tuple[UnseenLeaf, ...] = ()


@dataclass(frozen=True, slots=True)
class TableRecord:
    """One table of a subscription, known by the OID of its root relation.

    ``claim``, ``copying``, ``pending`` and ``parked_for`` belong to some states
    (:meth:`in_state`); in the others they have their default.

    Attributes:
        namespace, name: the target's: the name of the source's table at the last look.
        state: see :class:`TableState`.
        applied_through: the end of the last batch that covered the table, with changes or not.
        committed: the position of its last commit in the target; 0 before the first.
        copy_number: how often it has been copied; rises with each copy.
        source: what is known of the source's table.
        error: why the table is parked, or does not go on now, for people; None otherwise.
        rows: the number of changes applied so far.
        rows_skipped: rows that changes updated or deleted, but that the target did not have.
        merge_s: the duration of its last merge.
        target: where the target lies, for people.
        version: the target's version after its last commit; -1 before the first.
        is_published: do the server's publications send it? Changes made while they do not are
            lost.
        incomplete: what its target does not get, although the table is not parked, for people.
        verification_number: rises with each reason to verify it.
        copied: its last copy.
        claim: which rows its copy may replace; until the copy has replaced them.
        copying: in state ``d``, what is copied instead of the whole table; None: the whole table.
        pending: what an active table, or one that replaces only some rows, still waits for.
        parked_for: in state ``p``, a :class:`pgsluice.errors.ParkReason` that a look can see end;
            else empty.
    """

    namespace: str
    name: str
    state: TableState = TableState.INITIALISE
    applied_through: Lsn = _NOWHERE
    committed: Lsn = _NOWHERE
    copy_number: int = 0
    source: SourceView = SourceView()
    error: str | None = None
    rows: int = 0
    rows_skipped: int = 0
    merge_s: float = 0.0
    target: str = ""
    version: int = -1
    is_published: bool = True
    incomplete: tuple[str, ...] = ()
    verification_number: int = 0
    copied: Copied = Copied()
    claim: Claim = Claim()
    copying: OldTarget | Partitions | None = None
    pending: Pending = Pending()
    parked_for: str = ""

    def at(self, position: Lsn) -> TableRecord:
        """The same, applied through another position.

        Each batch moves all tables of a subscription: ``dataclasses.replace`` would take most of
        its time where there are thousands.
        """
        return TableRecord(self.namespace, self.name, self.state, position, *_after_position(self))

    def set_back(self, position: Lsn) -> TableRecord:
        """The same, with a target that is at an earlier position again."""
        return replace(self, applied_through=position, committed=position)

    def in_state(self, state: TableState) -> TableRecord:
        """The same in another state, without what that state does not use."""
        is_active = state in (TableState.COPIED, TableState.READY)
        copying = self.copying if state is TableState.DATA_COPY else None
        pending = self.pending
        if not is_active:
            pending = Pending() if copying is None else replace(pending, due=None)
        return replace(
            self,
            state=state,
            claim=Claim() if is_active else self.claim,
            copying=copying,
            pending=pending,
            parked_for=self.parked_for if state is TableState.PARKED else "",
        )

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
        return isinstance(self.copying, Partitions)

    @property
    def partitions(self) -> Partitions:
        """The partitions whose rows alone are replaced; empty where none are."""
        return self.copying if isinstance(self.copying, Partitions) else Partitions()

    @property
    def old_target(self) -> OldTarget | None:
        """The target that its rows are copied from; None: it is not copied, or otherwise."""
        return self.copying if isinstance(self.copying, OldTarget) else None

    @property
    def copy_words(self) -> str:
        """What is copied again now, and why, for people; empty: nothing is."""
        reason = self.copied.reason
        if not self.is_to_copy or not reason:
            return ""
        what = "rows of partitions are replaced" if self.replaces_partitions else "is copied again"
        why = reason.removeprefix(f"{self.title}: ").removeprefix(f"{self.title} ")
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
