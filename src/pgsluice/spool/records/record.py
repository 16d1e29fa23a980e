"""A subscription's record: its position, and the state of each of its tables.

A record is an immutable value. The subscription's owner saves each new one with
:class:`pgsluice.spool.records.store.RecordStore`. Capture (for retention), ``status`` and the Spark
source read it. A subscription *registers* by saving its first record, before its first snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from operator import attrgetter
from typing import Any, NamedTuple

from pgsluice.lsn import Lsn
from pgsluice.shown import shown, without_table

_NOWHERE = Lsn(0)


TargetName = tuple[str, str]
"""The schema and table name of a target."""


class TableState(StrEnum):
    """The state of a table: PostgreSQL's relation states, and two more for parked and unpublished
    tables.

    :mod:`pgsluice.subscription.lifecycle.transitions` has the transitions between them.
    """

    INITIALISE = "i"
    DATA_COPY = "d"
    COPIED = "f"
    READY = "r"
    PARKED = "p"
    UNPUBLISHED = "u"


class Owner(StrEnum):
    """The owner of a subscription, which decides how long the spool keeps changes for it."""

    CONFIG = "config"
    """The configuration: the spool keeps its changes as long as the configuration has the
    subscription."""
    SOURCE = "source"
    """A query of the ``pgoutput`` source: the spool keeps its changes until the subscription is
    dropped."""


class OldTarget(NamedTuple):
    """The target of a renamed table's old name, from which the target of its new name is copied.

    Attributes:
        namespace, name: the old name.
        copy_number: the number of the table's copy there.
        version: the target's version that has the table's last commit.
    """

    namespace: str
    name: str
    copy_number: int
    version: int


class Partitions(NamedTuple):
    """A copy that replaces only the rows of some partitions; the target keeps all other rows.

    Attributes:
        load: the partitions whose rows are loaded.
        gone: removed partitions, whose rows are deleted and whose changes are ignored from now on.
        gone_bounds: the SQL conditions on these rows.
    """

    load: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()
    gone_bounds: tuple[str, ...] = ()


class UnseenLeaf(NamedTuple):
    """A leaf partition whose rows may be in the target, although no catalog refresh has found it.

    Attributes:
        oid: the partition's OID.
        parent, condition, columns: the only bound that the partition has had, as in
            :class:`pgsluice.facts.LeafBound`; no parent: unknown.
    """

    oid: int
    parent: int = 0
    condition: str = ""
    columns: tuple[str, ...] = ()


class AddedColumns(NamedTuple):
    """Columns that a catalog refresh found, and that the target does not have yet.

    Attributes:
        after: the target gets them once the table is applied through this position.
        facts: JSON of the source table's relation metadata at that refresh.
    """

    after: Lsn
    facts: str


@dataclass(frozen=True, slots=True)
class SourceView:
    """The source's table at the last catalog refresh, or in the snapshot of its copy.

    Attributes:
        fingerprint: the baseline for the next refresh; empty before a copy.
        relations: the relations that belong to this table, if own publications send only some
            partitions of its root; empty: all relations with this root.
        lsn, timeline: the end of the server's WAL, and its timeline, when the fingerprint was read;
            0 if a copy read it, or if unknown.
    """

    fingerprint: str = ""
    relations: tuple[int, ...] = ()
    lsn: Lsn = _NOWHERE
    timeline: int = 0


@dataclass(frozen=True, slots=True)
class Copied:
    """A table's last copy, with the reason for it or for the next one.

    Attributes:
        position, timeline: the position and timeline of its snapshot; 0 if unknown.
        cause: the failure that required the copy, or the end of the reason for which the table was
            parked (:func:`pgsluice.schema_rules.known.cause_of_copy`).
        reason: why the table is copied again, or why rows of partitions are or were replaced, as
            text for the user; empty: only the first copy was made.
    """

    position: Lsn = _NOWHERE
    timeline: int = 0
    cause: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """The rows of other tables that a table's copy may replace in its target.

    Attributes:
        predecessor_oids: dropped relations of the same name, whose rows the target has.
        any_source: also rows of another source, because a user requested the copy.
        repairs: only rows of ranges that differ from the source, if these are few.
    """

    predecessor_oids: tuple[int, ...] = ()
    any_source: bool = False
    repairs: bool = False


@dataclass(frozen=True, slots=True)
class Pending:
    """Pending work of a table whose target has the rows of a position.

    Attributes:
        due: its next merge waits until this time, in seconds since 1970; None: it does not wait.
        columns: the columns that its target has to get; None: none.
        verification: why its target has to be compared with the source; empty: it does not.
        unseen_leaves: leaf partitions with applied changes that the last catalog refresh has not
            found. The fingerprint has the others.
    """

    due: float | None = None
    columns: AddedColumns | None = None
    verification: str = ""
    unseen_leaves: tuple[UnseenLeaf, ...] = ()


@dataclass(frozen=True, slots=True)
class TableRecord:
    """One table of a subscription, identified by the OID of its root relation.

    ``claim``, ``copying``, ``pending`` and ``parked_for`` belong to some states only
    (:meth:`in_state`); in other states they have their default.

    Attributes:
        namespace, name: the target's schema and name: those of the source's table at the last
            catalog refresh.
        state: see :class:`TableState`.
        applied_through: the end of the last batch for the table, whether or not it had changes.
        committed: the position of its last commit in the target; 0 before the first.
        copy_number: how often it has been copied; each copy raises it.
        source: the state of the source's table.
        error: why the table is parked or does not continue now, as text for the user; else None.
        rows: the number of applied changes.
        rows_skipped: rows that changes updated or deleted, but that the target did not have.
        rejects: values of the source's rows that their target columns cannot hold.
        merge_s: the duration of its last merge.
        target: where the target is, as text for the user.
        version: the target's version after its last commit; -1 before the first.
        is_published: whether the server's publications send it. Changes that they do not send are
            lost.
        incomplete: which changes its target does not get although the table is not parked, as text
            for the user.
        verification_number: raised with each reason to verify the table.
        copied: its last copy.
        claim: the rows that its copy may replace, until the copy has replaced them.
        copying: in state ``d``: what is copied instead of the whole table; None: the whole table.
        pending: pending work of a replicating table, or of one that replaces only some rows.
        parked_for: in state ``p``: a :class:`pgsluice.errors.ParkReason` whose end a catalog
            refresh can detect; else empty.
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
    rejects: int = 0
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
        """The same record, applied through another position.

        Each batch advances all tables of a subscription: with thousands of tables,
        ``dataclasses.replace`` would take most of its time.
        """
        return TableRecord(self.namespace, self.name, self.state, position, *_after_position(self))

    def set_back(self, position: Lsn) -> TableRecord:
        """The same record, for a target that is at an earlier position again."""
        return replace(self, applied_through=position, committed=position)

    def in_state(self, state: TableState) -> TableRecord:
        """The same record in another state, without data that this state does not use."""
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
        """The state to display: the target of a replicating but unpublished table is no longer
        updated, as if the table were in state ``u``."""
        return self.state if self.is_published or not self.is_active else TableState.UNPUBLISHED

    @property
    def is_parked(self) -> bool:
        """Whether the table gets no changes because of an error."""
        return self.state is TableState.PARKED

    @property
    def is_to_copy(self) -> bool:
        """Whether the table waits for a copy, or is being copied."""
        return self.state in (TableState.INITIALISE, TableState.DATA_COPY)

    @property
    def replaces_partitions(self) -> bool:
        """Whether only the rows of some partitions are being replaced."""
        return isinstance(self.copying, Partitions)

    @property
    def partitions(self) -> Partitions:
        """The partitions whose rows are being replaced; empty if none are."""
        return self.copying if isinstance(self.copying, Partitions) else Partitions()

    @property
    def old_target(self) -> OldTarget | None:
        """The target that its rows are copied from; None: it is not copied from a target."""
        return self.copying if isinstance(self.copying, OldTarget) else None

    @property
    def copy_words(self) -> str:
        """What is being copied again, and why, as text for the user; empty: nothing."""
        reason = self.copied.reason
        if not self.is_to_copy or not reason:
            return ""
        action = "replaces rows of partitions" if self.replaces_partitions else "copies it again"
        if self.claim.repairs:
            action = "repairs it"
        return f"pgsluice {action}: {without_table(reason, self.title)}"

    @property
    def is_active(self) -> bool:
        """Whether it is replicating: copied, so that changes are applied."""
        return self.state in (TableState.COPIED, TableState.READY)

    @property
    def target_name(self) -> TargetName:
        """The schema and name of the table's target, unique in the subscription."""
        return self.namespace, self.name

    @property
    def title(self) -> str:
        """The ``schema.name`` of the table's target, for messages."""
        return shown(f"{self.namespace}.{self.name}")


_after_position = attrgetter(*(field.name for field in fields(TableRecord)[4:]))


@dataclass(frozen=True, slots=True)
class FormerTarget:
    """A previous target, which a renamed table left. It is not updated until a table has its name
    again.

    Attributes:
        oids: the tables whose rows it may have, the latest first.
        target: where it is, as text for the user.
        why: why it is no longer updated, as text for the user.
    """

    oids: tuple[int, ...]
    target: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Cut:
    """A consistent checkpoint: all tables at one position. Only it makes a statement about several
    tables.

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
        name: the configured name.
        owner: see :class:`Owner`.
        mode: ``current``, ``changelog`` or ``history``.
        sink: the target without secrets, as text for the user.
        registered: the position at which the subscription registered.
        position: the end of the last batch, where the next one starts.
        looked_through: the last catalog refresh has seen the transactions up to this position,
            except those whose commits were waiting for a synchronous standby; 0 before the first
            refresh.
        tables: by relation OID.
        unpublished: unpublished tables by relation OID: they still own their targets, which are no
            longer updated.
        former: targets that renamed tables left, by name.
        query: what a query of the ``pgoutput`` source reads
            (:mod:`pgsluice.spark.source.streaming.registration`); empty for a subscription of a
            configuration.
        cut: the newest consistent checkpoint; None before the first.
        cuts: older checkpoints for readers that still use them, about one a minute, the newest
            last.
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
