"""Gathers the facts that :mod:`pgsluice.monitor.health` judges: asks, and changes nothing.

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

from pgsluice.config import Config, SourceConfig
from pgsluice.errors import PgsluiceError
from pgsluice.monitor.health import (
    EnvironmentFacts,
    Finding,
    Level,
    PublishedTable,
    ServerFacts,
    SpoolFacts,
    judge_environment,
    judge_publications,
    judge_role,
    judge_server,
    judge_slot,
    judge_spool,
    judge_tables,
    judge_target,
)
from pgsluice.monitor.java import find_java
from pgsluice.monitor.slot import SlotFacts, read_slot
from pgsluice.replication import ReplicationConnection, SystemIdentity, connect_sql, source_errors
from pgsluice.spool import Spool, SpoolReader

Connection = psycopg.Connection[tuple[Any, ...]]

_INSERT_SUFFIX = "_insert"

_SERVER = """
SELECT current_setting('server_version_num')::int, current_database(), current_user,
       current_setting('wal_level'),
       current_setting('max_replication_slots')::int,
       (SELECT count(*) FROM pg_replication_slots WHERE slot_name <> %(slot)s),
       current_setting('max_wal_senders')::int,
       (SELECT count(*) FROM pg_stat_replication WHERE pid IS DISTINCT FROM
          (SELECT active_pid FROM pg_replication_slots WHERE slot_name = %(slot)s)),
       (SELECT rolreplication OR rolsuper OR EXISTS (
            -- what managed services grant in place of the attribute
            SELECT FROM pg_roles g WHERE g.rolname = 'rds_replication'
               AND pg_has_role(current_user, g.oid, 'MEMBER'))
        FROM pg_roles WHERE rolname = current_user),
       has_database_privilege(current_database(), 'CREATE'),
       pg_is_in_recovery(),
       (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_sender_timeout'),
       (SELECT nullif(setting::bigint, -1) * 1048576
          FROM pg_settings WHERE name = 'max_slot_wal_keep_size'),
       pg_backend_pid()
"""

_PUBLISHED = """
SELECT DISTINCT c.oid FROM pg_publication_tables t
  JOIN pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
 WHERE t.pubname = ANY (%s)
"""

# What the first run would publish: ordinary tables that last; a partitioned table by its root
# from 13 on, by its leaves before.
_PUBLISHABLE = """
SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relpersistence = 'p' AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
   AND CASE WHEN current_setting('server_version_num')::int >= 130000
            THEN c.relkind IN ('r', 'p') AND NOT c.relispartition
            ELSE c.relkind = 'r' END
"""

_TABLES = """
SELECT n.nspname, c.relname, c.relreplident::text,
       CASE c.relreplident
         WHEN 'd' THEN EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid
                                  AND i.indisprimary AND i.indimmediate)
         WHEN 'i' THEN EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid
                                  AND i.indisreplident)
         ELSE false END,
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid
                 AND (i.indisprimary OR i.indisreplident)),
       has_table_privilege(c.oid, 'SELECT'),
       has_schema_privilege(n.oid, 'USAGE'),
       pg_has_role(c.relowner, 'USAGE'),
       c.oid = ANY (%(updated)s),
       ARRAY (SELECT string_agg(a.attname, ' and ' ORDER BY a.attnum) FROM pg_attribute a
               WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
               GROUP BY lower(a.attname) HAVING count(*) > 1)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = ANY (%(oids)s) ORDER BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """All that was asked of the server."""

    server: ServerFacts
    slot: SlotFacts | None
    identity: SystemIdentity | None
    replication_problem: str | None
    publications: tuple[str, ...]
    published: tuple[PublishedTable, ...]
    publishable: tuple[PublishedTable, ...]


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
    yield Finding(Level.OK, "source", f"reached as {facts.server.user}: {config.source.shown_dsn}")
    yield from judge_server(facts.server, slot_exists=facts.slot is not None)
    yield from judge_role(facts.server, facts.replication_problem)
    frontier = _frontier(config.spool.path)
    yield judge_slot(facts.slot, facts.server, frontier=frontier)
    yield from judge_publications(
        config.source.publications, facts.publications, facts.publishable, facts.server
    )
    yield from judge_tables(facts.published or facts.publishable, facts.server.user)


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
        server = _read_server(connection, source.slot)
        slot = read_slot(connection, source.slot)
        existing = _existing_publications(connection, source.publications)
        published = _oids(connection, _PUBLISHED, [existing])
        publishable = _oids(connection, _PUBLISHABLE)
        updated = _oids(connection, _PUBLISHED, [_sending_updates(connection, existing)])
        tables = _read_tables(connection, published, updated)
        candidates = _read_tables(connection, publishable, updated)
    identity, problem = _try_replication(source, server)
    return SourceFacts(server, slot, identity, problem, tuple(existing), tables, candidates)


def _read_server(connection: Connection, slot: str) -> ServerFacts:
    row = connection.execute(_SERVER, {"slot": slot}).fetchone()
    assert row is not None
    *values, pid = row
    # What greeted us names the process that cancels go to; a pooler makes that number up.
    return ServerFacts(*[*values, connection.pgconn.backend_pid != pid])


def _existing_publications(connection: Connection, wanted: tuple[str, ...]) -> list[str]:
    """Those of the wanted ones that exist, and the companions that we made for them."""
    names = [*wanted, *(name + _INSERT_SUFFIX for name in wanted)]
    rows = connection.execute(
        "SELECT pubname FROM pg_publication WHERE pubname = ANY (%s)", [names]
    )
    return sorted(str(row[0]) for row in rows)


def _sending_updates(connection: Connection, names: list[str]) -> list[str]:
    rows = connection.execute(
        "SELECT pubname FROM pg_publication WHERE pubname = ANY (%s) AND (pubupdate OR pubdelete)",
        [names],
    )
    return [str(row[0]) for row in rows]


def _oids(connection: Connection, query: str, parameters: list[Any] | None = None) -> list[int]:
    return [int(row[0]) for row in connection.execute(query.encode(), parameters)]


def _read_tables(
    connection: Connection, oids: list[int], updated: list[int]
) -> tuple[PublishedTable, ...]:
    rows = connection.execute(_TABLES, {"oids": oids, "updated": updated})
    return tuple(PublishedTable(*[*row[:-1], tuple(row[-1])]) for row in rows)


def _try_replication(
    source: SourceConfig, server: ServerFacts
) -> tuple[SystemIdentity | None, str | None]:
    """IDENTIFY_SYSTEM on a replication connection: what it says, or why there is none."""
    if not server.has_replication:
        return None, None
    try:
        with ReplicationConnection.connect(
            source.dsn, source.connect_timeout_s, application="check"
        ) as connection:
            return connection.identify_system(), None
    except PgsluiceError as error:
        return None, error.what


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
