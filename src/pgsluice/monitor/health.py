"""Is it fit to run? From facts to findings, and nothing else: no connection, no file.

:mod:`pgsluice.monitor.examine` gathers the facts. Each function here judges one kind of them; a
finding says what is so and, unless it is fine, what to do, as commands that can be pasted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pgsluice.lsn import Lsn
from pgsluice.monitor.java import Java, java_problem
from pgsluice.monitor.slot import SlotFacts
from pgsluice.monitor.wording import format_bytes

OLDEST_SPARK = (4, 2)
_LOW_SPACE = 2**30
_SHOWN_TABLES = 5


class Level(StrEnum):
    """How a finding is to be taken."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of ``check``.

    Attributes:
        subject: what was looked at, in a word or two.
        what: what is so.
        todo: what to do; None where there is nothing to do. May have several lines.
    """

    level: Level
    subject: str
    what: str
    todo: str | None = None


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the server says of itself and of our role.

    Attributes:
        version: server_version_num.
        slots_used: replication slots that exist, ours not counted.
        senders_used: walsenders that run, ours not counted.
        has_replication: the role may start replication.
        may_create: the role has CREATE on the database.
        wal_sender_timeout_ms: 0: none.
        slot_limit_bytes: max_slot_wal_keep_size; None: no limit, or a server before 13.
        answers_for_another: the process that greeted us is not the one that runs our
            statements: something stands in between.
    """

    version: int
    database: str
    user: str
    wal_level: str
    max_slots: int
    slots_used: int
    max_senders: int
    senders_used: int
    has_replication: bool
    may_create: bool
    is_in_recovery: bool
    wal_sender_timeout_ms: int
    slot_limit_bytes: int | None
    answers_for_another: bool


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table that is published, or would be.

    Attributes:
        identity: pg_class.relreplident.
        has_identity_index: the index that ``d`` or ``i`` stands for is there.
        has_key: it has a primary key or a replica identity index.
        sends_updates: a publication that exists sends its updates or deletes.
        same_names: columns that are equal but for upper and lower case.
    """

    schema: str
    name: str
    identity: str
    has_identity_index: bool
    has_key: bool
    may_select: bool
    may_use_schema: bool
    is_owner: bool
    sends_updates: bool
    same_names: tuple[str, ...] = ()

    @property
    def sql_name(self) -> str:
        """Qualified and quoted."""
        return f"{quoted(self.schema)}.{quoted(self.name)}"


@dataclass(frozen=True, slots=True)
class SpoolFacts:
    """The spool's folder.

    Attributes:
        problem: why nothing can be written there; None: it can.
        file_system: its type as the kernel names it; None: not known.
        free_bytes: what a file may still take.
        other_source: whose spool it is, if not of this source; None: ours, or none yet.
    """

    path: str
    problem: str | None
    file_system: str | None
    free_bytes: int
    other_source: str | None = None


@dataclass(frozen=True, slots=True)
class EnvironmentFacts:
    """What is installed here; a version is None where a package is not there."""

    java: Java | None
    pyspark: str | None
    deltalake: str | None


def quoted(name: str) -> str:
    """An SQL identifier, in quotes always: it is to be pasted."""
    return '"' + name.replace('"', '""') + '"'


def version_text(number: int) -> str:
    """``180004`` as ``18.4``."""
    return f"{number // 10000}.{number % 10000}"


def judge_server(facts: ServerFacts, *, slot_exists: bool) -> Iterator[Finding]:
    """The server's version and settings."""
    version = f"PostgreSQL {version_text(facts.version)}, database {facts.database}"
    yield _ok("version", version)
    if facts.answers_for_another:
        yield _warning(
            "connection",
            "something between here and the server answers for it, as a connection pooler does",
            "give the address of the server itself: replication needs a connection of its own",
        )
    if facts.wal_level == "logical":
        yield _ok("wal_level", "logical")
    else:
        yield _error(
            "wal_level",
            f"{facts.wal_level}: the WAL does not hold what logical replication needs",
            "ALTER SYSTEM SET wal_level = logical;  -- then restart the server",
        )
    yield from _judge_room(facts, slot_exists=slot_exists)
    yield from _judge_limits(facts)


def _judge_room(facts: ServerFacts, *, slot_exists: bool) -> Iterator[Finding]:
    # A copy takes a temporary slot beside ours; a first run makes one that keeps.
    needed = 1 if slot_exists else 2
    free = facts.max_slots - facts.slots_used - (1 if slot_exists else 0)
    yield _room("max_replication_slots", facts.max_slots, free, needed, "a slot")
    free = facts.max_senders - facts.senders_used
    yield _room("max_wal_senders", facts.max_senders, free, 2, "a walsender")


def _room(setting: str, limit: int, free: int, wanted: int, what: str) -> Finding:
    if free >= wanted:
        return _ok(setting, f"{limit}, of which {free} are free")
    sql = f"ALTER SYSTEM SET {setting} = {limit + wanted - free};  -- then restart the server"
    # The last one is enough to stream; a copy beside it is what would fail.
    if free >= 1 or (wanted == 1 and what == "a slot"):
        return _warning(setting, f"{limit}, of which {max(free, 0)} free: a copy needs {what}", sql)
    return _error(setting, f"all {limit} are in use: {what} is needed", sql)


def _judge_limits(facts: ServerFacts) -> Iterator[Finding]:
    if 0 < facts.wal_sender_timeout_ms < 10_000:
        yield _warning(
            "wal_sender_timeout",
            f"{facts.wal_sender_timeout_ms} ms: a short pause here ends the connection",
            "ALTER SYSTEM SET wal_sender_timeout = '60s'; SELECT pg_reload_conf();",
        )
    if facts.version >= 130000 and facts.slot_limit_bytes is None:
        yield _warning(
            "max_slot_wal_keep_size",
            "no limit: while pgsluice is down, its slot keeps WAL until the server's disk is full",
            "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf();"
            "  -- what the disk can spare",
        )
    elif facts.slot_limit_bytes is not None and facts.slot_limit_bytes < _LOW_SPACE:
        yield _warning(
            "max_slot_wal_keep_size",
            f"{format_bytes(facts.slot_limit_bytes)}: a short stop here may lose the slot",
            "give it what the disk can spare",
        )


def judge_role(facts: ServerFacts, replication_problem: str | None) -> Iterator[Finding]:
    """May the role replicate? ``replication_problem`` is what a replication connection said."""
    user = quoted(facts.user)
    if not facts.has_replication:
        yield _error(
            "role",
            f"{facts.user} may not replicate",
            f"ALTER ROLE {user} REPLICATION;",
        )
    elif replication_problem is not None:
        yield _error(
            "role",
            f"a replication connection is refused: {replication_problem}",
            f"pg_hba.conf needs a line for {facts.user} and this address; a connection pooler "
            "in between has to be left out",
        )
    else:
        yield _ok("role", f"{facts.user} may replicate")


def judge_slot(slot: SlotFacts | None, facts: ServerFacts, *, frontier: Lsn | None) -> Finding:
    """The slot. ``frontier``: the spool's; None before its first run."""
    if slot is None:
        if frontier is not None:
            return _error(
                "slot",
                "it is gone, and the spool goes on where it was: changes are missing",
                "pgsluice drop CONFIG forgets all state; the next run copies again",
            )
        return _ok("slot", "not there yet: the first run makes it")
    if slot.plugin != "pgoutput":
        owner = "a physical slot" if slot.plugin is None else f"a slot of {slot.plugin}"
        return _error("slot", f"{slot.name} is {owner}", "name another slot in [source]")
    if slot.database != facts.database:
        return _error(
            "slot",
            f"{slot.name} belongs to the database {slot.database}",
            "name another slot in [source]",
        )
    if slot.wal_status == "lost":
        return _error(
            "slot",
            f"{slot.name} is lost: the server removed WAL that it needs",
            "pgsluice drop CONFIG, then pgsluice run CONFIG copies again",
        )
    if frontier is not None and (slot.confirmed_flush or 0) > frontier:
        return _error(
            "slot",
            f"{slot.name} moved to {slot.confirmed_flush}, past the spool's {frontier}: "
            "another reader took what lies between",
            "pgsluice drop CONFIG, then pgsluice run CONFIG copies again",
        )
    held = f"{slot.name} holds {format_bytes(slot.retained_bytes)} of WAL"
    if slot.wal_status == "unreserved":
        return _warning(
            "slot", f"{held}, soon more than max_slot_wal_keep_size allows", "run pgsluice now"
        )
    if slot.active_pid is not None:
        return _ok("slot", f"{held}, in use by process {slot.active_pid}")
    if frontier is None:
        return _warning(
            "slot",
            f"{slot.name} is there and this spool has not used it: somebody else may",
            "name another slot in [source], or drop it: "
            f"SELECT pg_drop_replication_slot('{slot.name}');",
        )
    return _ok("slot", held)


def judge_publications(
    wanted: Sequence[str],
    existing: Iterable[str],
    tables: Sequence[PublishedTable],
    facts: ServerFacts,
) -> Iterator[Finding]:
    """The server's publications: there, or can they be made?"""
    missing = sorted(set(wanted) - set(existing))
    for name in wanted:
        if name not in missing:
            yield _ok("publication", f"{name} is there")
    if not missing:
        return
    shown = ", ".join(missing)
    foreign = [table for table in tables if not table.is_owner]
    if facts.may_create and not foreign:
        yield _ok("publication", f"{shown} not there yet: the first run makes it")
        return
    if not facts.may_create:
        yield _error(
            "publication",
            f"{shown} not there, and {facts.user} may not make it",
            f"GRANT CREATE ON DATABASE {quoted(facts.database)} TO {quoted(facts.user)};",
        )
    if foreign:
        yield _error(
            "publication",
            f"{shown} not there, and only a table's owner may publish it: {_listed(foreign)}",
            "as the owner: " + _publication_sql(missing[0], tables),
        )


def _publication_sql(name: str, tables: Sequence[PublishedTable]) -> str:
    whole = [table for table in tables if table.has_identity_index or table.identity == "f"]
    inserts = [table for table in tables if table not in whole]
    lines = []
    if whole:
        names = ", ".join(table.sql_name for table in whole)
        lines.append(f"CREATE PUBLICATION {quoted(name)} FOR TABLE {names};")
    if inserts:
        names = ", ".join(table.sql_name for table in inserts)
        lines.append(
            f"CREATE PUBLICATION {quoted(name + '_insert')} FOR TABLE {names} "
            "WITH (publish = 'insert, truncate');"
        )
    return "\n".join(lines)


def judge_tables(tables: Sequence[PublishedTable], user: str) -> Iterator[Finding]:
    """Privileges, replica identities and names of the published tables."""
    if not tables:
        yield _warning("tables", "no table is published", "add one to the publication")
        return
    yield from _judge_privileges(tables, user)
    stopped = [
        t for t in tables if t.sends_updates and t.identity != "f" and not t.has_identity_index
    ]
    for table in stopped:
        yield _error(
            "replica identity",
            f"{table.schema}.{table.name} has none and its updates are published: "
            "the server refuses the application's updates and deletes",
            f"ALTER TABLE {table.sql_name} REPLICA IDENTITY FULL;  -- or give it a primary key",
        )
    inserts = [
        t for t in tables if t not in stopped and t.identity != "f" and not t.has_identity_index
    ]
    if inserts:
        yield _warning(
            "replica identity",
            f"only inserts of these come: {_listed(inserts)}",
            "ALTER TABLE … ADD PRIMARY KEY (…), where updates and deletes are wanted",
        )
    keyless = [t for t in tables if t.identity == "f" and not t.has_key]
    if keyless:
        yield _warning(
            "replica identity",
            f"FULL without a key, an update or delete parks these: {_listed(keyless)}",
            'name what identifies a row: key = { "schema.table" = ["column"] } in the subscription',
        )
    for table in tables:
        if table.same_names:
            yield _error(
                "column names",
                f"{table.schema}.{table.name}: {', '.join(table.same_names)} are equal but for "
                "upper and lower case, and a lake's columns must not be",
                "rename one at the source",
            )
    yield from _judge_table_names(tables)


def _judge_table_names(tables: Sequence[PublishedTable]) -> Iterator[Finding]:
    seen: dict[tuple[str, str], PublishedTable] = {}
    for table in tables:
        other = seen.setdefault((table.schema.lower(), table.name.lower()), table)
        if other is not table:
            yield _warning(
                "table names",
                f"{other.schema}.{other.name} and {table.schema}.{table.name} are equal but for "
                "upper and lower case: on some disks their folders are one",
                "rename one at the source",
            )


def _judge_privileges(tables: Sequence[PublishedTable], user: str) -> Iterator[Finding]:
    schemas = sorted({table.schema for table in tables if not table.may_use_schema})
    unread = [table for table in tables if not table.may_select]
    if not schemas and not unread:
        count = "1 table" if len(tables) == 1 else f"{len(tables)} tables"
        yield _ok("privileges", f"{count} published, all can be read")
        return
    grants = [f"GRANT USAGE ON SCHEMA {quoted(name)} TO {quoted(user)};" for name in schemas]
    if unread:
        names = ", ".join(table.sql_name for table in unread)
        grants.append(f"GRANT SELECT ON {names} TO {quoted(user)};")
    blocked = [t for t in tables if not (t.may_select and t.may_use_schema)]
    yield _error(
        "privileges",
        f"{user} cannot read what it has to copy: {_listed(blocked)}",
        "\n".join(grants),
    )


_REMOTE = ("nfs", "cifs", "smb", "9p", "fuse", "ceph", "glusterfs", "lustre", "afs")


def judge_spool(
    facts: SpoolFacts, *, max_bytes: int | None, is_shared: bool, master: str
) -> Iterator[Finding]:
    """The spool's folder: writable, lasting, large enough, ours."""
    if facts.problem is not None:
        yield _error("spool", f"{facts.path}: {facts.problem}", "name another path in [spool]")
        return
    if facts.other_source is not None:
        yield _error(
            "spool",
            f"{facts.path} is the spool of {facts.other_source}",
            "name another path in [spool]: a spool belongs to one slot",
        )
        return
    kind = facts.file_system or "unknown"
    free = format_bytes(facts.free_bytes)
    is_remote = kind.startswith(_REMOTE)
    is_local_master = master.startswith("local")
    if kind in ("tmpfs", "ramfs"):
        yield _warning(
            "spool",
            f"{facts.path} is in memory ({kind}): it is gone after a restart of the machine, "
            "and with it what the slot no longer holds",
            "put it on a disk",
        )
    elif is_remote and not is_shared:
        yield _warning(
            "spool",
            f"{facts.path} is on {kind}: what is durable there is up to another machine",
            "put it on a local disk, or say shared = true if executors elsewhere need it",
        )
    elif not is_local_master and not is_remote:
        yield _warning(
            "spool",
            f"{facts.path} is said to be shared and is on {kind}: executors of {master} have to "
            "see it at the same path",
            "mount it on all of them, or take a local master",
        )
    elif facts.free_bytes < (max_bytes or _LOW_SPACE):
        yield _warning(
            "spool",
            f"{facts.path} has {free} left: when it is full, the server's WAL begins to grow",
            "make room, or set max_bytes",
        )
    else:
        yield _ok("spool", f"{facts.path} can be written, {free} free")


def judge_target(name: str, path: str, problem: str | None) -> Finding:
    """A subscription's Delta target."""
    if problem is not None:
        return _error("target", f'subscription "{name}", {path}: {problem}', "name another path")
    return _ok("target", f'subscription "{name}" can write to {path}')


def judge_environment(facts: EnvironmentFacts) -> Iterator[Finding]:
    """Java and the Python packages that a subscription needs."""
    problem = java_problem(facts.java)
    if problem is not None:
        yield _error(
            "java",
            problem,
            "install a JRE (on Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME",
        )
    elif facts.java is not None:
        yield _ok("java", f"{facts.java.version}, {facts.java.program}")
    if facts.pyspark is None:
        yield _error("pyspark", "not installed", 'pip install "pgsluice[spark]"')
    elif _numbers(facts.pyspark) < OLDEST_SPARK:
        yield _error(
            "pyspark", f"{facts.pyspark}: streaming needs 4.2", 'pip install "pyspark>=4.2"'
        )
    else:
        yield _ok("pyspark", facts.pyspark)
    if facts.deltalake is None:
        yield _error("deltalake", "not installed", 'pip install "pgsluice[delta]"')
    else:
        yield _ok("deltalake", facts.deltalake)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _listed(tables: Sequence[PublishedTable]) -> str:
    names = [f"{table.schema}.{table.name}" for table in tables]
    more = len(names) - _SHOWN_TABLES
    return ", ".join(names[:_SHOWN_TABLES]) + (f" and {more} more" if more > 0 else "")


def _ok(subject: str, what: str) -> Finding:
    return Finding(Level.OK, subject, what)


def _warning(subject: str, what: str, todo: str) -> Finding:
    return Finding(Level.WARNING, subject, what, todo)


def _error(subject: str, what: str, todo: str) -> Finding:
    return Finding(Level.ERROR, subject, what, todo)
