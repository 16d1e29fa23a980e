"""Gathers the facts that :mod:`~pgsluice.monitor.source_health` and
:mod:`~pgsluice.monitor.place_health` judge: asks, and changes nothing.

Everything is read with the role that will do the work, so that what it may not see or do shows
here and not at the first run.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psycopg

from pgsluice.catalog import (
    PublishedRelation,
    SlotInfo,
    UserTable,
    ensure_publications,
    publications_of,
    relations_of,
    server_info,
    slot_info,
    user_tables,
)
from pgsluice.catalog.own_publications import INSERT_SUFFIX
from pgsluice.catalog.source_tables import source_catalog
from pgsluice.config import Config, SourceConfig
from pgsluice.errors import PgsluiceError, SourceRefused
from pgsluice.monitor.binary_health import Inside, find_inside, judge_binary
from pgsluice.monitor.findings import Finding, Level
from pgsluice.monitor.place_health import (
    EnvironmentFacts,
    SpoolFacts,
    judge_environment,
    judge_spool,
    judge_target,
)
from pgsluice.monitor.publication_health import OwnFacts, judge_own_publications, would_send
from pgsluice.monitor.source_health import (
    PublicationFacts,
    PublishedTable,
    ServerFacts,
    judge_messages,
    judge_publications,
    judge_role,
    judge_server,
    judge_slot,
    judge_tables,
)
from pgsluice.monitor.timeline_health import judge_timeline
from pgsluice.replication import (
    ReplicationConnection,
    SystemIdentity,
    TimelineSwitch,
    connect_sql,
    source_errors,
)
from pgsluice.spark.java import find_java
from pgsluice.spool import Spool, SpoolReader

Connection = psycopg.Connection[tuple[Any, ...]]

_SESSION = """
SELECT pg_backend_pid(),
       (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_sender_timeout')
"""

# What a copy reads, and what a lake's columns must not be.
_TABLES = """
SELECT c.oid, has_table_privilege(c.oid, 'SELECT'), has_schema_privilege(n.oid, 'USAGE'),
       ARRAY (SELECT string_agg(a.attname, ' and ' ORDER BY a.attnum) FROM pg_attribute a
               WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
               GROUP BY lower(a.attname) HAVING count(*) > 1)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = ANY (%s::oid[])
"""


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """All that was asked of the server.

    Attributes:
        tables: published, or would be.
        types: what their columns hold; None where nothing is asked for in binary form.
        own: for publications of our own.
    """

    server: ServerFacts
    slot: SlotInfo | None
    identity: SystemIdentity | None
    switches: tuple[TimelineSwitch, ...]
    replication_problem: str | None
    publications: PublicationFacts
    tables: tuple[PublishedTable, ...]
    types: tuple[Inside, ...] | None
    own: OwnFacts


def examine(config: Config) -> Iterator[Finding]:
    """Every check, one finding after the other as they are made."""
    source: SourceFacts | None = None
    try:
        source = examine_source(config.source)
    except PgsluiceError as error:
        yield Finding(Level.ERROR, "source", error.what, error.hint)
    if source is not None:
        yield from _judge_source(config, source)
    yield from judge_spool(
        examine_spool(config, source),
        max_bytes=config.spool.max_bytes,
        is_shared=config.spool.shared,
        master=config.spark.get("spark.master", "local"),
    )
    for one in config.subscriptions:
        folder = _fixed_part(one.sink.target)
        if folder is not None:
            yield judge_target(one.name, str(folder), folder_problem(folder))
    if config.subscriptions:
        yield from judge_environment(examine_environment())
    else:
        yield Finding(
            Level.WARNING, "subscription", "there is none: what is received is not applied",
            "add [[subscription]]",
        )  # fmt: skip


def _judge_source(config: Config, facts: SourceFacts) -> Iterator[Finding]:
    user = facts.server.info.user
    yield Finding(Level.OK, "source", f"reached as {user}: {config.source.shown_dsn}")
    yield from judge_server(facts.server, slot_exists=facts.slot is not None)
    yield from judge_role(facts.server, facts.replication_problem)
    frontier = _frontier(config.spool.path)
    yield judge_slot(facts.slot, facts.server, frontier=frontier)
    if frontier is not None and facts.identity is not None:
        yield from judge_timeline(config.spool.path, facts.identity, facts.switches)
    yield from judge_publications(facts.publications, facts.server)
    yield from judge_tables(facts.tables, user)
    if facts.types is not None:
        yield from judge_binary(facts.types)
    yield from judge_messages(config.source)
    yield from judge_own_publications(config, facts.own)


def examine_source(source: SourceConfig) -> SourceFacts:
    """Ask the server.

    Raises:
        ConfigError, SourceUnreachable, SourceRefused: it cannot be asked.
    """
    timeout_s = source.connect_timeout_s
    with (
        connect_sql(source.dsn, timeout_s=timeout_s, application="check") as connection,
        source_errors("reading the catalog"),
    ):
        # The session of a check writes nothing, whatever it is asked.
        connection.execute("SET default_transaction_read_only = on")
        server = _server_facts(connection)
        slot = slot_info(connection, source.slot)
        publications = _publication_facts(connection, source.publications)
        sent = _sent(connection, source.publications, publications)
        tables = _tables(connection, sent)
        types = _types(connection, sent) if source.binary else None
        own = _own_facts(connection, sent)
    identity, switches, problem = _try_replication(source, server)
    return SourceFacts(server, slot, identity, switches, problem, publications, tables, types, own)


def _server_facts(connection: Connection) -> ServerFacts:
    row = connection.execute(_SESSION).fetchone()
    assert row is not None
    # What greeted us names the process that cancels go to; a pooler makes that number up.
    is_behind_pooler = connection.pgconn.backend_pid != row[0]
    return ServerFacts(server_info(connection), int(row[1]), is_behind_pooler)


def _publication_facts(connection: Connection, wanted: tuple[str, ...]) -> PublicationFacts:
    """Which exist; and the statements that would make the others, as the first run has them."""
    existing = publications_of(connection, wanted)
    foreign = [table for table in _publishable(connection) if not table.may_publish]
    missing = tuple(name for name in wanted if name not in existing)
    problem, statements = None, ""
    if missing:
        try:
            ensure_publications(connection, wanted)  # refused: the session is read-only
        except SourceRefused as error:
            problem = error.what
            statements = (error.hint or "").partition("\n")[2]
    return PublicationFacts(
        existing=tuple(name for name in wanted if name in existing),
        missing=missing,
        foreign_tables=tuple(f"{t.namespace}.{t.name}" for t in foreign),
        statements=statements,
        problem=None if statements else problem,
    )


def _publishable(connection: Connection) -> list[UserTable]:
    """What the first run would publish: roots of partitions from 13 on, leaves before."""
    tables = user_tables(connection)
    if connection.info.server_version >= 130000:
        return [table for table in tables if not table.is_partition]
    return [table for table in tables if table.kind == "r"]


def _sent(
    connection: Connection, wanted: tuple[str, ...], publications: PublicationFacts
) -> dict[int, PublishedRelation] | None:
    """What the publications send; None when there is none yet."""
    if not publications.existing:
        return None
    seconds = [name + INSERT_SUFFIX for name in wanted]
    ours = [one.name for one in publications_of(connection, seconds).values() if one.is_ours]
    return relations_of(connection, [*publications.existing, *ours])


def _own_facts(connection: Connection, sent: dict[int, PublishedRelation] | None) -> OwnFacts:
    catalog = source_catalog(connection)
    if sent is not None:
        return OwnFacts(catalog, sent)
    inserts, all_actions = {"insert", "truncate"}, {"insert", "update", "delete", "truncate"}
    tables = {
        one.oid: frozenset(all_actions if one.has_identity else inserts)
        for one in _publishable(connection)
    }
    return OwnFacts(catalog, would_send(catalog, tables))


def _types(
    connection: Connection, sent: dict[int, PublishedRelation] | None
) -> tuple[Inside, ...] | None:
    """What the published columns hold."""
    if connection.info.server_version < 140000:
        return None
    if sent is None:
        return find_inside(connection, [table.oid for table in _publishable(connection)])

    def is_sent(one: Inside) -> bool:
        lists = [by.columns for by in sent[one.relation].by]
        return any(columns is None or one.column in columns for columns in lists)

    return tuple(one for one in find_inside(connection, sent) if is_sent(one))


def _tables(
    connection: Connection, sent: dict[int, PublishedRelation] | None
) -> tuple[PublishedTable, ...]:
    """Tables that the publications send, under the name that a copy reads them by."""
    tables = {table.oid: table for table in user_tables(connection)}
    if sent is None:
        known, sent = _publishable(connection), {}
    else:
        known = [table for oid in sent if (table := tables.get(oid)) is not None]
    roots = sorted({table.root_oid for table in known})
    access = {int(row[0]): row[1:] for row in connection.execute(_TABLES, [roots])}
    found = []
    for table in known:
        may_select, may_use_schema, same_names = access[table.root_oid]
        actions = sent[table.oid].actions if table.oid in sent else frozenset()
        found.append(
            PublishedTable(
                schema=table.namespace,
                name=table.name,
                has_identity=table.has_identity,
                is_full=table.replica_identity == "f",
                has_key=bool(table.primary_key or table.identity_key),
                may_select=may_select,
                may_use_schema=may_use_schema,
                sends_updates=bool(actions & {"update", "delete"}),
                same_names=tuple(same_names),
            )
        )
    return tuple(found)


def _try_replication(
    source: SourceConfig, server: ServerFacts
) -> tuple[SystemIdentity | None, tuple[TimelineSwitch, ...], str | None]:
    """IDENTIFY_SYSTEM and TIMELINE_HISTORY on a replication connection: what they say, or why
    there is none."""
    if not server.info.has_replication:
        return None, (), None
    try:
        with ReplicationConnection.connect(
            source.dsn, source.connect_timeout_s, application="check"
        ) as connection:
            system = connection.identify_system()
            return system, connection.timeline_history(system.timeline), None
    except PgsluiceError as error:
        return None, (), error.what


def examine_spool(config: Config, source: SourceFacts | None) -> SpoolFacts:
    """Look at the spool's folder."""
    path = config.spool.path
    return SpoolFacts(
        path=str(path),
        problem=folder_problem(path),
        file_system=file_system_of(path),
        free_bytes=shutil.disk_usage(_existing(path)).free,
        other_source=_other_source(config, source),
    )


def _other_source(config: Config, source: SourceFacts | None) -> str | None:
    """Whose spool it is, if it is not of the configured source; unreadable ones count too."""
    path = config.spool.path
    try:
        if not Spool.exists(path):
            return None
        found = Spool.open(path).identity
    except PgsluiceError as error:
        return f"something else ({error.what})"
    here = (found.system_identifier, found.database, found.slot)
    if source is None or source.identity is None:
        wanted = (*here[:2], config.source.slot)
    else:
        wanted = (source.identity.system_id, source.identity.dbname, config.source.slot)
    if here == wanted:
        return None
    return f'slot "{here[2]}", database "{here[1]}", system {here[0]}'


def _frontier(path: Path) -> Any:
    """The spool's frontier; None before its first run, or when it cannot be read."""
    try:
        if Spool.exists(path) and Spool.open(path).chain_start() is not None:
            return SpoolReader(path).frontier()
    except PgsluiceError:
        pass  # judge_spool says what is wrong with it
    return None


def examine_environment() -> EnvironmentFacts:
    """What is installed here."""
    return EnvironmentFacts(find_java(), _version("pyspark"), _version("deltalake"))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _fixed_part(target: str) -> Path | None:
    """The folder that a target's path begins with; None for what is no path on a disk."""
    if "://" in target or not target.startswith("/"):
        return None
    return Path(target.partition("{")[0].rpartition("/")[0] or "/")


def folder_problem(path: Path) -> str | None:
    """Why nothing could be written to a folder that may not be there yet; None: it could."""
    existing = _existing(path)
    if not existing.is_dir():
        return f"{existing} is not a folder"
    if existing != path:
        if os.access(existing, os.W_OK | os.X_OK):
            return None
        return f"it is not there and cannot be made: {existing} may not be written"
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"\0")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return f"it cannot be written: {error.strerror}"
    return None


def _existing(path: Path) -> Path:
    """The path itself, or the nearest parent that is there."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def file_system_of(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """The file system's type as Linux names it (``ext4``, ``nfs4``); None: not known."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    real = _existing(path).resolve()
    best: tuple[int, str] | None = None
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        point = Path(fields[4].replace("\\040", " "))
        # The last of equal ones lies on top of those before it.
        if real.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), after.split()[0])
    return best[1] if best else None
