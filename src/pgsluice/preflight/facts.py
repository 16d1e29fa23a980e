"""The input of the checks: facts about the server, the spool and this machine, gathered once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pgsluice.capture.source.timeline import Received
from pgsluice.catalog.rights import TableRights
from pgsluice.catalog.server import ServerInfo, SlotInfo
from pgsluice.catalog.tables.keys import UniqueIndex
from pgsluice.config import Config
from pgsluice.definitions.published import PublishedRelation
from pgsluice.definitions.source_tables import SourceCatalog
from pgsluice.errors import PgsluiceError
from pgsluice.lsn import Lsn
from pgsluice.monitor.source_status import CaptureStatus
from pgsluice.preflight.findings import Finding
from pgsluice.replication import SystemIdentity, TimelineSwitch
from pgsluice.shown import shown
from pgsluice.spark.session.java import Java
from pgsluice.spool import SpoolIdentity, SubscriptionRecord
from pgsluice.sql import quote_identifier


@dataclass(frozen=True, slots=True)
class ReplicationFacts:
    """The result of a replication connection.

    Attributes:
        identity: the answer to IDENTIFY_SYSTEM; None without a connection.
        switches: the server's earlier timelines, oldest first.
        problem: why there is no connection; None if there is one, or if the role may not
            replicate and so none was tried.
    """

    identity: SystemIdentity | None = None
    switches: tuple[TimelineSwitch, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class PublicationFacts:
    """The server's publications that ``[source]`` names.

    Attributes:
        existing, missing: the configured names, split by whether the publication exists.
        foreign_tables: tables that only another role may publish.
        statements: SQL that creates the missing ones; empty if none is missing.
        problem: why the first run will refuse them; None if it will not.
        ours: managed publications that our role may alter.
        of_others: managed publications that another role owns.
        left: SQL that our publications still need, but that our role lacks the privilege to run.
        similar: a user's publication whose name is similar to the missing one, which may be a
            misspelling.
    """

    existing: tuple[str, ...]
    missing: tuple[str, ...]
    foreign_tables: tuple[str, ...]
    statements: str
    problem: str | None = None
    ours: tuple[str, ...] = ()
    of_others: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    similar: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table that the server's publications send, or will send after the first run.

    Attributes:
        has_identity: its updates and deletes can be published.
        is_full: its replica identity is FULL.
        has_key: it has a primary key or a replica identity index.
        sends_updates: an existing publication sends its updates or deletes.
        same_names: columns whose names differ only in case, as ``A and a``.
        unique: a unique index whose columns, all NOT NULL, can be its key.
    """

    schema: str
    name: str
    has_identity: bool
    is_full: bool
    has_key: bool
    sends_updates: bool
    same_names: tuple[str, ...] = ()
    unique: UniqueIndex | None = None

    @property
    def shown(self) -> str:
        """The table's name for a sentence."""
        return shown(f"{self.schema}.{self.name}")

    @property
    def sql_name(self) -> str:
        """The table's name for a statement, qualified and quoted."""
        return f"{quote_identifier(self.schema)}.{quote_identifier(self.name)}"


@dataclass(frozen=True, slots=True)
class ConfiguredKey:
    """A key in a subscription's configuration.

    Attributes:
        index: an index that proves that keys are unique; None: there is none.
        is_shared: the statistics have several rows with one key.
        lacking: partition key columns that are missing in the key, so that no index can prove it.
    """

    subscription: str
    schema: str
    name: str
    columns: tuple[str, ...]
    index: str | None
    is_shared: bool
    lacking: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A type of a published column, or a type inside the column's values.

    Attributes:
        shown: schema, table and column, and the column's type.
        is_sent: the type has a send function.
        is_inside: the type is inside an array, range or composite.
        is_read: pgsluice derives the type's text form from its binary form.
    """

    relation: int
    column: str
    shown: str
    type_name: str
    is_sent: bool
    is_inside: bool
    is_read: bool


@dataclass(frozen=True, slots=True)
class SpoolFacts:
    """The spool's folder and its content.

    Attributes:
        state: this machine's folder of a spool in an object store; None on a disk.
        problem: why nothing can be written to the folder; None if it can.
        file_system: its type as the kernel names it; None if unknown.
        identity: the source of the spool's changes; None without a spool.
        received: the extent of the spool; None before its first run.
        has_frontier: it has the file of its received-through LSN.
        unreadable: why the spool cannot be read; None if it can, or if there is none.
        way_out: how to solve that.
    """

    path: str
    problem: str | None
    file_system: str | None
    free_bytes: int
    identity: SpoolIdentity | None = None
    received: Received | None = None
    has_frontier: bool = True
    unreadable: str | None = None
    way_out: str | None = None
    state: str | None = None

    @property
    def frontier(self) -> Lsn | None:
        """The received-through LSN; None before the first run."""
        return None if self.received is None else self.received.frontier


@dataclass(frozen=True, slots=True)
class ConnectionLimit:
    """A limit on the number of connections.

    Attributes:
        name: what has the limit, for a sentence.
        raise_by: SQL that raises it, with a ``{}`` for the new number.
        limit: the limit, without connections that are reserved for others.
    """

    name: str
    raise_by: str
    limit: int
    used: int


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """All facts about the server, and the settings to compare them with.

    Attributes:
        wal_sender_timeout_ms: 0 if there is no timeout.
        is_behind_pooler: the server process of the connection differs from the one that runs our
            statements.
        is_awaited: the server would treat capture as a synchronous standby.
        standby_slots: the server's physical slots; whether each is in use.
        awaited_slots: those that ``synchronized_standby_slots`` names: what they have not got is
            not sent to failover slots.
        tables: the tables that the publications send, or that the first run will publish.
        rights: our role's privileges on the tables that copies read.
        column_types: the types of their columns; None unless ``binary`` is configured.
        catalog: all relations, for pgsluice's own publications.
        sent: what the server's publications send, or will send after the first run, by OID.
        unfit: tables whose target cannot be as configured, each as the error to print.
    """

    config: Config
    spool: SpoolFacts
    server: ServerInfo
    wal_sender_timeout_ms: int
    is_behind_pooler: bool
    is_awaited: bool
    connection_limits: tuple[ConnectionLimit, ...]
    replication: ReplicationFacts
    slot: SlotInfo | None
    publications: PublicationFacts
    tables: tuple[PublishedTable, ...]
    rights: tuple[TableRights, ...]
    column_types: tuple[ColumnType, ...] | None
    catalog: SourceCatalog
    sent: Mapping[int, PublishedRelation]
    keys: tuple[ConfiguredKey, ...] = ()
    unfit: tuple[Finding, ...] = ()
    standby_slots: Mapping[str, bool] = field(default_factory=dict)
    awaited_slots: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """The folder or URL that a subscription writes to, and the known problem with that; or None."""

    subscription: str
    folder: str
    problem: str | None


@dataclass(frozen=True, slots=True)
class LocalFacts:
    """Everything about this machine.

    Attributes:
        system: the server's answer to IDENTIFY_SYSTEM; None if it gave none.
        pyspark, deltalake: the versions of these packages; None if one is not installed.
        monitor_problem: why nothing can listen at [monitor] listen; None: it can.
    """

    config: Config
    spool: SpoolFacts
    system: SystemIdentity | None
    targets: tuple[TargetFacts, ...]
    java: Java | None
    pyspark: str | None
    deltalake: str | None
    records: tuple[SubscriptionRecord, ...] = ()
    capture: CaptureStatus = field(default_factory=CaptureStatus)
    monitor_problem: PgsluiceError | None = None
