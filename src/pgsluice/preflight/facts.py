"""What the checks are given: facts about the server, the spool and this machine.

Values only, gathered once by :mod:`pgsluice.preflight.gather`. A check never asks for more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pgsluice.capture.source.timeline import Received
from pgsluice.catalog import (
    ServerInfo,
    SlotInfo,
)
from pgsluice.catalog.rights import TableRights
from pgsluice.config import Config
from pgsluice.definitions.published import PublishedRelation
from pgsluice.definitions.source_tables import SourceCatalog
from pgsluice.lsn import Lsn
from pgsluice.monitor.status import CaptureStatus
from pgsluice.replication import SystemIdentity, TimelineSwitch
from pgsluice.shown import shown
from pgsluice.spark.session.java import Java
from pgsluice.spool import SpoolIdentity, SubscriptionRecord
from pgsluice.sql import quote_identifier


@dataclass(frozen=True, slots=True)
class ReplicationFacts:
    """What a replication connection said.

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
        ours: publications that pgsluice made and our role may alter.
        of_others: publications that pgsluice made and another role owns.
        left: SQL that completes our publications, but that our role may not run.
        similar: a publication of the user's by the missing name that may be a misspelling of it.
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
        unique_columns: columns that could be its key: those of a unique index, never NULL.
        unique_index: that index.
    """

    schema: str
    name: str
    has_identity: bool
    is_full: bool
    has_key: bool
    sends_updates: bool
    same_names: tuple[str, ...] = ()
    unique_columns: tuple[str, ...] = ()
    unique_index: str = ""

    @property
    def shown(self) -> str:
        """The name for a sentence."""
        return shown(f"{self.schema}.{self.name}")

    @property
    def sql_name(self) -> str:
        """The name for a statement, qualified and quoted."""
        return f"{quote_identifier(self.schema)}.{quote_identifier(self.name)}"


@dataclass(frozen=True, slots=True)
class ConfiguredKey:
    """A key that a subscription names.

    Attributes:
        index: that proves that no two rows have the same key; None: none does.
        is_shared: the statistics have seen several rows of one key.
        lacking: partition columns that are not among the key's: no index can prove it.
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
        relation: the table's OID.
        column: the column's name.
        shown: schema, table and column, and the column's type.
        type_name: the name of this type.
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
    """The spool's folder and what is in it.

    Attributes:
        problem: why nothing can be written to the folder; None if it can.
        file_system: its type as the kernel names it; None if unknown.
        free_bytes: free space of its file system.
        identity: whose changes the spool holds; None without a spool.
        received: what the spool holds; None before its first run.
        has_frontier: it has the file of its frontier.
        unreadable: why the spool cannot be read; None if it can, or if there is none.
        way_out: what to do about that.
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

    @property
    def frontier(self) -> Lsn | None:
        """Up to where everything was received; None before the first run."""
        return None if self.received is None else self.received.frontier


@dataclass(frozen=True, slots=True)
class ConnectionLimit:
    """How many connections something allows.

    Attributes:
        name: what allows them, for a sentence.
        raise_by: SQL that raises it, with a ``{}`` for the new number.
        limit: without those that are reserved for others.
    """

    name: str
    raise_by: str
    limit: int
    used: int


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """Everything that the server was asked for, and what it is compared with.

    Attributes:
        wal_sender_timeout_ms: 0 if there is no timeout.
        is_behind_pooler: the process that greeted us is not the one that runs our statements.
        is_awaited: the server would take capture for a synchronous standby.
        connection_limits: those that hold for our role.
        tables: the tables that the publications send, or that the first run will publish.
        rights: what our role may do with the tables that copies read.
        column_types: the types of their columns; None unless ``binary`` is configured.
        catalog: all relations, for publications of our own.
        sent: what the server's publications send, or will send after the first run, by OID.
        keys: those that subscriptions name.
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


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """The folder that a subscription writes below, or the URL of an object store.

    Attributes:
        problem: why nothing can be written there; None if it can, as far as is known.
    """

    subscription: str
    folder: str
    problem: str | None


@dataclass(frozen=True, slots=True)
class EnvironmentFacts:
    """What is installed; a version is None if the package is missing."""

    java: Java | None
    pyspark: str | None
    deltalake: str | None


@dataclass(frozen=True, slots=True)
class LocalFacts:
    """Everything about this machine.

    Attributes:
        system: the server's answer to IDENTIFY_SYSTEM; None if it gave none.
        records: of the subscriptions that have run.
        capture: what capture said last of itself.
    """

    config: Config
    spool: SpoolFacts
    system: SystemIdentity | None
    targets: tuple[TargetFacts, ...]
    environment: EnvironmentFacts
    records: tuple[SubscriptionRecord, ...] = ()
    capture: CaptureStatus = field(default_factory=CaptureStatus)
