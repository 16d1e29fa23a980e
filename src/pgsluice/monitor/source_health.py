"""Is the source fit to run? From facts to findings, and nothing else: no connection, no file.

:mod:`pgsluice.monitor.examine` gathers the facts. Each function here judges one kind of them; a
finding says what is so and, unless it is fine, what to do, as commands that can be pasted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pgsluice.catalog import ServerInfo, SlotInfo
from pgsluice.config import SourceConfig
from pgsluice.lsn import Lsn
from pgsluice.monitor.findings import Finding, error, ok, warning
from pgsluice.monitor.wording import format_bytes

_LOW_SPACE = 2**30
_SHOWN_TABLES = 5


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the server says of itself and of our role.

    Attributes:
        wal_sender_timeout_ms: 0: none.
        is_behind_pooler: the process that greeted us is not the one that runs our
            statements: something stands in between.
    """

    info: ServerInfo
    wal_sender_timeout_ms: int
    is_behind_pooler: bool


@dataclass(frozen=True, slots=True)
class PublicationFacts:
    """The publications of ``[source]``.

    Attributes:
        existing, missing: of the wanted ones.
        foreign_tables: tables that only another role may publish.
        statements: SQL that would make what is missing.
        problem: why they could not be made, whoever tries; None: they can.
    """

    existing: tuple[str, ...]
    missing: tuple[str, ...]
    foreign_tables: tuple[str, ...]
    statements: str
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table that is published, or would be.

    Attributes:
        has_identity: its updates and deletes can be published.
        is_full: by REPLICA IDENTITY FULL.
        has_key: it has a primary key or a replica identity index.
        sends_updates: a publication that exists sends its updates or deletes.
        same_names: columns that are equal but for upper and lower case.
    """

    schema: str
    name: str
    has_identity: bool
    is_full: bool
    has_key: bool
    may_select: bool
    may_use_schema: bool
    sends_updates: bool
    same_names: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """For a sentence."""
        return f"{self.schema}.{self.name}"

    @property
    def sql_name(self) -> str:
        """Qualified and quoted."""
        return f"{quoted(self.schema)}.{quoted(self.name)}"


def quoted(name: str) -> str:
    """An SQL identifier, in quotes always: it is to be pasted."""
    return '"' + name.replace('"', '""') + '"'


def judge_server(facts: ServerFacts, *, slot_exists: bool) -> Iterator[Finding]:
    """The server's version and settings."""
    info = facts.info
    yield ok("version", f"PostgreSQL {info.version}, database {info.database}")
    if facts.is_behind_pooler:
        yield warning(
            "connection",
            "something between here and the server answers for it, as a connection pooler does",
            "give the address of the server itself: replication needs a connection of its own",
        )
    if info.wal_level == "logical":
        yield ok("wal_level", "logical")
    else:
        yield error(
            "wal_level",
            f"{info.wal_level}: the WAL does not hold what logical replication needs",
            "ALTER SYSTEM SET wal_level = logical;  -- then restart the server",
        )
    yield from _judge_room(info, slot_exists=slot_exists)
    yield from _judge_limits(facts)


def _judge_room(info: ServerInfo, *, slot_exists: bool) -> Iterator[Finding]:
    # A copy takes a temporary slot beside ours; a first run makes the one that stays.
    free = info.max_replication_slots - info.used_replication_slots
    yield _room(
        "max_replication_slots", info.max_replication_slots, free, 0 if slot_exists else 1, "slot"
    )
    free = info.max_wal_senders - info.used_wal_senders
    yield _room("max_wal_senders", info.max_wal_senders, free, 1, "walsender")


def _room(setting: str, limit: int, free: int, needed: int, what: str) -> Finding:
    """``needed`` to stream, one more to copy a table beside it."""
    if free > needed:
        return ok(setting, f"{limit}, of which {free} are free")
    sql = f"ALTER SYSTEM SET {setting} = {limit + needed + 1 - free};  -- then restart the server"
    if free == needed:
        return warning(setting, f"{limit}: copying a table again needs one {what} more", sql)
    return error(setting, f"all {limit} are in use, and a {what} is needed", sql)


def _judge_limits(facts: ServerFacts) -> Iterator[Finding]:
    if 0 < facts.wal_sender_timeout_ms < 10_000:
        yield warning(
            "wal_sender_timeout",
            f"{facts.wal_sender_timeout_ms} ms: a short pause here ends the connection",
            "ALTER SYSTEM SET wal_sender_timeout = '60s'; SELECT pg_reload_conf();",
        )
    limit = facts.info.max_slot_wal_keep_bytes
    if facts.info.version_num >= 130000 and limit is None:
        yield warning(
            "max_slot_wal_keep_size",
            "no limit: while pgsluice is down, its slot keeps WAL until the server's disk is full",
            "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf();"
            "  -- what the disk can spare",
        )
    elif limit is not None and limit < _LOW_SPACE:
        yield warning(
            "max_slot_wal_keep_size",
            f"{format_bytes(limit)}: a short stop here may lose the slot",
            "give it what the disk can spare",
        )


def judge_role(facts: ServerFacts, replication_problem: str | None) -> Iterator[Finding]:
    """May the role replicate? ``replication_problem`` is what a replication connection said."""
    user = facts.info.user
    if not facts.info.has_replication:
        yield error(
            "role",
            f"{user} may not replicate",
            f"ALTER ROLE {quoted(user)} REPLICATION;",
        )
    elif replication_problem is not None:
        yield error(
            "role",
            f"a replication connection is refused: {replication_problem}",
            f"pg_hba.conf needs a line for {user} and this address; a connection pooler "
            "in between has to be left out",
        )
    else:
        yield ok("role", f"{user} may replicate")


def judge_slot(slot: SlotInfo | None, facts: ServerFacts, *, frontier: Lsn | None) -> Finding:
    """The slot. ``frontier``: the spool's; None before its first run."""
    if slot is None:
        if frontier is not None:
            return error(
                "slot",
                "it is gone, and the spool goes on where it was: changes are missing",
                "pgsluice drop CONFIG forgets all state; the next run copies again",
            )
        return ok("slot", "not there yet: the first run makes it")
    if slot.plugin != "pgoutput":
        owner = "a physical slot" if slot.plugin is None else f"a slot of {slot.plugin}"
        return error("slot", f"{slot.name} is {owner}", "name another slot in [source]")
    if slot.database != facts.info.database:
        return error(
            "slot",
            f"{slot.name} belongs to the database {slot.database}",
            "name another slot in [source]",
        )
    if slot.is_lost:
        return error(
            "slot",
            f"{slot.name} is lost: the server removed WAL that it needs",
            "pgsluice drop CONFIG, then pgsluice run CONFIG copies again",
        )
    if frontier is not None and (slot.confirmed_flush_lsn or 0) > frontier:
        return error(
            "slot",
            f"{slot.name} moved to {slot.confirmed_flush_lsn}, past the spool's {frontier}: "
            "another reader took what lies between",
            "pgsluice drop CONFIG, then pgsluice run CONFIG copies again",
        )
    held = f"{slot.name} holds {format_bytes(slot.retained_bytes)} of WAL"
    if slot.wal_status == "unreserved":
        return warning(
            "slot", f"{held}, soon more than max_slot_wal_keep_size allows", "run pgsluice now"
        )
    if slot.active_pid is not None:
        return ok("slot", f"{held}, in use by process {slot.active_pid}")
    if frontier is None:
        return warning(
            "slot",
            f"{slot.name} is there and this spool has not used it: somebody else may",
            "name another slot in [source], or drop it: "
            f"SELECT pg_drop_replication_slot('{slot.name}');",
        )
    return ok("slot", held)


def judge_publications(facts: PublicationFacts, server: ServerFacts) -> Iterator[Finding]:
    """The server's publications: there, or can they be made?"""
    for name in facts.existing:
        yield ok("publication", f"{name} is there")
    if not facts.missing:
        return
    missing = ", ".join(facts.missing)
    user, database = server.info.user, server.info.database
    if facts.problem is not None:
        yield error("publication", facts.problem, "name others in [source] publications")
    elif facts.foreign_tables:
        yield error(
            "publication",
            f"{missing} not there, and only a table's owner may publish it: "
            f"{_shortened(facts.foreign_tables)}",
            f"as the owner, or a superuser:\n{facts.statements}",
        )
    elif not server.info.may_create:
        yield error(
            "publication",
            f"{missing} not there, and {user} may not make it",
            f"GRANT CREATE ON DATABASE {quoted(database)} TO {quoted(user)};",
        )
    else:
        yield ok("publication", f"{missing} not there yet: the first run makes it")


def judge_messages(source: SourceConfig) -> Iterator[Finding]:
    """Logical messages in streamed transactions; nothing where there are none."""
    if source.messages and source.streaming not in (None, "off"):
        yield warning(
            "messages",
            f'streaming = "{source.streaming}": in a streamed transaction nothing tells a message '
            "of a savepoint that was rolled back from the others, and it comes with them",
            'streaming = "off", unless no savepoint around a message is ever rolled back',
        )


def judge_tables(tables: Sequence[PublishedTable], user: str) -> Iterator[Finding]:
    """Privileges, replica identities and names of the published tables."""
    if not tables:
        yield warning("tables", "no table is published", "add one to the publication")
        return
    yield from _judge_privileges(tables, user)
    stopped = [table for table in tables if table.sends_updates and not table.has_identity]
    for table in stopped:
        yield error(
            "replica identity",
            f"{table.shown} has none and its updates are published: "
            "the server refuses the application's updates and deletes",
            f"ALTER TABLE {table.sql_name} REPLICA IDENTITY FULL;  -- or give it a primary key",
        )
    inserts = [table for table in tables if not table.sends_updates and not table.has_identity]
    if inserts:
        yield warning(
            "replica identity",
            f"only inserts of these come: {_listed(inserts)}",
            "ALTER TABLE … ADD PRIMARY KEY (…), where updates and deletes are wanted",
        )
    keyless = [table for table in tables if table.is_full and not table.has_key]
    if keyless:
        yield warning(
            "replica identity",
            f"FULL without a key, an update or delete parks these: {_listed(keyless)}",
            'name what identifies a row: key = { "schema.table" = ["column"] } in the subscription',
        )
    for table in tables:
        if table.same_names:
            yield error(
                "column names",
                f"{table.shown}: {', '.join(table.same_names)} are equal but for "
                "upper and lower case, and a lake's columns must not be",
                "rename one at the source",
            )
    yield from _judge_table_names(tables)


def _judge_table_names(tables: Sequence[PublishedTable]) -> Iterator[Finding]:
    seen: dict[tuple[str, str], PublishedTable] = {}
    for table in tables:
        other = seen.setdefault((table.schema.lower(), table.name.lower()), table)
        if other is not table:
            yield warning(
                "table names",
                f"{other.shown} and {table.shown} are equal but for "
                "upper and lower case: on some disks their folders are one",
                "rename one at the source",
            )


def _judge_privileges(tables: Sequence[PublishedTable], user: str) -> Iterator[Finding]:
    schemas = sorted({table.schema for table in tables if not table.may_use_schema})
    unread = [table for table in tables if not table.may_select]
    if not schemas and not unread:
        count = "1 table" if len(tables) == 1 else f"{len(tables)} tables"
        yield ok("privileges", f"{count} published, all can be read")
        return
    grants = [f"GRANT USAGE ON SCHEMA {quoted(name)} TO {quoted(user)};" for name in schemas]
    if unread:
        names = ", ".join(table.sql_name for table in unread)
        grants.append(f"GRANT SELECT ON {names} TO {quoted(user)};")
    blocked = [t for t in tables if not (t.may_select and t.may_use_schema)]
    yield error(
        "privileges",
        f"{user} cannot read what it has to copy: {_listed(blocked)}",
        "\n".join(grants),
    )


def _listed(tables: Sequence[PublishedTable]) -> str:
    return _shortened([table.shown for table in tables])


def _shortened(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN_TABLES
    return ", ".join(names[:_SHOWN_TABLES]) + (f" and {more} more" if more > 0 else "")
