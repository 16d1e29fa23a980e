"""Gathers facts about the server: reads, and changes nothing.

Everything is read with the role that will do the work, so that a missing privilege shows up
here and not at the first run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from pgsluice.capture.source.slot import generated_columns
from pgsluice.catalog import Connection
from pgsluice.catalog.publications.managed import (
    INSERT_SUFFIX,
    ensure_publications,
    publishable_tables,
    statements_for_others,
)
from pgsluice.catalog.publications.publications import publications_of
from pgsluice.catalog.publications.published import relations_of
from pgsluice.catalog.rights import TableRights, columns_to_read, table_rights
from pgsluice.catalog.server import server_info, slot_info
from pgsluice.catalog.tables.keys import unique_indexes
from pgsluice.catalog.tables.relations import fetch_many
from pgsluice.catalog.tables.source_tables import source_catalog
from pgsluice.catalog.tables.tables import UserTable, user_tables
from pgsluice.catalog.visibility import counts_as_standby
from pgsluice.config import Config, SourceConfig
from pgsluice.config.validation_errors import nearest
from pgsluice.definitions.published import PublishedBy, PublishedRelation
from pgsluice.definitions.source_tables import SourceCatalog, SourceTable
from pgsluice.errors import ConfigError, PgsluiceError, SourceRefused, TableError
from pgsluice.preflight.facts import (
    ColumnType,
    ConnectionLimit,
    PublicationFacts,
    PublishedTable,
    ReplicationFacts,
    SourceFacts,
    SpoolFacts,
)
from pgsluice.preflight.gathering.tables import configured_keys, query_column_types, unfit_targets
from pgsluice.publication import Publisher, Statements, subscribed
from pgsluice.published.discovery import source_tables
from pgsluice.published.publication_rules import PublicationRules
from pgsluice.replication import ReplicationConnection, connect_sql
from pgsluice.shown import shown
from pgsluice.subscription.base.options import table_options

Sent = dict[int, PublishedRelation]

_TO_BE_MADE = ""
"""The placeholder for a publication that the first run will create."""

_SESSION = """
SELECT pg_backend_pid(),
       (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_sender_timeout'),
       (SELECT coalesce(jsonb_object_agg(slot_name, active), '{}') FROM pg_replication_slots
         WHERE slot_type = 'physical'),
       coalesce(current_setting('synchronized_standby_slots', true), '')
"""

# A backend that belongs to no database serves no client. A superuser has what is reserved, and is
# bound by no limit of its own.
_CONNECTIONS = """
WITH r AS (SELECT oid, rolname, rolsuper, rolconnlimit FROM pg_roles WHERE rolname = current_user),
     d AS (SELECT oid, datname, datconnlimit FROM pg_database WHERE datname = current_database()),
     a AS (SELECT datid, usesysid FROM pg_stat_activity WHERE datid IS NOT NULL)
SELECT 'max_connections', 'ALTER SYSTEM SET max_connections = {};  -- then restart the server',
       current_setting('max_connections')::int
           - CASE WHEN rolsuper THEN 0
             ELSE current_setting('superuser_reserved_connections')::int
                  + coalesce(current_setting('reserved_connections', true)::int, 0) END,
       (SELECT count(*) FROM a)
FROM r
UNION ALL
SELECT 'the CONNECTION LIMIT of ' || rolname,
       format('ALTER ROLE %I CONNECTION LIMIT ', rolname) || '{};',
       rolconnlimit, (SELECT count(*) FROM a WHERE a.usesysid = r.oid)
FROM r WHERE rolconnlimit >= 0 AND NOT rolsuper
UNION ALL
SELECT 'the CONNECTION LIMIT of database ' || datname,
       format('ALTER DATABASE %I CONNECTION LIMIT ', datname) || '{};',
       datconnlimit, (SELECT count(*) FROM a WHERE a.datid = d.oid)
FROM r, d WHERE datconnlimit >= 0 AND NOT rolsuper
"""

_INSERTS = frozenset({"insert", "truncate"})
_ALL_ACTIONS = _INSERTS | {"update", "delete"}


def gather_source(config: Config, spool: SpoolFacts) -> SourceFacts:
    """Read the facts about the server.

    Raises:
        ConfigError, SourceUnreachable, SourceRefused: it cannot be queried.
    """
    source = config.source
    with connect_sql(
        source.conninfo,
        "reading the catalog",
        timeout_s=source.connect_timeout_s,
        application="check",
    ) as connection:
        server = server_info(connection)
        connection.execute("SET default_transaction_read_only = on")
        session = connection.execute(_SESSION).fetchone()
        assert session is not None
        name = connection.info.parameter_status("application_name") or ""
        captures_name = "pgsluice capture" if name == "pgsluice check" else name
        known = None if spool.received is None else spool.identity
        requested = None if known is None else known.publications
        publications = _publications(connection, source.publications, requested)
        names = list[str]()
        if publications.existing:  # and the managed ones for tables that only send inserts
            managed = (*publications.ours, *publications.of_others)
            names = [*dict.fromkeys((*publications.existing, *managed))]
        sent = relations_of(connection, names) if names else None
        if sent is None:
            published = publishable_tables(connection)
        else:
            user = {table.oid: table for table in user_tables(connection)}
            published = [user[oid] for oid in sent if oid in user]
        catalog = source_catalog(connection, for_filters=config.publications is not None)
        will_send = _will_send(published, catalog) if sent is None else sent
        if _will_send_generated(connection, config, catalog):
            ours = {name for name, made in publications_of(connection).items() if made.is_ours}
            will_send = _with_generated(will_send, catalog, {*ours, _TO_BE_MADE})
        facts = SourceFacts(
            config=config,
            spool=spool,
            server=server,
            wal_sender_timeout_ms=int(session[1]),
            standby_slots=session[2],
            # Names of slots need no quotes.
            awaited_slots=tuple(name.strip() for name in session[3].split(",") if name.strip()),
            # The greeting names the process that cancel requests go to. A pooler invents one.
            is_behind_pooler=connection.pgconn.backend_pid != session[0],
            is_awaited=counts_as_standby(connection, captures_name),
            connection_limits=tuple(
                ConnectionLimit(*row) for row in connection.execute(_CONNECTIONS.encode())
            ),
            replication=ReplicationFacts(),
            slot=slot_info(connection, source.slot),
            publications=publications,
            tables=_tables(connection, published, sent, catalog),
            rights=_rights(connection, config, catalog, published, names),
            column_types=_column_types(connection, published, sent) if source.binary else None,
            catalog=catalog,
            sent=will_send,
            keys=configured_keys(connection, config, catalog),
            unfit=unfit_targets(connection, config, catalog, will_send),
        )
    return replace(facts, replication=_replication(source)) if server.has_replication else facts


def _replication(source: SourceConfig) -> ReplicationFacts:
    """Try a replication connection, with IDENTIFY_SYSTEM and TIMELINE_HISTORY."""
    try:
        with ReplicationConnection.connect(
            source.conninfo, source.connect_timeout_s, application="check"
        ) as connection:
            system = connection.identify_system()
            return ReplicationFacts(system, connection.timeline_history(system.timeline))
    except PgsluiceError as error:
        return ReplicationFacts(problem=error.what)


def _publications(
    connection: Connection, names: tuple[str, ...], requested: tuple[str, ...] | None
) -> PublicationFacts:
    """Which publications exist, and what a run will do about the missing ones."""
    known = publications_of(connection, [*names, *(name + INSERT_SUFFIX for name in names)])
    problem, statements, left = None, "", tuple[str, ...]()
    try:
        left = statements_for_others(connection, names, requested)
        # Refused if there is one to create: the session is read-only.
        problem = ensure_publications(connection, names, requested).problem
    except SourceRefused as error:
        statements = (error.hint or "").partition("\n")[2]
        problem = None if statements else error.what
    return PublicationFacts(
        existing=tuple(name for name in names if name in known),
        missing=tuple(name for name in names if name not in known),
        foreign_tables=tuple(
            shown(f"{table.namespace}.{table.name}")
            for table in publishable_tables(connection)
            if not table.may_publish
        ),
        statements=statements,
        problem=problem,
        ours=tuple(name for name, info in known.items() if info.is_ours and info.may_alter),
        of_others=tuple(
            name for name, info in known.items() if info.is_ours and not info.may_alter
        ),
        left=left,
        similar=_similar(connection, names, known),
    )


def _similar(
    connection: Connection, names: Collection[str], known: Collection[str]
) -> dict[str, str]:
    """For each missing publication, the user's publication with the most similar name."""
    others = publications_of(connection).values()
    theirs = [info.name for info in others if not info.is_ours and info.name not in names]
    pairs = ((name, nearest(name, theirs)) for name in names if name not in known)
    return {name: near for name, near in pairs if near is not None}


def _will_send(published: Iterable[UserTable], catalog: SourceCatalog) -> Sent:
    """The relations that publications of the first run will send: tables and leaf partitions."""
    sent = {}
    for user_table in published:
        actions = _ALL_ACTIONS if user_table.has_identity else _INSERTS
        published_by = (PublishedBy(_TO_BE_MADE, actions, None, None),)
        root = catalog.tables[user_table.oid]
        leaves = [
            table
            for table in (root, *catalog.below(root))
            if not table.is_partitioned and (table is root or root.is_partitioned)
        ]
        for table in leaves:
            sent[table.oid] = PublishedRelation(
                table.oid, table.namespace, table.name, table.kind, published_by, table.oid
            )
    return sent


def _will_send_generated(connection: Connection, config: Config, catalog: SourceCatalog) -> bool:
    """Whether a run will let the managed publications send stored generated columns."""
    names = generated_columns(config) if connection.info.server_version >= 180000 else ()
    return names is None or any(
        column.generated == "s" and column.name in names
        for table in catalog.tables.values()
        for column in table.columns
    )


def _with_generated(sent: Sent, catalog: SourceCatalog, ours: Collection[str]) -> Sent:
    """The sent relations after the managed publications send stored generated columns."""
    with_generated = {}
    for oid, relation in sent.items():
        columns = tuple(c.name for c in catalog.tables[oid].columns if c.generated in ("", "s"))
        by = tuple(
            replace(one, columns=columns, generated="stored")
            if one.publication in ours and not one.columns
            else one
            for one in relation.by
        )
        with_generated[oid] = replace(relation, by=by)
    return with_generated


def _column_types(
    connection: Connection, published: Iterable[UserTable], sent: Sent | None
) -> tuple[ColumnType, ...] | None:
    """The types of the published columns; None on a server that has no binary mode."""
    if connection.info.server_version < 140000:
        return None
    if sent is None:
        return query_column_types(connection, [table.oid for table in published])
    return tuple(
        each
        for each in query_column_types(connection, sent)
        if any(by.columns is None or each.column in by.columns for by in sent[each.relation].by)
    )


def _tables(
    connection: Connection,
    published: Sequence[UserTable],
    sent: Sent | None,
    catalog: SourceCatalog,
) -> tuple[PublishedTable, ...]:
    """Facts of the published tables."""
    unique = unique_indexes(
        connection, [table.oid for table in published if not table.is_partition]
    )

    def facts(table: UserTable) -> PublishedTable:
        actions = sent[table.oid].actions if sent and table.oid in sent else frozenset()
        return PublishedTable(
            schema=table.namespace,
            name=table.name,
            has_identity=table.has_identity,
            is_full=table.replica_identity == "f",
            has_key=bool(table.primary_key or table.identity_key),
            sends_updates=bool(actions & {"update", "delete"}),
            same_names=_same_names(catalog.tables.get(table.oid)),
            unique=unique[table.oid][0] if table.oid in unique else None,
        )

    return tuple(facts(table) for table in published)


def _same_names(table: SourceTable | None) -> tuple[str, ...]:
    """The columns whose names differ only in case, as ``A and a``; the server folds only ASCII
    under the locale C."""
    by_name: defaultdict[str, list[str]] = defaultdict(list)
    for column in table.columns if table is not None else ():
        by_name[column.name.casefold()].append(column.name)
    return tuple(sorted(" and ".join(names) for names in by_name.values() if len(names) > 1))


def _rights(
    connection: Connection,
    config: Config,
    catalog: SourceCatalog,
    published: Sequence[UserTable],
    names: Collection[str],
) -> tuple[TableRights, ...]:
    """Our role's privileges on the tables that copies read: roots, or what our own publications
    publish. Without names of publications on the server, the first run will create them."""
    read = set[int]()
    if any(subscription.publications is None for subscription in config.subscriptions):
        read |= {table.root_oid for table in published}
    for subscription in config.subscriptions:
        with suppress(ConfigError, TableError):  # other checks say what is wrong with them
            own = subscribed(
                Statements.read(config.publications).publications(catalog),
                subscription.publications or (),
            )
            publishers = [
                Publisher.of(own, catalog.tables[table.oid], catalog)
                for table in published
                if table.oid in catalog.tables
            ]
            read |= {one.published_as.oid for one in publishers if one is not None}
    rights = table_rights(connection, read)
    if any(right.columns for right in rights.values()):
        rights |= _rights_on_columns(connection, config, names, rights)
    return tuple(sorted(rights.values(), key=lambda table: (table.namespace, table.name)))


def _rights_on_columns(
    connection: Connection,
    config: Config,
    names: Collection[str],
    rights: Mapping[int, TableRights],
) -> dict[int, TableRights]:
    """The privileges on tables of which only some columns may be read, with respect to the
    published columns."""
    wanted: defaultdict[int, set[str]] = defaultdict(set)
    facts = {} if names else fetch_many(connection, rights)
    for subscription in config.subscriptions:
        with suppress(ConfigError, TableError):  # other checks say what is wrong with them
            rules = PublicationRules.of(config, subscription)
            if names:
                for table in source_tables(connection, names, rules, table_options(subscription)):
                    wanted[table.facts.oid] |= {*table.columns_read}
            elif rules is None:
                return {}  # what the first run makes sends all columns
            else:
                for one in rules.publishers(connection, ()).values():
                    if (oid := one.published_as.oid) in facts:
                        own = one.resolution
                        read = columns_to_read(facts[oid], own.published_columns, own.copy_filters)
                        wanted[oid] |= {*read}
    return {
        oid: right.to_read(sorted(wanted[oid]))
        for oid, right in rights.items()
        if right.columns and wanted[oid]
    }
